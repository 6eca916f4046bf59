"""SM utilization of the matrix products of a served model: full waves of full tiles."""

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from meshwise.cost.precision import LARGEST_TILE, TILES
from meshwise.models.model import Model
from meshwise.models.op import BY_OUTPUT, fusable_groups

EXPERT_TILES = (*TILES, (32, 128), (16, 128))
"""Kernels that multiply many experts at once also have tiles for the few rows of each (llama.cpp's and vLLM's go down to 16)."""


class Product(NamedTuple):
    """A matrix product of some layers."""

    outputs: float
    weight: float  # inputs x times that a token passes through it
    share: float = 1.0  # share of the tokens that it multiplies: top_k / experts for one of many experts
    copies: int = 1  # experts of a layer, whose products are one grouped kernel that fills the chip together


@lru_cache(maxsize=64)
def products(model: Model, tp: int, joined: bool) -> tuple[Product, ...]:
    """Return the products of all layers. `joined`: the engine fuses products that read the same input."""
    listed: list[Product] = []
    for name, ops in model.blocks.items():
        groups = fusable_groups(ops) if joined else [[op] for op in ops if op.kind == "matmul"]
        for group in groups if model.times[name] else []:
            outputs = sum(op.n / tp if op.shard in BY_OUTPUT else float(op.n) for op in group)
            first = group[0]
            copies = round(first.count / model.times[name]) if first.expert else 1
            listed.append(Product(outputs, first.count * first.m * first.k, first.m if first.expert else 1.0, copies))
    return tuple(listed)


@lru_cache(maxsize=4096)
def utilization(shapes: tuple[Product, ...], rows: int, sms: int, tile: float) -> float:
    """Return useful work over the work of full waves of full tiles, with the best tile for each product shape (as in train/compute.py).
    `tile` is the penalty of smaller tiles: their efficiency is (area / largest) to this power. Worked: 512 rows by 4,096 outputs are 128
    tiles of 128 x 128: two waves on an A100's 108 SMs, with only 20 tiles in the second. Of 128 experts, 8 of them per token, each has 512
    x 8 / 128 = 32 rows, and all 128 together make the tiles of one kernel."""
    useful = spent = 0.0
    for n, weight, share, copies in shapes if sms else ():
        own = rows * share
        busy = copies * (1 - (1 - share) ** rows) if copies > 1 else 1.0
        areas = (
            ceil(busy * _tiles(own / busy * copies / m, copies > 1) * ceil(n / w) / sms)
            * sms
            * m
            * w
            * (LARGEST_TILE / (m * w)) ** tile
            for m, w in (EXPERT_TILES if copies > 1 else TILES)
        )
        useful += weight * rows * n
        spent += weight / share / copies * min(areas)
    return useful / spent if spent else 1.0


def _tiles(full: float, experts: bool) -> float:
    """Round row tiles up. With experts, whose rows are unequal, add half a padded tile instead."""
    return max(1.0, full + 0.5) if experts else ceil(full)
