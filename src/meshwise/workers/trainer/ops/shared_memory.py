"""Whether the multiprocessors of a GPU hold the tiles of our largest kernels."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from functools import cache

import torch

LARGE_TILES_BYTES = 227 * 2**10
"""Bytes of shared memory that a program may have on Hopper and on Blackwell's data-center chips. The tiles of grouped products and of wide
attention are chosen for it; an A100 has 163 KiB, GeForce cards 99."""


@cache
def holds_large_tiles(device: torch.device) -> bool:
    """Return whether kernels with these tiles can be launched; where they cannot, torch's own operations do their work."""
    if device.type != "cuda":
        return False
    chip = torch.cuda.get_device_properties(device)
    return int(getattr(chip, "shared_memory_per_block_optin", 0)) >= LARGE_TILES_BYTES  # AMD's have no such attribute
