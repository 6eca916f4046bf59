"""SM utilization of the matrix products of a served model: full waves of full tiles."""

from functools import lru_cache
from math import ceil

from meshwise.cost.tiles import LARGEST_TILE, TILES
from meshwise.models.model import Model
from meshwise.models.op import BY_OUTPUT, fusable_groups

Product = tuple[float, float]
"""(outputs, weight) of a product; its weight is inputs x times that a token passes through it."""


@lru_cache(maxsize=64)
def products(model: Model, tp: int, joined: bool) -> tuple[Product, ...]:
    """Return the products of all layers. `joined`: the engine fuses products that read the same input."""
    listed: list[Product] = []
    for name, ops in model.blocks.items():
        groups = fusable_groups(ops) if joined else [[op] for op in ops if op.kind == "matmul"]
        for group in groups if model.times[name] else []:
            outputs = sum(op.n / tp if op.shard in BY_OUTPUT else float(op.n) for op in group)
            listed.append((outputs, group[0].count * group[0].m * group[0].k))
    return tuple(listed)


@lru_cache(maxsize=1024)
def utilization(shapes: tuple[Product, ...], rows: int, sms: int, tile: float) -> float:
    """Return useful work over the work of full waves of full tiles, with the best tile for each product shape (as in train/compute.py).

    `tile` is the penalty of smaller tiles: their efficiency is (area / largest) to this power.
    Worked: 512 rows by 4,096 outputs are 128 tiles of 128 x 128: two waves on an A100's 108 SMs, with only 20 tiles in the second.
    """
    useful = spent = 0.0
    for n, weight in shapes if sms else ():
        areas = (ceil(ceil(rows / m) * ceil(n / w) / sms) * sms * m * w * (LARGEST_TILE / (m * w)) ** tile for m, w in TILES)
        useful += weight * rows * n
        spent += weight * min(areas)
    return useful / spent if spent else 1.0
