"""Casts to 8 bits, in a tensor's own order and transposed: one scale per tensor, or one per row of what a product reads.

A scale is the largest absolute value of what it belongs to over the largest of the 8-bit type. A product sums over the columns of both its
factors, so with a scale per row, a tensor has one for each row in its own order, and one for each column transposed.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_OF_DTYPE = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
MIN_LARGEST_VALUE = 1e-12  # largest value of a tensor of zeros
PROGRAMS, AT_ONCE = 1056, 4096  # programs that look for the largest value of a tensor, and elements that each reads at a time
LOOK_ROWS, LOOK_COLUMNS = 64, 128  # tile that one program reads to find the largest value of every row and column
ROWS, COLUMNS = 128, 64  # tile of a cast: its transposed rows are 128 bytes


class Cast(NamedTuple):
    """An 8-bit tensor."""

    plain: Tensor  # (rows, columns); empty if it was not asked for
    turned: Tensor  # (columns, rows); empty if it was not asked for
    scale: Tensor  # the factor of the values of `plain`, or one for each of its rows
    turned_scale: Tensor  # the factor of the values of `turned`, or one for each of its rows


@triton.jit
def _largest(x, found, size, BLOCK: tl.constexpr):  # noqa: N803
    """Find the largest absolute value; that of each program is compared with `found`, which starts at zero."""
    most = tl.zeros((BLOCK,), tl.float32)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(size, step)):
        most = tl.maximum(most, tl.abs(tl.load(x + at, at < size, other=0.0).to(tl.float32)))
        at += step
    tl.atomic_max(found, tl.max(most, 0))


@triton.jit
def _largest_of_lines(x, by_row, by_column, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: N803
    """Find the largest absolute value of every row and every column; both start at zero."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.abs(tl.load(x + row[:, None] * columns + column[None, :], inside, other=0.0).to(tl.float32))
    tl.atomic_max(by_row + row, tl.max(value, 1), row < rows)
    tl.atomic_max(by_column + column, tl.max(value, 0), column < columns)


@triton.jit
def _cast(
    x, plain, turned, found, turned_found, scale, turned_scale, rows, columns, largest, least,
    PLAIN: tl.constexpr, TURNED: tl.constexpr, BY_ROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Cast a tile, in its own order and transposed; the first programs write the scales."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(x + row * columns + column, inside, other=0.0).to(tl.float32)
    if BY_ROW:
        known = row < (rows if PLAIN else 0)
        most = tl.maximum(tl.load(found + row, known, other=0.0), least)
        turned_most = tl.maximum(tl.load(turned_found + column, column < columns, other=0.0), least)
        if tl.program_id(1) == 0:
            tl.store(scale + row, most / largest, known)
        if tl.program_id(0) == 0:
            tl.store(turned_scale + column, turned_most / largest, column < columns)
    else:
        most = tl.maximum(tl.load(found), least)
        turned_most = most
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.store(scale, most / largest)
    if PLAIN:
        small = tl.minimum(tl.maximum(value * (largest / most), -largest), largest)
        tl.store(plain + row * columns + column, small.to(plain.dtype.element_ty), inside)
    if TURNED:
        small = tl.minimum(tl.maximum(value * (largest / turned_most), -largest), largest)
        at = tl.trans(column.to(tl.int64) * rows + row)
        tl.store(turned + at, tl.trans(small.to(turned.dtype.element_ty)), tl.trans(inside))


def cast(
    x: Tensor, dtype: torch.dtype, by_row: bool = False, plain: bool = True, turned: bool = True, scale: Tensor | None = None
) -> Cast:
    """Cast a matrix, with one scale or one `by_row`. A known scale, of `turned` alone, saves the pass that looks for it."""
    x = x.contiguous()
    found, turned_found = (scale * MAX_OF_DTYPE[dtype],) * 2 if scale is not None else _find_largest(x, by_row)
    made = Cast(
        x.new_empty(len(x) if plain else 0, x.shape[1], dtype=dtype),
        x.new_empty(x.shape[1], len(x) if turned else 0, dtype=dtype),
        one := torch.empty_like(found),
        torch.empty_like(turned_found) if by_row else one,
    )
    run: Any = _cast[(triton.cdiv(len(x), ROWS), triton.cdiv(x.shape[1], COLUMNS))]
    run(
        x, made.plain, made.turned, found, turned_found, made.scale, made.turned_scale, *x.shape, MAX_OF_DTYPE[dtype], MIN_LARGEST_VALUE,
        plain, turned, by_row, ROWS, COLUMNS,
    )  # fmt: skip
    return made


def _find_largest(x: Tensor, by_row: bool) -> tuple[Tensor, Tensor]:
    """Return the largest absolute value twice; or those of the rows, and those of the columns."""
    rows, columns = x.shape
    if by_row:
        found, turned_found = torch.zeros(rows + columns, device=x.device).split([rows, columns])
        look: Any = _largest_of_lines[(triton.cdiv(rows, LOOK_ROWS), triton.cdiv(columns, LOOK_COLUMNS))]
        look(x, found, turned_found, rows, columns, LOOK_ROWS, LOOK_COLUMNS)
        return found, turned_found
    found = torch.zeros((), device=x.device)
    look: Any = _largest[(min(PROGRAMS, triton.cdiv(x.numel(), AT_ONCE)),)]
    look(x, found, x.numel(), AT_ONCE)
    return found, found
