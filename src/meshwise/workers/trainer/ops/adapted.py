"""Products of frozen weights with low-rank adapters (arXiv:2106.09685): y = x W^T + (x a^T) b^T, without a gradient of W.

Adapters of several weights of one input are one: `a` has their rows one below another, and `b` is zero where a row of W has another
adapter, or none. Products as wide as the rank read and write activations alone, so that each is added by the product of W, in place.
Frozen weights are in 16 bits or in nf4 (`base`); torch.compile sees opaque operations, and a CUDA graph may hold them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.ops.nf4 import dequantize


def weight_of(base: list[Tensor], columns: int, dtype: torch.dtype) -> Tensor:
    """Return frozen weights one below another: stacked ones as they are, nf4 (packed, codes and scales of each) in `dtype`."""
    if base[0].dtype == torch.uint8:
        return dequantize(base, columns, dtype)
    if len(base) == 1:
        return base[0]
    from meshwise.workers.trainer.ops.fused_projections import whole_of

    return whole_of(base)


def rows_of(base: list[Tensor], columns: int) -> int:
    """Return the rows of frozen weights."""
    if base[0].dtype == torch.uint8:
        return sum(2 * packed.numel() for packed in base[::3]) // columns
    return sum(weight.shape[0] for weight in base)


def _forward(rows: Tensor, weight: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return y and t = x a^T for rows of x."""
    narrow = rows @ a.T
    if not a.shape[0]:
        return rows @ weight.T, narrow
    return (narrow @ b.T).addmm_(rows, weight.T), narrow


