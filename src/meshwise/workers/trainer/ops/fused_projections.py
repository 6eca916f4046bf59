"""Projections of one input as one product, with a kernel for the gate of a feed-forward after it: fewer, fuller GPU launches.

Weights keep their names and are stacked in one storage (`stack`), so that the fused weight is a view of them and its gradient is split
into theirs. torch.compile sees opaque operations with known shapes, and a CUDA graph may hold them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FUSED_ROWS_MULTIPLE = 16
"""A fused weight is padded with rows of zeros to a multiple of this, as the tensor cores read them; TTT's kernels rely on it."""
ELEMENTS_PER_PROGRAM = 1024  # elements that one program of the kernels here processes


def needs_no_padding(weights: list[Tensor]) -> bool:
    """Return whether the stacked weights have a multiple of FUSED_ROWS_MULTIPLE rows."""
    return sum(_rows(weights)) == padded_rows(weights)


def stack(weights: list[Tensor]) -> None:
    """Move weights (rows..., columns) into one storage, one below another, padded with rows of zeros."""
    counts = _rows(weights)
    whole = weights[0].new_zeros(padded_rows(weights), weights[0].shape[-1])
    for weight, part in zip(weights, whole.split([*counts, len(whole) - sum(counts)]), strict=False):
        weight.data = part.view(weight.shape).copy_(weight.detach())


