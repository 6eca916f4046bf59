"""Products of 8-bit numbers: one scale per tensor, with activations and weights in e4m3 and gradients in e5m2; or one per row, all in e4m3.

A product reads both factors along the dimension that it sums over, so that each tensor is cast in its own order, transposed, or both, in
one pass. Only the transposed 8-bit copy of an input is kept for the backward pass, half the bytes of the input itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.ops.fp8_casts import cast
from meshwise.workers.trainer.ops.fused_projections import padded_rows, parts_of, run_gate, whole_of

FORWARD = torch.float8_e4m3fn
BACKWARD = {False: torch.float8_e5m2, True: torch.float8_e4m3fn}
"""Type of gradients: range where one scale is for all of a tensor (arXiv:2209.05433), precision where each row has its own."""
SCALE_STRIDE = 4  # floats from one kept scale to the next
FAST_BACKWARD = False
"""Whether products of gradients add up in the tensor cores' own precision, as those of the forward pass do: 2% faster for Llama 8B on an
H200 (18,484 tokens/s instead of 18,068), and a 125M Llama had the loss of bf16 after 500 steps even so (+0.01%)."""


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, fast: bool = True) -> Tensor:
    """Return a b^T in bfloat16, for 8-bit a (rows, inner) and b (columns, inner), each with one scale or one per row."""
    if scale_a.ndim:
        scale_a, scale_b = scale_a[:, None], scale_b[None]
    return torch._scaled_mm(a, b.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


def kept(*scales: Tensor) -> Tensor:
    """Pack scales for the backward pass; products require each at a multiple of 16 bytes."""
    return torch.cat([scale if scale.ndim else scale.expand(SCALE_STRIDE) for scale in scales])


def kept_lengths(by_row: bool, *rows: int) -> list[int]:
    """Return the number of scales packed per tensor."""
    return list(rows) if by_row else [SCALE_STRIDE] * len(rows)


def kept_scales(scales: Tensor, by_row: bool, *rows: int) -> list[Tensor]:
    """Split scales packed by `kept`."""
    return [part if by_row else part[0] for part in scales.split(kept_lengths(by_row, *rows))]


@torch.library.custom_op("meshwise::fp8_linear", mutates_args=())
def fp8_linear(x: Tensor, weights: list[Tensor], by_row: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply x (..., columns) by stacked weights in 8 bits; return the products, x transposed in 8 bits, and both scales."""
    ours = cast(x.flatten(0, -2), FORWARD, by_row)
    theirs = cast(whole_of(weights), FORWARD, by_row, turned=False)
    y = product(ours.plain, theirs.plain, ours.scale, theirs.scale)
    return y.unflatten(0, x.shape[:-1]).to(x.dtype), ours.turned, kept(ours.turned_scale, theirs.turned_scale)


