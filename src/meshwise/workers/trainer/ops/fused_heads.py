"""Queries, keys and values out of one joint product: split, normed per head and rotated by one kernel in each direction.

torch.compile sees opaque operations with known shapes, and a CUDA graph may hold them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 1024
"""Elements that one program of the kernels here processes at a time."""
PROGRAMS = 2048
"""Programs of the backward kernel with norms: each adds up the gradients of the gains over its tokens."""


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
    by_rows = _empty_rows(by_q, by_k)
    _run_rotate_heads(by_rows, by_q.contiguous(), by_k.contiguous(), by_v.contiguous(), rotation, back=True)
    return by_rows


def _empty_rows(q: Tensor, k: Tensor) -> Tensor:
    return q.new_empty(*q.shape[:-2], (q.shape[-2] + 2 * k.shape[-2]) * q.shape[-1])


@_split_and_rotate_backward.register_fake
def _(by_q: Tensor, by_k: Tensor, by_v: Tensor, rotation: Tensor) -> Tensor:
    return _empty_rows(by_q, by_k)


def _split_and_rotate_save(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1])


def _split_and_rotate_gradients(ctx: Any, by_q: Tensor, by_k: Tensor, by_v: Tensor) -> tuple[Tensor, None, None]:
    return _split_and_rotate_backward(by_q, by_k, by_v, *ctx.saved_tensors), None, None


split_and_rotate.register_autograd(_split_and_rotate_gradients, setup_context=_split_and_rotate_save)


@triton.jit
def _norm_heads(
    rows, q, k, v, rotation, gain_q, gain_k, tokens, seq, eps, offset,
    HEADS: tl.constexpr, SHARED: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute the heads of one token, GROUP at a time: queries and keys x are normed, y = x gain / rms(x), and then rotated; v = x."""
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
        x = tl.load(joint + lane, head < total, other=0.0)
        y = tl.load(joint + other, in_q | in_k, other=0.0).to(tl.float32)
        wide = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / HEAD + eps)[:, None]
        gain = tl.where(in_q, tl.load(gain_q + lane), tl.load(gain_k + lane)).to(tl.float32) + offset
        swapped = tl.where(in_q, tl.load(gain_q + other), tl.load(gain_k + other)).to(tl.float32) + offset
        rotated = (wide * scale * gain * cos + y * scale * swapped * sin).to(x.dtype)
        tl.store(q + (token * HEADS + head) * HEAD + lane, rotated, in_q)
        tl.store(k + (token * SHARED + head - HEADS) * HEAD + lane, rotated, in_k)
        tl.store(v + (token * SHARED + head - HEADS - SHARED) * HEAD + lane, x, in_v)


