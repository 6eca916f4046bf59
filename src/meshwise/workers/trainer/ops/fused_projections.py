"""Projections of one input as one product, followed by one kernel each for rotary positions and SwiGLU: fewer, fuller GPU launches.

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

ROWS = 16
"""A fused weight is padded with rows of zeros to a multiple of this, as the tensor cores read them; TTT's kernels rely on it."""
AT_ONCE = 1024
"""Elements that one program of the kernels here processes."""


def needs_no_padding(weights: list[Tensor]) -> bool:
    """Return whether the stacked weights have a multiple of ROWS rows."""
    return sum(_rows(weights)) == _padded(weights)


def stack(weights: list[Tensor]) -> None:
    """Move weights (rows..., columns) into one storage, one below another, padded with rows of zeros."""
    counts = _rows(weights)
    whole = weights[0].new_zeros(_padded(weights), weights[0].shape[-1])
    for weight, part in zip(weights, whole.split([*counts, len(whole) - sum(counts)]), strict=False):
        weight.data = part.view(weight.shape).copy_(weight.detach())


def _rows(weights: list[Tensor]) -> list[int]:
    return [weight.numel() // weight.shape[-1] for weight in weights]


def _padded(weights: list[Tensor]) -> int:
    return -(-sum(_rows(weights)) // ROWS) * ROWS


def _whole(weights: list[Tensor]) -> Tensor:
    """Return the fused weight: a view of the first one's storage, or a copy if the others do not follow it there."""
    rows, columns = _padded(weights), weights[0].shape[-1]
    memory, start = weights[0].untyped_storage(), weights[0].storage_offset()
    places = [start + columns * sum(_rows(weights[:i])) for i in range(len(weights))]
    if [(weight.untyped_storage().data_ptr(), weight.storage_offset()) for weight in weights] == [
        (memory.data_ptr(), at) for at in places
    ]:
        return weights[0].as_strided((rows, columns), (columns, 1))
    parts = [weight.flatten(0, -2) for weight in weights]
    return torch.cat([*parts, parts[0].new_zeros(rows - sum(_rows(weights)), columns)])


def _parts(whole: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Split the fused weight's gradient into the gradients of its weights."""
    parts = whole.split([*_rows(weights), len(whole) - sum(_rows(weights))])
    return [part.view(weight.shape) for weight, part in zip(weights, parts, strict=False)]


@torch.library.custom_op("meshwise::fused_linear", mutates_args=())
def fused_linear(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Multiply x (..., columns) by stacked weights; return the products of their rows side by side."""
    return x @ _whole(weights).T


@fused_linear.register_fake
def _(x: Tensor, weights: list[Tensor]) -> Tensor:
    return x.new_empty(*x.shape[:-1], _padded(weights))


@torch.library.custom_op("meshwise::fused_linear_backward", mutates_args=())
def _fused_linear_backward(by_out: Tensor, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    by_rows = by_out.flatten(0, -2)
    return by_out @ _whole(weights), by_rows.T @ x.flatten(0, -2)


@_fused_linear_backward.register_fake
def _(by_out: Tensor, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(by_out.shape[-1], x.shape[-1])


def _fused_linear_save(ctx: Any, inputs: tuple[Tensor, list[Tensor]], output: Tensor) -> None:
    x, weights = inputs
    ctx.save_for_backward(x, *weights)


def _fused_linear_gradients(ctx: Any, by_out: Tensor) -> tuple[Tensor, list[Tensor]]:
    x, *weights = ctx.saved_tensors
    by_x, by_whole = _fused_linear_backward(by_out, x, weights)
    return by_x, _parts(by_whole, weights)


fused_linear.register_autograd(_fused_linear_gradients, setup_context=_fused_linear_save)


@triton.jit
def _rotate_heads(
    rows, q, k, v, rotation, seq,
    HEADS: tl.constexpr, SHARED: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, BACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute the heads of one token, GROUP at a time: q and k = x cos + x' sin, where x' has the halves of a head swapped, and v = x.

    If BACK, from their gradients: x = q cos - q' sin, since both halves of a head have the same cosines and sines of opposite sign.
    """
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, HEAD)[None, :]
    other = (lane + HEAD // 2) % HEAD
    cos = tl.load(rotation + (token % seq) * HEAD + lane)
    sin = tl.load(rotation + (seq + token % seq) * HEAD + lane)
    total: tl.constexpr = HEADS + 2 * SHARED
    for first in range(0, total, GROUP):
        head = first + tl.arange(0, GROUP)[:, None]
        in_q, in_k, in_v = head < HEADS, (head >= HEADS) & (head < HEADS + SHARED), (head >= HEADS + SHARED) & (head < total)
        joint = rows + (token * total + head) * HEAD
        of_q = q + (token * HEADS + head) * HEAD
        of_k = k + (token * SHARED + head - HEADS) * HEAD
        of_v = v + (token * SHARED + head - HEADS - SHARED) * HEAD
        if BACK:
            x = (
                tl.load(of_q + lane, in_q, other=0.0)
                + tl.load(of_k + lane, in_k, other=0.0)
                + tl.load(of_v + lane, in_v, other=0.0)
            )
            y = tl.load(of_q + other, in_q, other=0.0) + tl.load(of_k + other, in_k, other=0.0)
            rotated = x.to(tl.float32) * cos - y.to(tl.float32) * sin
            tl.store(joint + lane, tl.where(in_v, x, rotated.to(x.dtype)), head < total)
        else:
            x = tl.load(joint + lane, head < total, other=0.0)
            y = tl.load(joint + other, in_q | in_k, other=0.0)
            rotated = (x.to(tl.float32) * cos + y.to(tl.float32) * sin).to(x.dtype)
            tl.store(of_q + lane, rotated, in_q)
            tl.store(of_k + lane, rotated, in_k)
            tl.store(of_v + lane, x, in_v)


def _run_rotate_heads(rows: Tensor, q: Tensor, k: Tensor, v: Tensor, rotation: Tensor, back: bool) -> None:
    (seq, heads, size), shared = q.shape[-3:], k.shape[-2]
    run: Any = _rotate_heads[(q.numel() // (heads * size),)]
    run(rows, q, k, v, rotation, seq, heads, shared, size, max(1, AT_ONCE // size), back)


@torch.library.custom_op("meshwise::split_and_rotate", mutates_args=())
def split_and_rotate(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows into queries, keys and values (batch, seq, heads, head_dim), with `shared` heads for keys and values.

    Queries and keys are rotated by `rotation` (2, seq, head_dim): cosines, and sines that are negative in the first half.
    """
    q, k, v = _empty_heads(rows, rotation, shared)
    _run_rotate_heads(rows.contiguous(), q, k, v, rotation, back=False)
    return q, k, v


def _empty_heads(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    size = rotation.shape[-1]
    heads = rows.shape[-1] // size - 2 * shared
    q, k, v = (rows.new_empty(*rows.shape[:-1], count, size) for count in (heads, shared, shared))
    return q, k, v


@split_and_rotate.register_fake
def _(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_heads(rows, rotation, shared)


@torch.library.custom_op("meshwise::split_and_rotate_backward", mutates_args=())
def _split_and_rotate_backward(by_q: Tensor, by_k: Tensor, by_v: Tensor, rotation: Tensor) -> Tensor:
    by_rows = by_q.new_empty(*by_q.shape[:-2], (by_q.shape[-2] + 2 * by_k.shape[-2]) * by_q.shape[-1])
    _run_rotate_heads(by_rows, by_q.contiguous(), by_k.contiguous(), by_v.contiguous(), rotation, back=True)
    return by_rows


@_split_and_rotate_backward.register_fake
def _(by_q: Tensor, by_k: Tensor, by_v: Tensor, rotation: Tensor) -> Tensor:
    return by_q.new_empty(*by_q.shape[:-2], (by_q.shape[-2] + 2 * by_k.shape[-2]) * by_q.shape[-1])


def _split_and_rotate_save(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1])


def _split_and_rotate_gradients(ctx: Any, by_q: Tensor, by_k: Tensor, by_v: Tensor) -> tuple[Tensor, None, None]:
    return _split_and_rotate_backward(by_q, by_k, by_v, *ctx.saved_tensors), None, None


split_and_rotate.register_autograd(_split_and_rotate_gradients, setup_context=_split_and_rotate_save)


@triton.jit
def _gate(both, out, by_both, width, BLOCK: tl.constexpr, BACK: tl.constexpr):  # noqa: N803
    """Compute h = silu(g) u for rows [g u]. If BACK, `out` holds e, the gradient of h: writes [e u silu'(g), e silu(g)], and h over e."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(both + 2 * row * width + at, inside).to(tl.float32)
    u = tl.load(both + (2 * row + 1) * width + at, inside).to(tl.float32)
    s = tl.sigmoid(g)
    if BACK:
        e = tl.load(out + row * width + at, inside).to(tl.float32)
        tl.store(by_both + 2 * row * width + at, (e * u * s * (1 + g * (1 - s))).to(both.dtype.element_ty), inside)
        tl.store(by_both + (2 * row + 1) * width + at, (e * g * s).to(both.dtype.element_ty), inside)
    tl.store(out + row * width + at, (g * s * u).to(both.dtype.element_ty), inside)


def _run_gate(both: Tensor, out: Tensor, by_both: Tensor | None = None) -> None:
    """Run forward; or, if `by_both` is given, write the gradient of `both` there from out's gradient, and overwrite that with out.

    Each element is read before it is written.
    """
    width = out.shape[-1]
    run: Any = _gate[(out.numel() // width, triton.cdiv(width, AT_ONCE))]
    run(both, out, both if by_both is None else by_both, width, AT_ONCE, by_both is not None)


@torch.library.custom_op("meshwise::swiglu", mutates_args=())
def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Return down (silu(gate x) * up x) for x (..., hidden) and stacked gate and up, plus both products for the backward pass.

    One operation, so that the term in brackets, which would add half as much memory again, is recomputed in the backward pass.
    """
    both = x @ _whole([gate, up]).T
    out = x.new_empty(*x.shape[:-1], gate.shape[0])
    _run_gate(both, out)
    return out @ down.T, both


@swiglu.register_fake
def _(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:-1], down.shape[0]), x.new_empty(*x.shape[:-1], 2 * gate.shape[0])


@torch.library.custom_op("meshwise::swiglu_backward", mutates_args=())
def _swiglu_backward(
    by_y: Tensor, x: Tensor, both: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to x, the fused gate and up, and down."""
    between = by_y @ down
    by_both = torch.empty_like(both)
    _run_gate(both, between, by_both)
    by_down = by_y.flatten(0, -2).T @ between.flatten(0, -2)
    del between
    by_weight = by_both.flatten(0, -2).T @ x.flatten(0, -2)
    return by_both @ _whole([gate, up]), by_weight, by_down


@_swiglu_backward.register_fake
def _(by_y: Tensor, x: Tensor, both: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(2 * gate.shape[0], x.shape[-1]), down.new_empty(down.shape)


def _swiglu_save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *weights = inputs
    ctx.save_for_backward(x, output[1], *weights)
    ctx.set_materialize_grads(False)  # nobody else uses the products: their zero gradients would take as much memory again


def _swiglu_gradients(ctx: Any, by_y: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    x, both, gate, up, down = ctx.saved_tensors
    by_x, by_weight, by_down = _swiglu_backward(by_y, x, both, gate, up, down)
    return by_x, *_parts(by_weight, [gate, up]), by_down


swiglu.register_autograd(_swiglu_gradients, setup_context=_swiglu_save)
