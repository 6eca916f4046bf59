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
    both, out, by_both, narrow, wide, by_inner, a, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANK: tl.constexpr, INNER: tl.constexpr, BACK: tl.constexpr, KIND: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute h = a(g) u for rows [g u] + narrow wide^T.

    If BACK, `out` + by_inner a is the gradient of h: writes the gradients of g and u, and h over `out`.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    at = row * (2 * width) + column
    g = tl.load(both + at, inside, other=0.0).to(tl.float32)
    u = tl.load(both + at + width, inside, other=0.0).to(tl.float32)
    if RANK:
        rank = tl.arange(0, RANK)
        t = tl.load(narrow + row * RANK + rank[None, :], row < rows, other=0.0)
        across = column * RANK + rank[:, None]
        g += tl.dot(t, tl.load(wide + across, column < width, other=0.0), input_precision="ieee")
        u += tl.dot(t, tl.load(wide + across + width * RANK, column < width, other=0.0), input_precision="ieee")
    s, slope = activation_of(g, KIND)
    place = row * width + column
    if BACK:
        e = tl.load(out + place, inside, other=0.0).to(tl.float32)
        if INNER:
            rank = tl.arange(0, INNER)
            t = tl.load(by_inner + row * INNER + rank[None, :], row < rows, other=0.0)
            e += tl.dot(t, tl.load(a + rank[:, None] * width + column, column < width, other=0.0), input_precision="ieee")
        tl.store(by_both + at, (e * u * slope).to(both.dtype.element_ty), inside)
        tl.store(by_both + at + width, (e * g * s).to(both.dtype.element_ty), inside)
    tl.store(out + place, (g * s * u).to(both.dtype.element_ty), inside)


def run_adapted_gate(both: Tensor, narrow: Tensor, wide: Tensor, out: Tensor, activation: str) -> None:
    """Write h = activation(gate) x up for rows [gate up] + narrow wide^T; the rank of narrow and wide is zero or a power of two."""
    _run(both, narrow, wide, out, activation, both, narrow[:, :0], wide[:0], False)


def run_adapted_gate_backward(
    both: Tensor, narrow: Tensor, wide: Tensor, out: Tensor, activation: str, by_both: Tensor, by_inner: Tensor, a: Tensor
) -> None:
    """Write the gradient of [gate up] to `by_both`, where that of h is out + by_inner a; and h over `out`."""
    _run(both, narrow, wide, out, activation, by_both, by_inner, a, True)


def _run(
    both: Tensor, narrow: Tensor, wide: Tensor, out: Tensor, activation: str, by_both: Tensor, by_inner: Tensor, a: Tensor,
    back: bool,
) -> None:  # fmt: skip
    width, rows, ranks = out.shape[-1], narrow.shape[0], (narrow.shape[1], by_inner.shape[1])
    if not any(ranks):
        run_gate(both, out, activation, by_both if back else None)
        return
    run: Any = _adapted_gate[(triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS))]
    run(both, out, by_both, narrow, wide, by_inner, a, rows, width, ROWS, COLUMNS, *ranks, back, GATES[activation])
