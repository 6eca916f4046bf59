"""How full whole waves of whole tiles make a chip: the products of a served model, as its engine joins them."""

from functools import lru_cache
from math import ceil

from meshwise.cost.tiles import LARGEST_TILE, TILES
from meshwise.models.model import Model
from meshwise.models.op import CUT, together

Product = tuple[float, float]
"""Outputs of a product, and what it weighs: inputs x times that a token meets it."""


@lru_cache(maxsize=64)
def products(model: Model, tp: int, joined: bool) -> tuple[Product, ...]:
    """Of all layers; joined, those of one input are one."""
    found: list[Product] = []
    for name, ops in model.blocks.items():
        groups = together(ops) if joined else [[op] for op in ops if op.kind == "matmul"]
        for group in groups if model.times[name] else []:
            outputs = sum(op.n / tp if op.shard in CUT else float(op.n) for op in group)
            found.append((outputs, group[0].count * group[0].m * group[0].k))
    return tuple(found)


@lru_cache(maxsize=1024)
def filled(asked: tuple[Product, ...], rows: int, sms: int, tile: float) -> float:
    """Useful work over that of whole waves of whole tiles, by the best tile for each product (as cost/compute.py prices training).

    `tile` is how a smaller tile loses: efficiency is (area / largest) to this power.
    Worked: 512 rows by 4,096 outputs are 128 tiles of 128 x 128: two waves of an A100's 108 SMs, of which the second has 20.
    """
    useful = spent = 0.0
    for n, weight in asked if sms else ():
        areas = (ceil(ceil(rows / m) * ceil(n / w) / sms) * sms * m * w * (LARGEST_TILE / (m * w)) ** tile for m, w in TILES)
        useful += weight * rows * n
        spent += weight * min(areas)
    return useful / spent if spent else 1.0