@fp8_linear.register_fake
def _(x: Tensor, weights: list[Tensor], by_row: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    return (
        x.new_empty(*x.shape[:-1], padded_rows(weights)),
        x.new_empty(columns, rows, dtype=FORWARD),
        x.new_empty(sum(kept_lengths(by_row, columns, columns)), dtype=torch.float32),
    )


@torch.library.custom_op("meshwise::fp8_linear_backward", mutates_args=())
def _fp8_linear_backward(
    by_y: Tensor, turned: Tensor, scales: Tensor, weights: list[Tensor], by_row: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to x, and to the stacked weights."""
    whole, columns = whole_of(weights), len(turned)
    of_x, of_weight = kept_scales(scales, by_row, columns, columns)
    grad = cast(by_y.flatten(0, -2), BACKWARD[by_row], by_row)
    theirs = cast(whole, FORWARD, by_row, plain=False, scale=of_weight)
    by_x = product(grad.plain, theirs.turned, grad.scale, of_weight, FAST_BACKWARD)
    by_weight = product(grad.turned, turned, grad.turned_scale, of_x, FAST_BACKWARD)
    return by_x.unflatten(0, by_y.shape[:-1]).to(by_y.dtype), by_weight.to(whole.dtype)


@_fp8_linear_backward.register_fake
def _(by_y: Tensor, turned: Tensor, scales: Tensor, weights: list[Tensor], by_row: bool) -> tuple[Tensor, Tensor]:
    columns = turned.shape[0]
    return by_y.new_empty(*by_y.shape[:-1], columns), weights[0].new_empty(by_y.shape[-1], columns)


def _fp8_linear_save(ctx: Any, inputs: tuple[Tensor, list[Tensor], bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, weights, ctx.by_row = inputs
    ctx.save_for_backward(*output[1:], *weights)
    ctx.set_materialize_grads(False)


def _fp8_linear_gradients(ctx: Any, by_y: Tensor, *_: Tensor | None) -> tuple[Tensor, list[Tensor], None]:
    turned, scales, *weights = ctx.saved_tensors
    by_x, by_weight = _fp8_linear_backward(by_y, turned, scales, weights, ctx.by_row)
    return by_x, parts_of(by_weight, weights), None


fp8_linear.register_autograd(_fp8_linear_gradients, setup_context=_fp8_linear_save)


@torch.library.custom_op("meshwise::fp8_gated_product", mutates_args=())
def fp8_gated_product(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str, by_row: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return down (a(gate x) * up x) in 8 bits; and for the backward pass both products, x transposed, and the four scales."""
    rows = x.flatten(0, -2)
    ours, wide = cast(rows, FORWARD, by_row), cast(whole_of([gate, up]), FORWARD, by_row, turned=False)
    both = product(ours.plain, wide.plain, ours.scale, wide.scale).to(x.dtype)
    inner = both.new_empty(len(both), gate.shape[0])
    run_gate(both, inner, activation)
    middle, narrow = cast(inner, FORWARD, by_row, turned=False), cast(down, FORWARD, by_row, turned=False)
    y = product(middle.plain, narrow.plain, middle.scale, narrow.scale).to(x.dtype)
    scales = kept(*(one.turned_scale for one in (ours, wide, middle, narrow)))
    return y.unflatten(0, x.shape[:-1]), both, ours.turned, scales


@fp8_gated_product.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str, by_row: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns, width = x.numel() // x.shape[-1], x.shape[-1], gate.shape[0]
    both, turned = x.new_empty(rows, 2 * width), x.new_empty(columns, rows, dtype=FORWARD)
    scales = x.new_empty(sum(kept_lengths(by_row, columns, columns, width, width)), dtype=torch.float32)
    return x.new_empty(*x.shape[:-1], down.shape[0]), both, turned, scales


@torch.library.custom_op("meshwise::fp8_gated_product_backward", mutates_args=())
def _fp8_gated_product_backward(
    by_y: Tensor, both: Tensor, turned: Tensor, scales: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str,
    by_row: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients with respect to x, the stacked gate and up, and down."""
    whole, columns, width = whole_of([gate, up]), len(turned), len(gate)
    of_x, of_wide, of_middle, of_narrow = kept_scales(scales, by_row, columns, columns, width, width)
    grad = cast(by_y.flatten(0, -2), BACKWARD[by_row], by_row)
    narrow = cast(down, FORWARD, by_row, plain=False, scale=of_narrow)
    between = product(grad.plain, narrow.turned, grad.scale, of_narrow, FAST_BACKWARD).to(both.dtype)
    by_both = torch.empty_like(both)
    run_gate(both, between, activation, by_both)
    middle = cast(between, FORWARD, by_row, plain=False, scale=of_middle)
    by_down = product(grad.turned, middle.turned, grad.turned_scale, of_middle, FAST_BACKWARD)
    del between, middle, narrow
    grad = cast(by_both, BACKWARD[by_row], by_row)
    wide = cast(whole, FORWARD, by_row, plain=False, scale=of_wide)
    by_x = product(grad.plain, wide.turned, grad.scale, of_wide, FAST_BACKWARD)
    by_weight = product(grad.turned, turned, grad.turned_scale, of_x, FAST_BACKWARD)
    return by_x.unflatten(0, by_y.shape[:-1]).to(by_y.dtype), by_weight.to(whole.dtype), by_down.to(down.dtype)


@_fp8_gated_product_backward.register_fake
def _(
    by_y: Tensor, both: Tensor, turned: Tensor, scales: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str,
    by_row: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    columns = turned.shape[0]
    return (by_y.new_empty(*by_y.shape[:-1], columns), gate.new_empty(2 * gate.shape[0], columns), down.new_empty(down.shape))


def _fp8_gated_product_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, gate, up, down, ctx.activation, ctx.by_row = inputs
    ctx.save_for_backward(*output[1:], gate, up, down)
    ctx.set_materialize_grads(False)


def _fp8_gated_product_gradients(ctx: Any, by_y: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    both, turned, scales, gate, up, down = ctx.saved_tensors
    by_x, by_weight, by_down = _fp8_gated_product_backward(by_y, both, turned, scales, gate, up, down, ctx.activation, ctx.by_row)
    return by_x, *parts_of(by_weight, [gate, up]), by_down, None, None


fp8_gated_product.register_autograd(_fp8_gated_product_gradients, setup_context=_fp8_gated_product_save)
