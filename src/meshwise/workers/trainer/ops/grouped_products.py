"""Products of rows that are grouped by expert, as persistent Triton kernels that copy tiles by the GPU's tensor memory accelerator.

A program computes tile after tile, and the loads of the next tile begin while it stores the last. Rows of an expert are neighbours, a
multiple of ROWS, and zero where they are padding.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ROWS = 64
"""Rows of an expert are a multiple of this: the weights' gradient adds up this many at a time."""


class Tile(NamedTuple):
    """The tile of an output that a program computes, the depth of a step, and how it is launched."""

    tall: int = 128
    wide: int = 256
    deep: int = 64
    warps: int = 8
    stages: int = 3
    flat: bool = True
    """Whether the loops over tiles and over steps are one."""


DEFAULT = Tile()


@triton.jit
def _by_rows(
    rows, weights, out, experts, firsts, ends, number, columns, inner,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, TURNED: tl.constexpr, FLAT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Multiply tiles of rows by the matrices of their experts: rows W^T, or rows W if TURNED."""
    across = columns // WIDE
    for tile in tl.range(tl.program_id(0), tl.load(number) * across, tl.num_programs(0), flatten=FLAT):
        place = tile // across
        column = (tile % across) * WIDE
        expert, row, end = tl.load(experts + place), tl.load(firsts + place), tl.load(ends + place)
        total = tl.zeros((TALL, WIDE), tl.float32)
        for at in range(0, inner, DEEP):
            left = rows.load([row, at])
            if TURNED:
                total = tl.dot(left, weights.load([expert * inner + at, column]), total)
            else:
                total = tl.dot(left, weights.load([expert * columns + column, at]).T, total)
        line = row + tl.arange(0, TALL)
        where = line[:, None].to(tl.int64) * columns + column + tl.arange(0, WIDE)[None, :]
        tl.store(out + where, total.to(out.dtype.element_ty), (line < end)[:, None])


@triton.jit
def _by_weights(
    left, right, out, ends, count, outputs, columns,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, FLAT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Add up left^T right over the rows of each expert: the gradients of its matrix."""
    across = columns // WIDE
    each = (outputs // TALL) * across
    for tile in tl.range(tl.program_id(0), count * each, tl.num_programs(0), flatten=FLAT):
        expert = tile // each
        line = (tile % each) // across * TALL
        column = (tile % across) * WIDE
        first = tl.load(ends + expert - 1, expert > 0, other=0)
        total = tl.zeros((TALL, WIDE), tl.float32)
        for at in range(first, tl.load(ends + expert), DEEP):
            total = tl.dot(left.load([at, line]).T, right.load([at, column]), total)
        where = (
            (expert.to(tl.int64) * outputs + line + tl.arange(0, TALL)[:, None]) * columns + column + tl.arange(0, WIDE)[None, :]
        )
        tl.store(out + where, total.to(out.dtype.element_ty))


class Tiles(NamedTuple):
    """Tiles of rows: the expert, the first row and the end of the expert's rows of each, and how many there are."""

    experts: Tensor
    firsts: Tensor
    ends: Tensor
    number: Tensor


def tiles_of(ends: Tensor, rows: int, tall: int) -> Tiles:
    """Cut each expert's rows, which end at `ends`, into tiles of `tall`; the host does not learn how many there are."""
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    counts = (ends - starts + tall - 1) // tall
    stops = counts.cumsum(0)
    place = torch.arange(triton.cdiv(rows, tall) + len(ends), device=ends.device)
    expert = torch.searchsorted(stops, place, right=True).clamp(max=len(ends) - 1)
    firsts = starts[expert] + (place - (stops - counts)[expert]) * tall
    return Tiles(expert.int(), firsts.int(), ends[expert], stops[-1:].int())


def product_by_rows(rows: Tensor, weights: Tensor, tiles: Tiles, turned: bool = False, tile: Tile = DEFAULT) -> Tensor:
    """Multiply rows by `weights` (experts, outputs, inputs) of their expert, transposed; or as they are if `turned`."""
    inner, columns = rows.shape[1], weights.shape[2 if turned else 1]
    out = rows.new_empty(len(rows), columns)
    flat, block = weights.flatten(0, 1), [tile.deep, tile.wide] if turned else [tile.wide, tile.deep]
    left, right = TensorDescriptor.from_tensor(rows, [tile.tall, tile.deep]), TensorDescriptor.from_tensor(flat, block)
    run: Any = _by_rows[(_programs(rows),)]
    run(
        left, right, out, *tiles, columns, inner, tile.tall, tile.wide, tile.deep, turned, tile.flat,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def product_by_weights(left: Tensor, right: Tensor, ends: Tensor, tile: Tile = DEFAULT) -> Tensor:
    """Return left^T right over the rows of each expert (experts, left's columns, right's columns)."""
    out = left.new_empty(len(ends), left.shape[1], right.shape[1])
    a, b = (TensorDescriptor.from_tensor(x, [tile.deep, size]) for x, size in ((left, tile.tall), (right, tile.wide)))
    run: Any = _by_weights[(_programs(left),)]
    run(
        a, b, out, ends, len(ends), left.shape[1], right.shape[1], tile.tall, tile.wide, tile.deep, tile.flat,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def _programs(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4
