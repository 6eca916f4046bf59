"""Projections that read the same input as one product, and what follows them by a kernel each: fewer, fuller programs on a GPU.

Weights keep their names, and stand one below another in memory (`lay`), so that the joined weight is a view of them and its gradient is
theirs. torch.compile sees opaque operations with known shapes, and a CUDA graph may hold them.
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
"""Joined weights have a multiple of so many rows, the last of them zeros: what the tensor cores read, and TTT's kernels count on."""
AT_ONCE = 1024
"""Elements of a program of the kernels here."""


def fills(weights: list[Tensor]) -> bool:
    """Whether weights one below another need no rows of zeros."""
    return sum(_rows(weights)) == _padded(weights)


def lay(weights: list[Tensor]) -> None:
    """Put weights (rows..., columns) one below another in one piece of memory, with rows of zeros where they do not fill it."""
    counts = _rows(weights)
    whole = weights[0].new_zeros(_padded(weights), weights[0].shape[-1])
    for weight, part in zip(weights, whole.split([*counts, len(whole) - sum(counts)]), strict=False):
        weight.data = part.view(weight.shape).copy_(weight.detach())


def _rows(weights: list[Tensor]) -> list[int]:
    return [weight.numel() // weight.shape[-1] for weight in weights]


def _padded(weights: list[Tensor]) -> int:
    return -(-sum(_rows(weights)) // ROWS) * ROWS


def _whole(weights: list[Tensor]) -> Tensor:
    """The joined weight: a view of the first one's memory, or a copy where the others do not follow it there."""
    rows, columns = _padded(weights), weights[0].shape[-1]
    memory, start = weights[0].untyped_storage(), weights[0].storage_offset()
    places = [start + columns * sum(_rows(weights[:i])) for i in range(len(weights))]
    if [(one.untyped_storage().data_ptr(), one.storage_offset()) for one in weights] == [
        (memory.data_ptr(), at) for at in places
    ]:
        return weights[0].as_strided((rows, columns), (columns, 1))
    parts = [one.flatten(0, -2) for one in weights]
    return torch.cat([*parts, parts[0].new_zeros(rows - sum(_rows(weights)), columns)])


def _parts(whole: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """The gradients of weights that were joined."""
    parts = whole.split([*_rows(weights), len(whole) - sum(_rows(weights))])
    return [part.view(weight.shape) for weight, part in zip(weights, parts, strict=False)]


@torch.library.custom_op("meshwise::joined", mutates_args=())
def joined(x: Tensor, weights: list[Tensor]) -> Tensor:
    """x (..., columns) times weights that were laid one below another: their rows' products side by side."""
    return x @ _whole(weights).T


@joined.register_fake
def _(x: Tensor, weights: list[Tensor]) -> Tensor:
    return x.new_empty(*x.shape[:-1], _padded(weights))


@torch.library.custom_op("meshwise::joined_backward", mutates_args=())
def _joined_backward(by_out: Tensor, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    by_rows = by_out.flatten(0, -2)
    return by_out @ _whole(weights), by_rows.T @ x.flatten(0, -2)


@_joined_backward.register_fake
def _(by_out: Tensor, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(by_out.shape[-1], x.shape[-1])


def _joined_keep(ctx: Any, inputs: tuple[Tensor, list[Tensor]], output: Tensor) -> None:
    x, weights = inputs
    ctx.save_for_backward(x, *weights)


def _joined_slopes(ctx: Any, by_out: Tensor) -> tuple[Tensor, list[Tensor]]:
    x, *weights = ctx.saved_tensors
    by_x, by_whole = _joined_backward(by_out, x, weights)
    return by_x, _parts(by_whole, weights)


joined.register_autograd(_joined_slopes, setup_context=_joined_keep)


@triton.jit
def _turn(
    rows, q, k, v, rotation, seq,
    HEADS: tl.constexpr, SHARED: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, BACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Heads of one token, GROUP at a time: q and k = x cos + x' sin where x' has the halves of a head exchanged, and v = x.

    Or BACK, from their gradients: x = q cos - q' sin, for both halves of a head have the same cosines, and sines of opposite sign.
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
            turned = x.to(tl.float32) * cos - y.to(tl.float32) * sin
            tl.store(joint + lane, tl.where(in_v, x, turned.to(x.dtype)), head < total)
        else:
            x = tl.load(joint + lane, head < total, other=0.0)
            y = tl.load(joint + other, in_q | in_k, other=0.0)
            turned = (x.to(tl.float32) * cos + y.to(tl.float32) * sin).to(x.dtype)
            tl.store(of_q + lane, turned, in_q)
            tl.store(of_k + lane, turned, in_k)
            tl.store(of_v + lane, x, in_v)


def _run_turn(rows: Tensor, q: Tensor, k: Tensor, v: Tensor, rotation: Tensor, back: bool) -> None:
    (seq, heads, size), shared = q.shape[-3:], k.shape[-2]
    run: Any = _turn[(q.numel() // (heads * size),)]
    run(rows, q, k, v, rotation, seq, heads, shared, size, max(1, AT_ONCE // size), back)


@torch.library.custom_op("meshwise::turned", mutates_args=())
def turned(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (batch, seq, heads, head_dim) of rows that hold them side by side, with `shared` heads of the latter two.

    Queries and keys are turned by `rotation` (2, seq, head_dim): cosines, and sines that are negative in the first half.
    """
    q, k, v = _empty_heads(rows, rotation, shared)
    _run_turn(rows.contiguous(), q, k, v, rotation, back=False)
    return q, k, v


def _empty_heads(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    size = rotation.shape[-1]
    heads = rows.shape[-1] // size - 2 * shared
    q, k, v = (rows.new_empty(*rows.shape[:-1], count, size) for count in (heads, shared, shared))
    return q, k, v


@turned.register_fake
def _(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_heads(rows, rotation, shared)


@torch.library.custom_op("meshwise::turned_backward", mutates_args=())
def _turned_backward(by_q: Tensor, by_k: Tensor, by_v: Tensor, rotation: Tensor) -> Tensor:
    by_rows = by_q.new_empty(*by_q.shape[:-2], (by_q.shape[-2] + 2 * by_k.shape[-2]) * by_q.shape[-1])
    _run_turn(by_rows, by_q.contiguous(), by_k.contiguous(), by_v.contiguous(), rotation, back=True)
    return by_rows


@_turned_backward.register_fake
def _(by_q: Tensor, by_k: Tensor, by_v: Tensor, rotation: Tensor) -> Tensor:
    return by_q.new_empty(*by_q.shape[:-2], (by_q.shape[-2] + 2 * by_k.shape[-2]) * by_q.shape[-1])


def _turned_keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1])


def _turned_slopes(ctx: Any, by_q: Tensor, by_k: Tensor, by_v: Tensor) -> tuple[Tensor, None, None]:
    return _turned_backward(by_q, by_k, by_v, *ctx.saved_tensors), None, None


turned.register_autograd(_turned_slopes, setup_context=_turned_keep)


@triton.jit
def _gate(both, out, by_both, width, BLOCK: tl.constexpr, BACK: tl.constexpr):  # noqa: N803
    """Of rows [g u]: h = silu(g) u. Or BACK, from e, the gradient of h, which stands where h goes: [e u silu'(g), e silu(g)], and h."""
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
    """Forward; or, given where to write it, the gradient of both too, from that of out in its place: each element is read before it is
    written."""
    width = out.shape[-1]
    run: Any = _gate[(out.numel() // width, triton.cdiv(width, AT_ONCE))]
    run(both, out, both if by_both is None else by_both, width, AT_ONCE, by_both is not None)


@torch.library.custom_op("meshwise::swiglu", mutates_args=())
def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """down (silu(gate x) * up x) of x (..., hidden), where gate and up were laid one below the other; and both their products, kept.

    One operation, so that what stands between the brackets, half as large again, is made again in the backward pass instead of kept.
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
    """Gradients by x, by gate and up joined, and by down."""
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


def _swiglu_keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *weights = inputs
    ctx.save_for_backward(x, output[1], *weights)
    ctx.set_materialize_grads(False)  # nobody else has the products: zeros for them would be as large again


def _swiglu_slopes(ctx: Any, by_y: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    x, both, gate, up, down = ctx.saved_tensors
    by_x, by_weight, by_down = _swiglu_backward(by_y, x, both, gate, up, down)
    return by_x, *_parts(by_weight, [gate, up]), by_down


swiglu.register_autograd(_swiglu_slopes, setup_context=_swiglu_keep)