def _rows(weights: list[Tensor]) -> list[int]:
    return [weight.numel() // weight.shape[-1] for weight in weights]


def padded_rows(weights: list[Tensor]) -> int:
    """Return the rows of the stacked weights."""
    return -(-sum(_rows(weights)) // FUSED_ROWS_MULTIPLE) * FUSED_ROWS_MULTIPLE


def whole_of(weights: list[Tensor]) -> Tensor:
    """Return the fused weight: a view of the first one's storage, or a copy if the others do not follow it there."""
    rows, columns = padded_rows(weights), weights[0].shape[-1]
    memory, start = weights[0].untyped_storage(), weights[0].storage_offset()
    places = [start + columns * sum(_rows(weights[:i])) for i in range(len(weights))]
    found = [(weight.untyped_storage().data_ptr(), weight.storage_offset()) for weight in weights]
    if found == [(memory.data_ptr(), at) for at in places]:
        return weights[0].as_strided((rows, columns), (columns, 1))
    parts = [weight.flatten(0, -2) for weight in weights]
    return torch.cat([*parts, parts[0].new_zeros(rows - sum(_rows(weights)), columns)])


def parts_of(whole: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Split the fused weight's gradient into the gradients of its weights."""
    parts = whole.split([*_rows(weights), len(whole) - sum(_rows(weights))])
    return [part.view(weight.shape) for weight, part in zip(weights, parts, strict=False)]


@torch.library.custom_op("meshwise::fused_linear", mutates_args=())
def fused_linear(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Multiply x (..., columns) by stacked weights; return the products of their rows side by side."""
    return x @ whole_of(weights).T


@fused_linear.register_fake
def _(x: Tensor, weights: list[Tensor]) -> Tensor:
    return x.new_empty(*x.shape[:-1], padded_rows(weights))


@torch.library.custom_op("meshwise::fused_linear_backward", mutates_args=())
def _fused_linear_backward(by_out: Tensor, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    by_rows = by_out.flatten(0, -2)
    return by_out @ whole_of(weights), by_rows.T @ x.flatten(0, -2)


@_fused_linear_backward.register_fake
def _(by_out: Tensor, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(by_out.shape[-1], x.shape[-1])


def _fused_linear_save(ctx: Any, inputs: tuple[Tensor, list[Tensor]], output: Tensor) -> None:
    x, weights = inputs
    ctx.save_for_backward(x, *weights)


def _fused_linear_gradients(ctx: Any, by_out: Tensor) -> tuple[Tensor, list[Tensor]]:
    x, *weights = ctx.saved_tensors
    by_x, by_whole = _fused_linear_backward(by_out, x, weights)
    return by_x, parts_of(by_whole, weights)


fused_linear.register_autograd(_fused_linear_gradients, setup_context=_fused_linear_save)


GATES = {"silu": 0, "gelu_tanh": 1}  # activation functions that the kernel computes


@triton.jit
def activation_of(g, KIND: tl.constexpr):  # noqa: N803
    """Return s with a(g) = g s, and the derivative a'(g); a is silu or gelu by tanh, as in `_gate`."""
    if KIND == 0:
        s = tl.sigmoid(g)
        slope = s * (1 + g * (1 - s))
    else:
        s = tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
        slope = s * (1 + g * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * g * g))
    return s, slope


@triton.jit
def _gate(both, out, by_both, width, BLOCK: tl.constexpr, BACK: tl.constexpr, KIND: tl.constexpr):  # noqa: N803
    """Compute h = a(g) u for rows [g u]. If BACK, `out` holds e, the gradient of h: writes [e u a'(g), e a(g)], and h over e. a is silu,
    g s with s = sigmoid(g); or gelu (arXiv:1606.08415), g s with s = (1 + tanh t) / 2 = sigmoid(2 t) and t = sqrt(2 / pi) (g + 0.044715
    g^3)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(both + 2 * row * width + at, inside).to(tl.float32)
    u = tl.load(both + (2 * row + 1) * width + at, inside).to(tl.float32)
    s, slope = activation_of(g, KIND)
    if BACK:
        e = tl.load(out + row * width + at, inside).to(tl.float32)
        tl.store(by_both + 2 * row * width + at, (e * u * slope).to(both.dtype.element_ty), inside)
        tl.store(by_both + (2 * row + 1) * width + at, (e * g * s).to(both.dtype.element_ty), inside)
    tl.store(out + row * width + at, (g * s * u).to(both.dtype.element_ty), inside)


def run_gate(both: Tensor, out: Tensor, activation: str, by_both: Tensor | None = None) -> None:
    """Run forward; or, if `by_both` is given, write the gradient of `both` there from out's gradient, and overwrite that with out. Each
    element is read before it is written."""
    width = out.shape[-1]
    run: Any = _gate[(out.numel() // width, triton.cdiv(width, ELEMENTS_PER_PROGRAM))]
    run(both, out, both if by_both is None else by_both, width, ELEMENTS_PER_PROGRAM, by_both is not None, GATES[activation])


@torch.library.custom_op("meshwise::gated_product", mutates_args=())
def gated_product(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return down (a(gate x) * up x) for x (..., hidden) and stacked gate and up, plus both products for the backward pass. One operation,
    so that the term in brackets, which would add half as much memory again, is recomputed in the backward pass."""
    both = x @ whole_of([gate, up]).T
    out = x.new_empty(*x.shape[:-1], gate.shape[0])
    run_gate(both, out, activation)
    return out @ down.T, both


@gated_product.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:-1], down.shape[0]), x.new_empty(*x.shape[:-1], 2 * gate.shape[0])


@torch.library.custom_op("meshwise::gated_product_backward", mutates_args=())
def _gated_product_backward(
    by_y: Tensor, x: Tensor, both: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to x, the fused gate and up, and down."""
    between = by_y @ down
    by_both = torch.empty_like(both)
    run_gate(both, between, activation, by_both)
    by_down = by_y.flatten(0, -2).T @ between.flatten(0, -2)
    del between
    by_weight = by_both.flatten(0, -2).T @ x.flatten(0, -2)
    return by_both @ whole_of([gate, up]), by_weight, by_down


@_gated_product_backward.register_fake
def _(
    by_y: Tensor, x: Tensor, both: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(2 * gate.shape[0], x.shape[-1]), down.new_empty(down.shape)


def _gated_product_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *weights, ctx.activation = inputs
    ctx.save_for_backward(x, output[1], *weights)
    ctx.set_materialize_grads(False)  # nobody else uses the products: their zero gradients would take as much memory again


def _gated_product_gradients(ctx: Any, by_y: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, both, gate, up, down = ctx.saved_tensors
    by_x, by_weight, by_down = _gated_product_backward(by_y, x, both, gate, up, down, ctx.activation)
    return by_x, *parts_of(by_weight, [gate, up]), by_down, None


gated_product.register_autograd(_gated_product_gradients, setup_context=_gated_product_save)
