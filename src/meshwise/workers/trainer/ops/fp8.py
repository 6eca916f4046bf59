"""Products of 8-bit numbers: activations and weights in e4m3, gradients in e5m2, one scale per tensor, taken from its largest value.

A product reads both factors along the dimension that it sums over, so that each tensor is cast in its own order, transposed, or both, in
one pass. Only the transposed 8-bit copy of an input is kept for the backward pass, half the bytes of the input itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportPrivateUsage=false, reportPrivateImportUsage=false
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from meshwise.workers.trainer.ops.fused_projections import padded_rows, parts_of, run_gate, whole_of

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
"""Precision for activations and weights, range for gradients (arXiv:2209.05433)."""
LARGEST = {FORWARD: 448.0, BACKWARD: 57344.0}
LEAST = 1e-12
"""Largest value of a tensor of zeros."""
APART = 4
"""Floats from one kept scale to the next."""
FAST_BACKWARD = False
"""Whether products of gradients add up in the tensor cores' own precision, as those of the forward pass do: 2% faster for Llama 8B on an
H200 (18,484 tokens/s instead of 18,068), and a 125M Llama had the loss of bf16 after 500 steps even so (+0.01%)."""
PROGRAMS, AT_ONCE = 1056, 4096
"""Programs that look for the largest value, and elements that each reads at a time."""
ROWS, COLUMNS = 128, 64
"""Tile of a cast: its transposed rows are 128 bytes."""


class Cast(NamedTuple):
    """An 8-bit tensor."""

    plain: Tensor
    """(rows, columns); empty if it was not asked for."""
    turned: Tensor
    """(columns, rows); empty if it was not asked for."""
    scale: Tensor
    """The factor of its values."""


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
def _cast(
    x, plain, turned, found, scale, rows, columns, largest, least,
    PLAIN: tl.constexpr, TURNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Cast a tile, in its own order and transposed; the first program writes the scale."""
    most = tl.maximum(tl.load(found), least)
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(scale, most / largest)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(x + row * columns + column, inside, other=0.0).to(tl.float32) * (largest / most)
    value = tl.minimum(tl.maximum(value, -largest), largest)
    if PLAIN:
        tl.store(plain + row * columns + column, value.to(plain.dtype.element_ty), inside)
    if TURNED:
        small = tl.trans(value.to(turned.dtype.element_ty))
        tl.store(turned + tl.trans(column.to(tl.int64) * rows + row), small, tl.trans(inside))


def cast(x: Tensor, dtype: torch.dtype, plain: bool = True, turned: bool = True, scale: Tensor | None = None) -> Cast:
    """Cast a matrix. A known scale saves the pass that looks for it."""
    x = x.contiguous()
    rows, columns = x.shape
    found = torch.zeros((), device=x.device) if scale is None else scale * LARGEST[dtype]
    if scale is None:
        look: Any = _largest[(min(PROGRAMS, triton.cdiv(x.numel(), AT_ONCE)),)]
        look(x, found, x.numel(), AT_ONCE)
    made = Cast(
        x.new_empty(rows if plain else 0, columns, dtype=dtype),
        x.new_empty(columns, rows if turned else 0, dtype=dtype),
        torch.empty((), device=x.device),
    )
    run: Any = _cast[(triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))]
    run(x, made.plain, made.turned, found, made.scale, rows, columns, LARGEST[dtype], LEAST, plain, turned, ROWS, COLUMNS)
    return made