@triton.jit
def _norm_heads_backward(
    rows, by_rows, by_q, by_k, by_v, rotation, gain_q, gain_k, by_gains, tokens, seq, eps, offset,
    HEADS: tl.constexpr, SHARED: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute the gradient of the rows of every n-th token, and this program's share of the gradients of both gains.

    With n = x / rms and e the gradient of y rotated back: by gain = sum e n, by x = (e gain - n mean(e gain n)) / rms.
    """
    lane = tl.arange(0, HEAD)[None, :]
    other = (lane + HEAD // 2) % HEAD
    total: tl.constexpr = HEADS + 2 * SHARED
    by_gain_q = tl.zeros((GROUP, HEAD), tl.float32)
    by_gain_k = tl.zeros((GROUP, HEAD), tl.float32)
    token = tl.program_id(0).to(tl.int64)
    while token < tokens:
        cos = tl.load(rotation + (token % seq) * HEAD + lane)
        sin = tl.load(rotation + (seq + token % seq) * HEAD + lane)
        for first in range(0, total, GROUP):
            head = first + tl.arange(0, GROUP)[:, None]
            in_q, in_k = head < HEADS, (head >= HEADS) & (head < HEADS + SHARED)
            in_v = (head >= HEADS + SHARED) & (head < total)
            of_q = by_q + (token * HEADS + head) * HEAD
            of_k = by_k + (token * SHARED + head - HEADS) * HEAD
            of_v = by_v + (token * SHARED + head - HEADS - SHARED) * HEAD
            e = tl.load(of_q + lane, in_q, other=0.0) + tl.load(of_k + lane, in_k, other=0.0)
            f = tl.load(of_q + other, in_q, other=0.0) + tl.load(of_k + other, in_k, other=0.0)
            back = e.to(tl.float32) * cos - f.to(tl.float32) * sin
            x = tl.load(rows + (token * total + head) * HEAD + lane, head < total, other=0.0).to(tl.float32)
            scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD + eps)[:, None]
            normed = x * scale
            by_gain_q += tl.where(in_q, back * normed, 0.0)
            by_gain_k += tl.where(in_k, back * normed, 0.0)
            gain = tl.where(in_q, tl.load(gain_q + lane), tl.load(gain_k + lane)).to(tl.float32) + offset
            by_normed = back * gain
            by_x = scale * (by_normed - normed * (tl.sum(by_normed * normed, 1) / HEAD)[:, None])
            values = tl.load(of_v + lane, in_v, other=0.0)
            tl.store(by_rows + (token * total + head) * HEAD + lane, tl.where(in_v, values, by_x.to(values.dtype)), head < total)
        token += tl.num_programs(0)
    line = tl.arange(0, HEAD)
    tl.store(by_gains + (2 * tl.program_id(0)) * HEAD + line, tl.sum(by_gain_q, 0))
    tl.store(by_gains + (2 * tl.program_id(0) + 1) * HEAD + line, tl.sum(by_gain_k, 0))


@torch.library.custom_op("meshwise::norm_and_rotate", mutates_args=())
def norm_and_rotate(
    rows: Tensor, rotation: Tensor, gain_q: Tensor, gain_k: Tensor, shared: int, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows as `split_and_rotate` does, with queries and keys normed per head before they are rotated; a gain is `gain + offset`."""
    q, k, v = _empty_heads(rows, rotation, shared)
    (seq, heads, size), tokens = q.shape[-3:], rows.numel() // rows.shape[-1]
    run: Any = _norm_heads[(tokens,)]
    group = max(1, AT_ONCE // size)
    run(rows.contiguous(), q, k, v, rotation, gain_q, gain_k, tokens, seq, eps, offset, heads, shared, size, group)
    return q, k, v


@norm_and_rotate.register_fake
def _(
    rows: Tensor, rotation: Tensor, gain_q: Tensor, gain_k: Tensor, shared: int, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_heads(rows, rotation, shared)


@torch.library.custom_op("meshwise::norm_and_rotate_backward", mutates_args=())
def _norm_and_rotate_backward(
    by_q: Tensor,
    by_k: Tensor,
    by_v: Tensor,
    rows: Tensor,
    rotation: Tensor,
    gain_q: Tensor,
    gain_k: Tensor,
    eps: float,
    offset: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the rows, and of both gains (2, head_dim)."""
    (seq, heads, size), shared, tokens = by_q.shape[-3:], by_k.shape[-2], rows.numel() // rows.shape[-1]
    by_rows, programs = torch.empty_like(rows), min(tokens, PROGRAMS)
    by_gains = rows.new_empty(programs, 2, size, dtype=torch.float32)
    run: Any = _norm_heads_backward[(programs,)]
    run(
        rows.contiguous(), by_rows, by_q.contiguous(), by_k.contiguous(), by_v.contiguous(), rotation, gain_q, gain_k, by_gains,
        tokens, seq, eps, offset, heads, shared, size, max(1, AT_ONCE // size),
    )  # fmt: skip
    return by_rows, by_gains.sum(0).to(gain_q.dtype)


@_norm_and_rotate_backward.register_fake
def _(
    by_q: Tensor,
    by_k: Tensor,
    by_v: Tensor,
    rows: Tensor,
    rotation: Tensor,
    gain_q: Tensor,
    gain_k: Tensor,
    eps: float,
    offset: float,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rows), gain_q.new_empty(2, by_q.shape[-1])


def _norm_and_rotate_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rows, rotation, gain_q, gain_k, _, ctx.eps, ctx.offset = inputs
    ctx.save_for_backward(rows, rotation, gain_q, gain_k)


def _norm_and_rotate_gradients(ctx: Any, by_q: Tensor, by_k: Tensor, by_v: Tensor) -> tuple[Tensor | None, ...]:
    by_rows, by_gains = _norm_and_rotate_backward(by_q, by_k, by_v, *ctx.saved_tensors, ctx.eps, ctx.offset)
    return by_rows, None, by_gains[0], by_gains[1], None, None, None


norm_and_rotate.register_autograd(_norm_and_rotate_gradients, setup_context=_norm_and_rotate_save)