def _by_input(by_rows: Tensor, weight: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of t."""
    by_narrow = by_rows @ b
    if not a.shape[0]:
        return by_rows @ weight, by_narrow
    return (by_narrow @ a).addmm_(by_rows, weight), by_narrow


@torch.library.custom_op("meshwise::adapted_linear", mutates_args=())
def adapted_linear(x: Tensor, base: list[Tensor], a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return x W^T + t b^T, and t = x a^T for the backward pass; x is (..., columns), a (rank, columns), b (rows, rank)."""
    y, narrow = _forward(x.flatten(0, -2), weight_of(base, x.shape[-1], x.dtype), a, b)
    return y.unflatten(0, x.shape[:-1]), narrow


@adapted_linear.register_fake
def _(x: Tensor, base: list[Tensor], a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    count = x.numel() // x.shape[-1]
    return x.new_empty(*x.shape[:-1], rows_of(base, x.shape[-1])), x.new_empty(count, a.shape[0])


@torch.library.custom_op("meshwise::adapted_linear_backward", mutates_args=())
def _adapted_linear_backward(
    by_y: Tensor, x: Tensor, narrow: Tensor, base: list[Tensor], a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to x, a and b."""
    by_rows = by_y.flatten(0, -2)
    by_x, by_narrow = _by_input(by_rows, weight_of(base, x.shape[-1], x.dtype), a, b)
    return by_x.view(x.shape), by_narrow.T @ x.flatten(0, -2), by_rows.T @ narrow


@_adapted_linear_backward.register_fake
def _(by_y: Tensor, x: Tensor, narrow: Tensor, base: list[Tensor], a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), a.new_empty(a.shape), b.new_empty(b.shape)


def _adapted_linear_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, base, a, b = inputs
    ctx.adapted = a.shape[0] > 0
    ctx.rows, ctx.count = x.shape, len(base)
    ctx.save_for_backward(*((x, output[1]) if ctx.adapted else ()), a, b, *base)
    ctx.set_materialize_grads(False)


def _adapted_linear_gradients(ctx: Any, by_y: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    if not ctx.adapted:  # no product with x is needed, so x was not kept
        a, b, *base = ctx.saved_tensors
        return frozen_backward(by_y, base, ctx.rows[-1]), [None] * len(base), None, None
    x, narrow, a, b, *base = ctx.saved_tensors
    by_x, by_a, by_b = _adapted_linear_backward(by_y.contiguous(), x, narrow, base, a, b)
    return by_x, [None] * len(base), by_a, by_b


adapted_linear.register_autograd(_adapted_linear_gradients, setup_context=_adapted_linear_save)


@torch.library.custom_op("meshwise::frozen_backward", mutates_args=())
def frozen_backward(by_y: Tensor, base: list[Tensor], columns: int) -> Tensor:
    """Return the gradient of the input of a frozen product."""
    return by_y @ weight_of(base, columns, by_y.dtype)


@frozen_backward.register_fake
def _(by_y: Tensor, base: list[Tensor], columns: int) -> Tensor:
    return by_y.new_empty(*by_y.shape[:-1], columns)


@torch.library.custom_op("meshwise::adapted_gate", mutates_args=())
def adapted_gate(both: Tensor, base: list[Tensor], a: Tensor, b: Tensor, activation: str, keep: bool) -> tuple[Tensor, Tensor]:
    """Return h W^T + t b^T with h = activation(gate) x up for rows [gate up], and t = h a^T for the backward pass, empty unless `keep`. h
    is computed again in the backward pass, and t where it was not kept: then nothing but y leaves this product, and recomputing a block
    leaves it out."""
    inner = both.new_empty(both.numel() // both.shape[-1], both.shape[-1] // 2)
    _run_gate(both, inner, activation)
    y, narrow = _forward(inner, weight_of(base, inner.shape[-1], both.dtype), a, b)
    return y.unflatten(0, both.shape[:-1]), narrow if keep else narrow.new_empty(0)


def _run_gate(*inputs: Any) -> None:
    from meshwise.workers.trainer.ops.fused_projections import run_gate

    run_gate(*inputs)


@adapted_gate.register_fake
def _(both: Tensor, base: list[Tensor], a: Tensor, b: Tensor, activation: str, keep: bool) -> tuple[Tensor, Tensor]:
    kept = (both.numel() // both.shape[-1], a.shape[0]) if keep else (0,)
    return both.new_empty(*both.shape[:-1], rows_of(base, both.shape[-1] // 2)), both.new_empty(kept)


@torch.library.custom_op("meshwise::adapted_gate_backward", mutates_args=())
def _adapted_gate_backward(
    by_y: Tensor, both: Tensor, narrow: Tensor | None, base: list[Tensor], a: Tensor, b: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to [gate up], a and b."""
    by_rows = by_y.flatten(0, -2)
    inner, by_narrow = _by_input(by_rows, weight_of(base, both.shape[-1] // 2, both.dtype), a, b)
    by_both = torch.empty_like(both)
    _run_gate(both, inner, activation, by_both)  # `inner`, the gradient of h, becomes h
    return by_both, by_narrow.T @ inner, by_rows.T @ (inner @ a.T if narrow is None else narrow)


@_adapted_gate_backward.register_fake
def _(
    by_y: Tensor, both: Tensor, narrow: Tensor | None, base: list[Tensor], a: Tensor, b: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(both), a.new_empty(a.shape), b.new_empty(b.shape)


def _adapted_gate_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    both, base, a, b, ctx.activation, ctx.kept = inputs
    ctx.save_for_backward(both, a, b, *((output[1],) if ctx.kept else ()), *base)
    ctx.set_materialize_grads(False)


def _adapted_gate_gradients(ctx: Any, by_y: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    both, a, b, *rest = ctx.saved_tensors
    narrow, base = (rest[0], rest[1:]) if ctx.kept else (None, rest)
    by_both, by_a, by_b = _adapted_gate_backward(by_y.contiguous(), both, narrow, base, a, b, ctx.activation)
    return by_both, [None] * len(base), by_a, by_b, None, None


adapted_gate.register_autograd(_adapted_gate_gradients, setup_context=_adapted_gate_save)