def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, fast: bool = True) -> Tensor:
    """Return a b^T in bfloat16, for 8-bit a (rows, inner) and b (columns, inner)."""
    return torch._scaled_mm(a, b.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


def kept(*scales: Tensor) -> Tensor:
    """Return scales for the backward pass, one per row: products read them at multiples of 16 bytes alone."""
    return torch.stack(scales)[:, None].repeat(1, APART)


@torch.library.custom_op("meshwise::fp8_linear", mutates_args=())
def fp8_linear(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Multiply x (..., columns) by stacked weights in 8 bits; return the products, x transposed in 8 bits, and both scales."""
    ours = cast(x.flatten(0, -2), FORWARD)
    theirs = cast(whole_of(weights), FORWARD, turned=False)
    y = product(ours.plain, theirs.plain, ours.scale, theirs.scale)
    return y.unflatten(0, x.shape[:-1]).to(x.dtype), ours.turned, kept(ours.scale, theirs.scale)


@fp8_linear.register_fake
def _(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    return (
        x.new_empty(*x.shape[:-1], padded_rows(weights)),
        x.new_empty(columns, rows, dtype=FORWARD),
        x.new_empty(2, APART, dtype=torch.float32),
    )


@torch.library.custom_op("meshwise::fp8_linear_backward", mutates_args=())
def _fp8_linear_backward(by_y: Tensor, turned: Tensor, scales: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to x, and to the stacked weights."""
    whole = whole_of(weights)
    grad = cast(by_y.flatten(0, -2), BACKWARD)
    theirs = cast(whole, FORWARD, plain=False, scale=scales[1, 0])
    by_x = product(grad.plain, theirs.turned, grad.scale, scales[1, 0], FAST_BACKWARD)
    by_weight = product(grad.turned, turned, grad.scale, scales[0, 0], FAST_BACKWARD)
    return by_x.unflatten(0, by_y.shape[:-1]).to(by_y.dtype), by_weight.to(whole.dtype)


@_fp8_linear_backward.register_fake
def _(by_y: Tensor, turned: Tensor, scales: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    columns = turned.shape[0]
    return by_y.new_empty(*by_y.shape[:-1], columns), weights[0].new_empty(by_y.shape[-1], columns)


def _fp8_linear_save(ctx: Any, inputs: tuple[Tensor, list[Tensor]], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[1])
    ctx.set_materialize_grads(False)


def _fp8_linear_gradients(ctx: Any, by_y: Tensor, *_: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    turned, scales, *weights = ctx.saved_tensors
    by_x, by_weight = _fp8_linear_backward(by_y, turned, scales, weights)
    return by_x, parts_of(by_weight, weights)


fp8_linear.register_autograd(_fp8_linear_gradients, setup_context=_fp8_linear_save)


@torch.library.custom_op("meshwise::fp8_gated_product", mutates_args=())
def fp8_gated_product(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return down (a(gate x) * up x) in 8 bits; and for the backward pass both products, x transposed, and the four scales."""
    rows = x.flatten(0, -2)
    ours, wide = cast(rows, FORWARD), cast(whole_of([gate, up]), FORWARD, turned=False)
    both = product(ours.plain, wide.plain, ours.scale, wide.scale).to(x.dtype)
    inner = both.new_empty(len(both), gate.shape[0])
    run_gate(both, inner, activation)
    middle, narrow = cast(inner, FORWARD, turned=False), cast(down, FORWARD, turned=False)
    y = product(middle.plain, narrow.plain, middle.scale, narrow.scale).to(x.dtype)
    scales = kept(ours.scale, wide.scale, middle.scale, narrow.scale)
    return y.unflatten(0, x.shape[:-1]), both, ours.turned, scales


@fp8_gated_product.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x.numel() // x.shape[-1], x.shape[-1]
    both, turned = x.new_empty(rows, 2 * gate.shape[0]), x.new_empty(columns, rows, dtype=FORWARD)
    return x.new_empty(*x.shape[:-1], down.shape[0]), both, turned, x.new_empty(4, APART, dtype=torch.float32)


@torch.library.custom_op("meshwise::fp8_gated_product_backward", mutates_args=())
def _fp8_gated_product_backward(
    by_y: Tensor, both: Tensor, turned: Tensor, scales: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to x, the stacked gate and up, and down."""
    whole = whole_of([gate, up])
    grad = cast(by_y.flatten(0, -2), BACKWARD)
    narrow = cast(down, FORWARD, plain=False, scale=scales[3, 0])
    between = product(grad.plain, narrow.turned, grad.scale, scales[3, 0], FAST_BACKWARD).to(both.dtype)
    by_both = torch.empty_like(both)
    run_gate(both, between, activation, by_both)
    middle = cast(between, FORWARD, plain=False, scale=scales[2, 0])
    by_down = product(grad.turned, middle.turned, grad.scale, scales[2, 0], FAST_BACKWARD)
    del between, middle, narrow
    grad = cast(by_both, BACKWARD)
    wide = cast(whole, FORWARD, plain=False, scale=scales[1, 0])
    by_x = product(grad.plain, wide.turned, grad.scale, scales[1, 0], FAST_BACKWARD)
    by_weight = product(grad.turned, turned, grad.scale, scales[0, 0], FAST_BACKWARD)
    return by_x.unflatten(0, by_y.shape[:-1]).to(by_y.dtype), by_weight.to(whole.dtype), by_down.to(down.dtype)


@_fp8_gated_product_backward.register_fake
def _(
    by_y: Tensor, both: Tensor, turned: Tensor, scales: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    columns = turned.shape[0]
    return (
        by_y.new_empty(*by_y.shape[:-1], columns),
        gate.new_empty(2 * gate.shape[0], columns),
        down.new_empty(down.shape),
    )


def _fp8_gated_product_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, gate, up, down, ctx.activation = inputs
    ctx.save_for_backward(*output[1:], gate, up, down)
    ctx.set_materialize_grads(False)


def _fp8_gated_product_gradients(ctx: Any, by_y: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    both, turned, scales, gate, up, down = ctx.saved_tensors
    by_x, by_weight, by_down = _fp8_gated_product_backward(by_y, both, turned, scales, gate, up, down, ctx.activation)
    return by_x, *parts_of(by_weight, [gate, up]), by_down, None


fp8_gated_product.register_autograd(_fp8_gated_product_gradients, setup_context=_fp8_gated_product_save)
