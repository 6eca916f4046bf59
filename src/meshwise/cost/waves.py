"""How full whole waves of whole tiles make a chip: the products of a served model, as its engine joins them."""

from functools import lru_cache
from math import ceil

from meshwise.cost.tiles import LARGEST_TILE, TILES
from meshwise.model import Model
from meshwise.op import Op

CUT = ("column", "kv", "heads")
"""How tensor parallelism cuts a product's outputs."""

Product = tuple[float, float]
"""Outputs of a product, and what it weighs: inputs x times that a token meets it."""


@lru_cache(maxsize=64)
def products(model: Model, tp: int, joined: bool) -> tuple[Product, ...]:
    """Of all layers. Joined: those of a block that read the same input and are cut alike by columns follow one another as one."""
    found: list[Product] = []
    for name, ops in model.blocks.items():
        before: Op | None = None
        for op in ops if model.times[name] else ():
            if op.kind == "matmul":
                n, weight = op.n / tp if op.shard in CUT else float(op.n), op.count * op.m * op.k
                if joined and before and _same_input(before, op):
                    found[-1] = found[-1][0] + n, weight
                else:
                    found.append((n, weight))
                before = op
    return tuple(found)


def _same_input(one: Op, other: Op) -> bool:
    return (
        one.part == other.part
        and one.shard in CUT
        and other.shard in CUT
        and (one.k, one.count, one.m) == (other.k, other.count, other.m)
    )


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
