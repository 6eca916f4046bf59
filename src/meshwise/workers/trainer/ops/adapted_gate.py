"""The gate of a feed-forward whose gate and up projections have adapters: the kernel adds those, so that no other pass over both does."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from meshwise.workers.trainer.ops.fused_projections import GATES, activation_of, run_gate

ROWS, COLUMNS = 32, 128
"""Tile of one program."""


@triton.jit
def _adapted_gate(
    both, out, by_both, narrow, wide, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANK: tl.constexpr, BACK: tl.constexpr, KIND: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute h = a(g) u for rows [g u] plus `narrow wide^T`. If BACK, `out` holds the gradient of h: writes those of g and u, and h over it."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    rank = tl.arange(0, RANK)
    t = tl.load(narrow + row * RANK + rank[None, :], row < rows, other=0.0)
    at = row * (2 * width) + column
    across = column * RANK + rank[:, None]
    g = tl.load(both + at, inside, other=0.0).to(tl.float32)
    g += tl.dot(t, tl.load(wide + across, column < width, other=0.0), input_precision="ieee")
    u = tl.load(both + at + width, inside, other=0.0).to(tl.float32)
    u += tl.dot(t, tl.load(wide + across + width * RANK, column < width, other=0.0), input_precision="ieee")
    s, slope = activation_of(g, KIND)
    place = row * width + column
    if BACK:
        e = tl.load(out + place, inside, other=0.0).to(tl.float32)
        tl.store(by_both + at, (e * u * slope).to(both.dtype.element_ty), inside)
        tl.store(by_both + at + width, (e * g * s).to(both.dtype.element_ty), inside)
    tl.store(out + place, (g * s * u).to(both.dtype.element_ty), inside)


def run_adapted_gate(
    both: Tensor, narrow: Tensor, wide: Tensor, out: Tensor, activation: str, by_both: Tensor | None = None
) -> None:
    """Run forward, or backward if `by_both` is given, as `run_gate` does, for rows [gate up] + narrow wide^T; a power of two of ranks."""
    if not narrow.shape[1]:
        run_gate(both, out, activation, by_both)
        return
    width, rows = out.shape[-1], narrow.shape[0]
    run: Any = _adapted_gate[(triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS))]
    run(
        both, out, both if by_both is None else by_both, narrow, wide, rows, width,
        ROWS, COLUMNS, narrow.shape[1], by_both is not None, GATES[activation],
    )  # fmt: skip
