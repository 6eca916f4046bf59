"""Rows grouped by expert and multiplied by its matrices, without dropping a token: arranged, computed and combined by reads alone.

A choice is one expert of one token. Rows of an expert are neighbours and padded to a multiple of EXPERT_ROWS_MULTIPLE, as the grouped
products of a GPU require; the number of rows does not depend on the choices, so that a CUDA graph may hold everything.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"),
}  # fmt: skip
EXPERT_ROWS_MULTIPLE = 64
"""Rows of an expert on a GPU are a multiple of this: products that give the weights' gradients add up this many at a time."""


def uncompiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Leave a function out of compiled graphs, as it reads numbers on the host."""
    return cast(Any, torch.compiler.disable)(function)


class Arrangement(NamedTuple):
    """Maps from choices to rows, and from rows to choices."""

    places: Tensor  # row of each choice
    choices: Tensor  # choice in each row; the number of choices where a row is padding
    ends: Tensor  # end of each expert's rows, 32 bits


def arrange(experts: Tensor, count: int, aligned: int = 0) -> Arrangement:
    """Arrange choices, given as the expert of each, by expert; choices of one expert stay in order. Every expert has a multiple of
    `aligned` rows; 0: what the products of this device need."""
    number, aligned = len(experts), aligned or (EXPERT_ROWS_MULTIPLE if experts.is_cuda else 1)
    size = number + (count * (aligned - 1) + aligned - 1) // aligned * aligned
    if experts.is_cuda:
        from meshwise.workers.trainer.ops.routing_kernels import arrange_choices

        return Arrangement(*arrange_choices(experts, count, size, aligned))
    order = experts.argsort(stable=True)
    loads = load_of(experts, count)
    padded = (loads + aligned - 1) // aligned * aligned
    ends = padded.cumsum(0)
    ordered = experts[order]
    # the n-th choice of an expert is n rows after the expert's first
    before = torch.arange(number, device=experts.device) - (loads.cumsum(0) - loads)[ordered]
    rows = (ends - padded)[ordered] + before
    places = torch.empty_like(order).scatter_(0, order, rows)
    choices = torch.full((size,), number, dtype=order.dtype, device=order.device).scatter_(0, rows, order)
    return Arrangement(places, choices, ends.to(torch.int32))


def load_of(experts: Tensor, count: int) -> Tensor:
    """Return the number of choices of each expert, given as the expert of each choice (..., choices). Its size is known to the host."""
    if experts.is_cuda:
        from meshwise.workers.trainer.ops.routing_kernels import count_choices

        return count_choices(experts.view(-1, experts.shape[-1]), count).sum(1).view(*experts.shape[:-1], count)
    return (experts[..., None] == torch.arange(count, device=experts.device)).sum(-2)


def best_of(scores: Tensor, chosen: int) -> Tensor:
    """Return the experts with the best scores of each token (tokens, experts), in no order that matters."""
    if scores.is_cuda:
        from meshwise.workers.trainer.ops.routing_kernels import best_experts

        return best_experts(scores, chosen)
    return scores.topk(chosen, sorted=False).indices


def spread(x: Tensor, arrangement: Arrangement, chosen: int) -> Tensor:
    """Return the token of each row, zero where a row is padding; `chosen` choices per token."""
    return cast(Tensor, _Spread.apply(x, arrangement.places, arrangement.choices, chosen))


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, choices: Tensor, chosen: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.chosen = chosen
        return _row_of_choices(x, places, choices, chosen)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return _sum_of_choices(outer[0], places, ctx.chosen), None, None, None


def combine(rows: Tensor, arrangement: Arrangement, chosen: int) -> Tensor:
    """Return the sum of each token's rows."""
    return cast(Tensor, _Combine.apply(rows, arrangement.places, arrangement.choices, chosen))


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, choices: Tensor, chosen: int) -> Tensor:
        ctx.save_for_backward(places, choices)
        ctx.chosen = chosen
        return _sum_of_choices(rows, places, chosen)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        places, choices = ctx.saved_tensors
        return _row_of_choices(outer[0], places, choices, ctx.chosen), None, None, None


def share_rows(weights: Tensor, arrangement: Arrangement) -> Tensor:
    """Return the weight (tokens, chosen) of the choice in each row, zero where a row is padding."""
    return cast(Tensor, _Shares.apply(weights, arrangement.places, arrangement.choices))


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, places: Tensor, choices: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = weights.shape
        return _padded(weights.flatten())[choices]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return outer[0][ctx.saved_tensors[0]].view(ctx.shape), None, None


def _row_of_choices(x: Tensor, places: Tensor, choices: Tensor, chosen: int) -> Tensor:
    """Return the token of the choice in each row, zeros for the choice after the last."""
    if x.is_cuda:
        from meshwise.workers.trainer.ops.expert_kernels import spread_rows

        return spread_rows(x, places, choices, chosen)
    return _padded(x)[choices // chosen]


def _sum_of_choices(rows: Tensor, places: Tensor, chosen: int) -> Tensor:
    if rows.is_cuda:
        from meshwise.workers.trainer.ops.expert_kernels import sum_rows

        return sum_rows(rows, places, chosen)
    return rows[places].unflatten(0, (-1, chosen)).float().sum(1).to(rows.dtype)


def router_logits(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weight^T in float32. A GPU multiplies 16-bit numbers exactly and adds up in float32, at a tenth of float32's time."""
    if x.is_cuda and x.dtype == weight.dtype == torch.bfloat16:
        from meshwise.workers.trainer.ops.expert_kernels import wide_product

        return wide_product(x, weight)
    return x.float() @ weight.float().T


def expert_outputs(
    rows: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ends: Tensor, activation: str, squares: Tensor | None = None
) -> Tensor:
    """Return the output of each row's expert, times the row's share. `squares` is that of `expert_kernels.expert_product`."""
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        from meshwise.workers.trainer.ops.expert_kernels import GATES, expert_product

        if activation in GATES:
            return expert_product(rows, gate_up, down, shares, ends, squares, activation)[0]
    gate, up = grouped_product(rows, gate_up, ends).chunk(2, -1)
    inner = ACTIVATE[activation](gate) * up * shares[:, None]
    return grouped_product(inner.to(rows.dtype), down, ends)


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
    return torch.cat((*parts, rows.new_zeros(len(rows) - bounds[-1], weights.shape[1])))  # padding after the last expert
