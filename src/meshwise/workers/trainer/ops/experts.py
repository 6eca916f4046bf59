"""Rows grouped by expert and multiplied by its matrices, without dropping a token: arranged, computed and combined by reads alone.

A choice is one expert of one token. Rows of an expert are neighbours and padded to a multiple of ALIGNED, as the grouped products of a
GPU require; the number of rows does not depend on the choices, so that a CUDA graph may hold everything.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
ALIGNED = 16
"""Rows of an expert on a GPU are a multiple of this: torch's grouped products read 16 bytes at a time, along rows in the backward pass."""


def uncompiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Leave a function out of compiled graphs, as it reads numbers on the host."""
    return cast(Any, torch.compiler.disable)(function)


class Arrangement(NamedTuple):
    """Where each choice is among the rows, and what each row holds."""

    places: Tensor
    """Row of each choice."""
    choices: Tensor
    """Choice in each row; the number of choices where a row is padding."""
    ends: Tensor
    """End of each expert's rows, 32 bits."""


def arrange(experts: Tensor, count: int) -> Arrangement:
    """Arrange choices, given as the expert of each, by expert; choices of one expert stay in order."""
    number, aligned = len(experts), ALIGNED if experts.is_cuda else 1
    order = experts.argsort(stable=True)
    loads = load_of(experts, count)
    padded = (loads + aligned - 1) // aligned * aligned
    ends = padded.cumsum(0)
    ordered = experts[order]
    # the n-th choice of an expert is n rows after the expert's first
    before = torch.arange(number, device=experts.device) - (loads.cumsum(0) - loads)[ordered]
    rows = (ends - padded)[ordered] + before
    places = torch.empty_like(order).scatter_(0, order, rows)
    size = number + (count * (aligned - 1) + aligned - 1) // aligned * aligned
    choices = torch.full((size,), number, dtype=order.dtype, device=order.device).scatter_(0, rows, order)
    return Arrangement(places, choices, ends.to(torch.int32))


def load_of(experts: Tensor, count: int) -> Tensor:
    """Return the number of choices of each expert. A comparison needs no atomics, and its size is known to the host."""
    return (experts[:, None] == torch.arange(count, device=experts.device)).sum(0)


def spread(x: Tensor, arrangement: Arrangement, chosen: int) -> Tensor:
    """Return the token of each row, zero where a row is padding; `chosen` choices per token."""
    return cast(Tensor, _Spread.apply(x, arrangement.places, arrangement.choices, chosen))


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, choices: Tensor, chosen: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.chosen = chosen
        return _padded(x)[choices // chosen]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        by_rows = outer[0]
        by_x = by_rows[places].unflatten(0, (-1, ctx.chosen)).float().sum(1).to(by_rows.dtype)
        return by_x, None, None, None


def combine(rows: Tensor, weights: Tensor, arrangement: Arrangement) -> Tensor:
    """Return the sum of each token's rows, times the weights (tokens, chosen) of its choices."""
    return cast(Tensor, _Combine.apply(rows, weights, arrangement.places, arrangement.choices))


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, places: Tensor, choices: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, places, choices)
        picked = rows[places].unflatten(0, weights.shape).float()
        return (picked * weights[..., None]).sum(1).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights, places, choices = ctx.saved_tensors
        by_y = outer[0]
        by_weights = (rows[places].unflatten(0, weights.shape).float() * by_y[:, None].float()).sum(-1)
        share = _padded(weights.flatten())[choices]
        by_rows = (_padded(by_y)[choices // weights.shape[1]].float() * share[:, None]).to(rows.dtype)
        return by_rows, by_weights.to(weights.dtype), None, None


def _padded(x: Tensor) -> Tensor:
    """Return x with one more row of zeros, which padding reads."""
    return torch.cat((x, x.new_zeros(1, *x.shape[1:])))


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply each expert's rows (rows, inputs) by its matrix of `weights` (experts, outputs, inputs)."""
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights.transpose(-2, -1), offs=ends)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return _product_by_product(rows, weights, ends)


@uncompiled
def _product_by_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply expert by expert, where there are no grouped products. It reads the loads on the host, which a compiled graph cannot."""
    bounds = [0, *ends.tolist()]
    parts = [F.linear(rows[first:last], weight) for weight, first, last in zip(weights, bounds, bounds[1:], strict=False)]
    return torch.cat(parts)
