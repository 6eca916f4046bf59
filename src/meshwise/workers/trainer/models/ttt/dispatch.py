"""Whether the kernels serve a layer: what they need, and the one line that says why they do not."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import importlib.util
import logging
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Limits:
    """What a set of kernels serves."""

    head_sizes: tuple[int, ...]
    mini_batches: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    shared: int = 0
    """Bytes of shared memory that a program needs."""


LINEAR = Limits((32, 64, 128), (16, 32, 64), (torch.bfloat16, torch.float16, torch.float32))
MLP = Limits((64,), (16,), (torch.bfloat16, torch.float16), shared=160 * 1024)


@cache
def unserved(device: torch.device, dtype: torch.dtype, head_size: int, mini_batch: int, limits: Limits = LINEAR) -> str:
    """Why the kernels do not serve this layer; nothing where they do."""
    if device.type != "cuda":
        return f"they run on CUDA, not on {device.type}"
    chip = torch.cuda.get_device_properties(device)
    if (chip.major, chip.minor) < (8, 0) or chip.shared_memory_per_block_optin < limits.shared:
        return f"they need an Ampere GPU or a later one with {limits.shared >> 10} KiB of shared memory, which {chip.name} is not"
    if importlib.util.find_spec("triton") is None:
        return "they need triton, which is not installed"
    if head_size not in limits.head_sizes:
        return f"they serve heads of {', '.join(map(str, limits.head_sizes))} features, not {head_size}"
    if mini_batch not in limits.mini_batches:
        return f"they serve mini-batches of {', '.join(map(str, limits.mini_batches))} tokens, not {mini_batch}"
    if dtype not in limits.dtypes:
        names = [str(one).removeprefix("torch.") for one in (*limits.dtypes, dtype)]
        return f"they serve {', '.join(names[:-1])}, not {names[-1]}"
    return ""


@cache
def serves(device: torch.device, dtype: torch.dtype, head_size: int, mini_batch: int, limits: Limits = LINEAR) -> bool:
    """Whether to take the kernels. Where a GPU goes without them, says so, once."""
    reason = unserved(device, dtype, head_size, mini_batch, limits)
    if reason and device.type == "cuda":
        logging.getLogger("meshwise").warning("TTT layers run in plain PyTorch, not in their kernels: %s", reason)
    return not reason


def operand_dtype(device: torch.device, weights: torch.dtype) -> torch.dtype:
    """Of the products: autocast's where it is on."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else weights
