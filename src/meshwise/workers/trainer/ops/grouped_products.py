"""Products of rows that are grouped by expert, as persistent Triton kernels that copy tiles by the GPU's tensor memory accelerator.

A program computes tile after tile, and the loads of the next tile begin while it stores the last. torch's grouped products leave a gap
there: on an H200, gradients of the rows of OLMoE's experts reach 594 and 577 TFLOP/s here and 577 and 536 there, where all experts have as
many rows; 682 and 626 instead of 624 and 585 where eight have all (benchmarks/kernels/grouped_products.py). Gradients of the weights are 5
to 10% slower than torch's where all experts have as many rows, and as fast where eight have all; their squares are added up before they
leave the registers, which saves the gradient norm from reading them: 27 ms of OLMoE's step instead of 30. Gate and up are multiplied and
gated at once (14.2 ms instead of 14.6). The last product of the forward pass is torch's."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false, reportArgumentType=false, reportOperatorIssue=false
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from meshwise.workers.trainer.ops.fused_projections import activation_of


class Tile(NamedTuple):
    """The tile of an output that a program computes, the depth of a step, and how it is launched."""

    tall: int = 128
    wide: int = 256
    deep: int = 64
    warps: int = 8
    stages: int = 3
    flat: bool = True  # whether the loops over tiles and over steps are one


FASTEST, DEEPER = Tile(), Tile(stages=4)


@triton.jit
def _place(ends, place, count, EXPERTS: tl.constexpr, TALL: tl.constexpr):  # noqa: N803
    """Return the expert of the tile at `place`, its first row, the end of the expert's rows, and the number of all tiles."""
    lane = tl.arange(0, EXPERTS)
    end = tl.load(ends + lane, lane < count, other=0)
    start = tl.load(ends + lane - 1, (lane > 0) & (lane < count), other=0)
    tiles = tl.where(lane < count, (end - start + TALL - 1) // TALL, 0)
    stops = tl.cumsum(tiles, 0)
    expert = tl.sum((stops <= place).to(tl.int32), 0)
    mine = lane == expert
    row = tl.sum(tl.where(mine, start + (place - stops + tiles) * TALL, 0), 0)
    return expert, row, tl.sum(tl.where(mine, end, 0), 0), tl.sum(tiles, 0)


@triton.jit
def _by_rows(
    rows, weights, out, ends, count, columns, inner,
    EXPERTS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, FLAT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Multiply tiles of rows by the matrices of their experts."""
    across = columns // WIDE
    _, _, _, number = _place(ends, 0, count, EXPERTS, TALL)
    for tile in tl.range(tl.program_id(0), number * across, tl.num_programs(0), flatten=FLAT):
        column = (tile % across) * WIDE
        expert, row, end, _ = _place(ends, tile // across, count, EXPERTS, TALL)
        total = tl.zeros((TALL, WIDE), tl.float32)
        for at in range(0, inner, DEEP):
            total = tl.dot(rows.load([row, at]), weights.load([expert * inner + at, column]), total)
        line = row + tl.arange(0, TALL)
        where = line[:, None].to(tl.int64) * columns + column + tl.arange(0, WIDE)[None, :]
        tl.store(out + where, total.to(out.dtype.element_ty), (line < end)[:, None])


@triton.jit
def _gated(
    rows, weights, both, out, shares, ends, count, width, inner, EXPERTS: tl.constexpr,  # noqa: N803
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, FLAT: tl.constexpr, KIND: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Multiply tiles of rows by gate and up of their experts, write both products [g u] and a(g) u times the row's share."""
    across = width // WIDE
    _, _, _, number = _place(ends, 0, count, EXPERTS, TALL)
    for tile in tl.range(tl.program_id(0), number * across, tl.num_programs(0), flatten=FLAT):
        column = (tile % across) * WIDE
        expert, row, end, _ = _place(ends, tile // across, count, EXPERTS, TALL)
        total = tl.zeros((TALL, 2 * WIDE), tl.float32)
        for at in range(0, inner, DEEP):
            pair = weights.load([2 * expert, column, at]).reshape(2 * WIDE, DEEP)
            total = tl.dot(rows.load([row, at]), pair.T, total)
        gate, up = total.to(out.dtype.element_ty).reshape(TALL, 2, WIDE).permute(0, 2, 1).split()
        line = row + tl.arange(0, TALL)
        inside = (line < end)[:, None]
        across_tile = column + tl.arange(0, WIDE)[None, :]
        where = 2 * line[:, None].to(tl.int64) * width + across_tile
        tl.store(both + where, gate, inside)
        tl.store(both + where + width, up, inside)
        g = gate.to(tl.float32)
        share = tl.load(shares + line, line < end, other=0.0)[:, None]
        h = g * activation_of(g, KIND)[0] * up.to(tl.float32) * share
        tl.store(out + line[:, None].to(tl.int64) * width + across_tile, h.to(out.dtype.element_ty), inside)


@triton.jit
def _by_weights(
    left, right, out, squares, ends, count, outputs, columns,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, FLAT: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Add up left^T right over the rows of each expert, which is the gradient of its matrix, and the squares of each tile of it. The
    loops are not flattened where their lengths differ, but the copy of a tile to memory goes on during the next tile."""
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
        rounded = total.to(left.dtype)
        wide = rounded.to(tl.float32)
        tl.store(squares + tile, tl.sum(tl.sum(wide * wide, 1), 0))
        out.store([expert * outputs + line, column], rounded)


def fits(weights: Tensor, tile: Tile = FASTEST) -> bool:
    """Return whether matrices (experts, inputs, outputs) are whole tiles."""
    return weights.shape[1] % tile.deep == 0 and weights.shape[2] % tile.wide == 0


def product_by_rows(rows: Tensor, weights: Tensor, ends: Tensor, tile: Tile = FASTEST) -> Tensor:
    """Multiply each expert's rows, up to its end in `ends`, by its matrix of `weights` (experts, inputs, outputs)."""
    count, inner, columns = weights.shape
    out = rows.new_empty(len(rows), columns)
    left = TensorDescriptor.from_tensor(rows, [tile.tall, tile.deep])
    right = TensorDescriptor.from_tensor(weights.flatten(0, 1), [tile.deep, tile.wide])
    run: Any = _by_rows[(_programs(rows),)]
    run(
        left, right, out, ends, count, columns, inner, triton.next_power_of_2(count), tile.tall, tile.wide, tile.deep, tile.flat,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def fits_gated(weights: Tensor, tile: Tile = FASTEST) -> bool:
    """Return whether matrices of gate and up (experts, 2 x outputs, inputs) are whole tiles."""
    return weights.shape[1] % tile.wide == 0 and weights.shape[2] % tile.deep == 0


def gated_product_by_rows(
    rows: Tensor, weights: Tensor, shares: Tensor, ends: Tensor, kind: int, tile: Tile = DEEPER
) -> tuple[Tensor, Tensor]:
    """Multiply each expert's rows by its gate and up (experts, 2 x outputs, inputs); return both products side by side, and gated. A tile
    is as wide as both parts of `weights` together. `kind` is the activation function's number in fused_projections.GATES."""
    count, columns, inner = weights.shape
    both, out = rows.new_empty(len(rows), columns), rows.new_empty(len(rows), columns // 2)
    left = TensorDescriptor.from_tensor(rows, [tile.tall, tile.deep])
    right = TensorDescriptor.from_tensor(weights.view(2 * count, columns // 2, inner), [2, tile.wide // 2, tile.deep])
    run: Any = _gated[(_programs(rows),)]
    run(
        left, right, both, out, shares, ends, count, columns // 2, inner, triton.next_power_of_2(count), tile.tall, tile.wide // 2,
        tile.deep, tile.flat, kind, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return both, out


def weight_tiles(shape: torch.Size, tile: Tile = FASTEST) -> int:
    """Return the number of tiles of the gradient of matrices (experts, outputs, inputs); 0 if they are not whole tiles."""
    count, outputs, columns = shape
    return 0 if outputs % tile.tall or columns % tile.wide else count * (outputs // tile.tall) * (columns // tile.wide)


def product_by_weights(left: Tensor, right: Tensor, ends: Tensor, tile: Tile = FASTEST) -> tuple[Tensor, Tensor]:
    """Return left^T right over the rows of each expert (experts, left's columns, right's columns), and the sum of squares of each tile.
    Each expert has a multiple of `tile.deep` rows."""
    out = left.new_empty(len(ends), left.shape[1], right.shape[1])
    squares = torch.empty(weight_tiles(out.shape, tile), device=left.device)
    a, b = (TensorDescriptor.from_tensor(x, [tile.deep, size]) for x, size in ((left, tile.tall), (right, tile.wide)))
    c = TensorDescriptor.from_tensor(out.flatten(0, 1), [tile.tall, tile.wide])
    run: Any = _by_weights[(_programs(left),)]
    run(
        a, b, c, squares, ends, len(ends), left.shape[1], right.shape[1], tile.tall, tile.wide, tile.deep, tile.flat,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, squares


def _programs(x: Tensor) -> int:
    """Return the grid: one program per multiprocessor, which has no room for a second one."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4
