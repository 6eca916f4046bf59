"""Queries, keys and values out of one joint product: split, normed per head and rotated by one kernel in each direction.

torch.compile sees opaque operations with known shapes, and a CUDA graph may hold them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_PROGRAM = 1024  # elements that one program of the kernels here processes at a time
PROGRAMS = {1: 4096, 2: 1056}
"""Programs of the backward kernel by kind of norm: each adds up the gradients of the gains over its tokens."""
MAX_NORM_FEATURES = 4096  # features of all heads beyond which a norm over them does not fit the registers of a program


@triton.jit
def _scale(x1, x2, eps, COUNT: tl.constexpr, HEAD: tl.constexpr, NORM: tl.constexpr):  # noqa: N803
    """Return 1 / root mean square, of each head or of all."""
    squares = tl.sum(x1 * x1 + x2 * x2, 1)
    if NORM == 2:  # noqa: SIM108
        mean = tl.sum(squares, 0) / (COUNT * HEAD)
    else:
        mean = (squares / HEAD)[:, None]
    return tl.rsqrt(mean + eps)


@triton.jit
def _gains(gain, at, inside, lane, offset, half: tl.constexpr, NORM: tl.constexpr):  # noqa: N803
    """Return the gains of both halves of the heads."""
    if NORM == 2:
        g1, g2 = tl.load(gain + at, inside, other=0.0), tl.load(gain + at + half, inside, other=0.0)
    else:
        g1, g2 = tl.load(gain + lane, lane < half, other=0.0), tl.load(gain + lane + half, lane < half, other=0.0)
    return g1.to(tl.float32) + offset, g2.to(tl.float32) + offset


@triton.jit
def _turn(
    start, out, gain, cos, sin, eps, offset,
    COUNT: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, NORM: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Rotate the heads of one token, GROUP at a time: (x1, x2) become (x1 cos - x2 sin, x2 cos + x1 sin). NORM 1 norms each head before,
    NORM 2 all heads together, which are one group."""
    half: tl.constexpr = HEAD // 2
    lane = tl.arange(0, LANES)[None, :]
    for first in tl.static_range(0, COUNT, GROUP):
        head = first + tl.arange(0, GROUP)[:, None]
        at, inside = head * HEAD + lane, (head < COUNT) & (lane < half)
        x1 = tl.load(start + at, inside, other=0.0).to(tl.float32)
        x2 = tl.load(start + at + half, inside, other=0.0).to(tl.float32)
        if NORM:
            scale = _scale(x1, x2, eps, COUNT, HEAD, NORM)
            g1, g2 = _gains(gain, at, inside, lane, offset, half, NORM)
            x1 = x1 * scale * g1
            x2 = x2 * scale * g2
        tl.store(out + at, (x1 * cos - x2 * sin).to(out.dtype.element_ty), inside)
        tl.store(out + at + half, (x2 * cos + x1 * sin).to(out.dtype.element_ty), inside)


@triton.jit
def _turn_back(
    start, by_start, by_out, gain, cos, sin, eps, offset, total1, total2,
    COUNT: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, NORM: tl.constexpr, LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute the gradient of what `_turn` read, and add this token's gradient of the gain to total1 and total2, its halves. With n = x /
    rms and e the gradient rotated back: by gain = sum e n, by x = (e gain - n mean(e gain n)) / rms."""
    half: tl.constexpr = HEAD // 2
    lane = tl.arange(0, LANES)[None, :]
    for first in tl.static_range(0, COUNT, GROUP):
        head = first + tl.arange(0, GROUP)[:, None]
        at, inside = head * HEAD + lane, (head < COUNT) & (lane < half)
        y1 = tl.load(by_out + at, inside, other=0.0).to(tl.float32)
        y2 = tl.load(by_out + at + half, inside, other=0.0).to(tl.float32)
        e1 = y1 * cos + y2 * sin
        e2 = y2 * cos - y1 * sin
        if NORM:
            x1 = tl.load(start + at, inside, other=0.0).to(tl.float32)
            x2 = tl.load(start + at + half, inside, other=0.0).to(tl.float32)
            scale = _scale(x1, x2, eps, COUNT, HEAD, NORM)
            x1 *= scale
            x2 *= scale
            total1 += e1 * x1
            total2 += e2 * x2
            g1, g2 = _gains(gain, at, inside, lane, offset, half, NORM)
            e1 *= g1
            e2 *= g2
            if NORM == 2:  # noqa: SIM108
                mean = tl.sum(tl.sum(e1 * x1 + e2 * x2, 1), 0) / (COUNT * HEAD)
            else:
                mean = (tl.sum(e1 * x1 + e2 * x2, 1) / HEAD)[:, None]
            e1 = scale * (e1 - x1 * mean)
            e2 = scale * (e2 - x2 * mean)
        tl.store(by_start + at, e1.to(by_start.dtype.element_ty), inside)
        tl.store(by_start + at + half, e2.to(by_start.dtype.element_ty), inside)
    return total1, total2


@triton.jit
def _copy(start, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    for first in tl.static_range(0, SIZE, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(start + at, at < SIZE), at < SIZE)


@triton.jit
def _heads(
    rows, q, k, v, rotation, gain_q, gain_k, seq, eps, offset,
    HEADS: tl.constexpr, SHARED: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Split the row of one token into its queries and keys, rotated, and its values."""
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)[None, :]
    cos = tl.load(rotation + (token % seq) * HEAD + lane, lane < HEAD // 2, other=0.0)
    sin = tl.load(rotation + (seq + token % seq) * HEAD + HEAD // 2 + lane, lane < HEAD // 2, other=0.0)
    row = rows + token * ((HEADS + 2 * SHARED) * HEAD)
    _turn(row, q + token * (HEADS * HEAD), gain_q, cos, sin, eps, offset, HEADS, HEAD, GROUP, NORM, LANES)
    _turn(row + HEADS * HEAD, k + token * (SHARED * HEAD), gain_k, cos, sin, eps, offset, SHARED, HEAD, GROUP, NORM, LANES)
    _copy(row + (HEADS + SHARED) * HEAD, v + token * (SHARED * HEAD), SHARED * HEAD, BLOCK)


@triton.jit
def _heads_backward(
    rows, by_rows, by_q, by_k, by_v, rotation, gain_q, gain_k, by_gains, tokens, seq, eps, offset,
    HEADS: tl.constexpr, SHARED: tl.constexpr, HEAD: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,  # noqa: N803
    LANES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute the gradient of the rows of every n-th token; if NORM, also this program's share of the gradients of both gains."""
    half: tl.constexpr = HEAD // 2
    lane = tl.arange(0, LANES)[None, :]
    q1 = tl.zeros((GROUP, LANES), tl.float32)
    q2 = tl.zeros((GROUP, LANES), tl.float32)
    k1 = tl.zeros((GROUP, LANES), tl.float32)
    k2 = tl.zeros((GROUP, LANES), tl.float32)
    token = tl.program_id(0).to(tl.int64)
    while token < tokens:
        cos = tl.load(rotation + (token % seq) * HEAD + lane, lane < half, other=0.0)
        sin = tl.load(rotation + (seq + token % seq) * HEAD + half + lane, lane < half, other=0.0)
        place = token * ((HEADS + 2 * SHARED) * HEAD)
        to_q, to_k = by_q + token * (HEADS * HEAD), by_k + token * (SHARED * HEAD)
        q1, q2 = _turn_back(
            rows + place, by_rows + place, to_q, gain_q, cos, sin, eps, offset, q1, q2, HEADS, HEAD, GROUP, NORM, LANES
        )
        place += HEADS * HEAD
        k1, k2 = _turn_back(
            rows + place, by_rows + place, to_k, gain_k, cos, sin, eps, offset, k1, k2, SHARED, HEAD, GROUP, NORM, LANES
        )
        _copy(by_v + token * (SHARED * HEAD), by_rows + place + SHARED * HEAD, SHARED * HEAD, BLOCK)
        token += tl.num_programs(0)
    if NORM == 2:
        head = tl.arange(0, GROUP)[:, None]
        mine = by_gains + tl.program_id(0) * ((HEADS + SHARED) * HEAD) + head * HEAD + lane
        tl.store(mine, q1, (head < HEADS) & (lane < half))
        tl.store(mine + half, q2, (head < HEADS) & (lane < half))
        tl.store(mine + HEADS * HEAD, k1, (head < SHARED) & (lane < half))
        tl.store(mine + HEADS * HEAD + half, k2, (head < SHARED) & (lane < half))
    if NORM == 1:
        line = tl.arange(0, LANES)
        mine = by_gains + tl.program_id(0) * (2 * HEAD) + line
        tl.store(mine, tl.sum(q1, 0), line < half)
        tl.store(mine + half, tl.sum(q2, 0), line < half)
        tl.store(mine + HEAD, tl.sum(k1, 0), line < half)
        tl.store(mine + HEAD + half, tl.sum(k2, 0), line < half)


def lanes_of(size: int) -> int:
    """Return the lanes that half of a head takes: Triton counts in powers of two, and heads of 80 features leave 24 of 64 idle."""
    return triton.next_power_of_2(size // 2)


def _sizes(q: Tensor, k: Tensor, norm: int = 0) -> tuple[int, int, int, int, int, int, int]:
    """Return the numbers of heads, their size, the heads and values that a program processes at a time, the kind of norm, and the lanes."""
    heads, shared, size = q.shape[-2], k.shape[-2], q.shape[-1]
    group, lanes = triton.next_power_of_2(heads), lanes_of(size)
    at_once = group if norm == 2 else min(max(1, ELEMENTS_PER_PROGRAM // (2 * lanes)), group)
    return heads, shared, size, at_once, ELEMENTS_PER_PROGRAM, norm, lanes


def _kind(gain: Tensor, size: int) -> int:
    """Return 1 for a norm of each head, 2 for one of all heads together."""
    return 1 if gain.numel() == size else 2


@torch.library.custom_op("meshwise::split_and_rotate", mutates_args=())
def split_and_rotate(rows: Tensor, rotation: Tensor, shared: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows into queries, keys and values (batch, seq, heads, head_dim), with `shared` heads for keys and values. Queries and keys
    are rotated by `rotation` (2, seq, head_dim): cosines, and sines that are negative in the first half."""
    q, k, v = _empty_heads(rows, rotation, shared)
    run: Any = _heads[(rows.numel() // rows.shape[-1],)]
    run(rows.contiguous(), q, k, v, rotation, q, k, q.shape[-3], 0.0, 0.0, *_sizes(q, k))
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
    grads, tokens = [by.contiguous() for by in (by_q, by_k, by_v)], by_rows.numel() // by_rows.shape[-1]
    run: Any = _heads_backward[(tokens,)]
    run(by_rows, by_rows, *grads, rotation, by_q, by_k, by_rows, tokens, by_q.shape[-3], 0.0, 0.0, *_sizes(by_q, by_k))
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


@torch.library.custom_op("meshwise::norm_and_rotate", mutates_args=())
def norm_and_rotate(
    rows: Tensor, rotation: Tensor, gain_q: Tensor, gain_k: Tensor, shared: int, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows as `split_and_rotate` does, with queries and keys normed before they are rotated; a gain is `gain + offset`. Gains of the
    size of a head norm each head, longer ones all heads together."""
    q, k, v = _empty_heads(rows, rotation, shared)
    run: Any = _heads[(rows.numel() // rows.shape[-1],)]
    run(rows.contiguous(), q, k, v, rotation, gain_q, gain_k, q.shape[-3], eps, offset, *_sizes(q, k, _kind(gain_q, q.shape[-1])))
    return q, k, v


@norm_and_rotate.register_fake
def _(
    rows: Tensor, rotation: Tensor, gain_q: Tensor, gain_k: Tensor, shared: int, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_heads(rows, rotation, shared)


@torch.library.custom_op("meshwise::norm_and_rotate_backward", mutates_args=())
def _norm_and_rotate_backward(
    by_q: Tensor, by_k: Tensor, by_v: Tensor, rows: Tensor, rotation: Tensor, gain_q: Tensor, gain_k: Tensor, eps: float,
    offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the rows, and those of both gains, one after the other, from each program: torch.compile adds them up."""
    tokens, kind = rows.numel() // rows.shape[-1], _kind(gain_q, by_q.shape[-1])
    by_rows, by_gains = _empty_gradients(rows, gain_q, gain_k, kind)
    grads = [by.contiguous() for by in (by_q, by_k, by_v)]
    run: Any = _heads_backward[(len(by_gains),)]
    run(
        rows.contiguous(), by_rows, *grads, rotation, gain_q, gain_k, by_gains, tokens, by_q.shape[-3], eps, offset,
        *_sizes(by_q, by_k, kind),
    )  # fmt: skip
    return by_rows, by_gains


def _empty_gradients(rows: Tensor, gain_q: Tensor, gain_k: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    programs = min(rows.numel() // rows.shape[-1], PROGRAMS[kind])
    return torch.empty_like(rows), rows.new_empty(programs, gain_q.shape[0] + gain_k.shape[0], dtype=torch.float32)


@_norm_and_rotate_backward.register_fake
def _(
    by_q: Tensor, by_k: Tensor, by_v: Tensor, rows: Tensor, rotation: Tensor, gain_q: Tensor, gain_k: Tensor, eps: float,
    offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _empty_gradients(rows, gain_q, gain_k, _kind(gain_q, by_q.shape[-1]))


def _norm_and_rotate_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rows, rotation, gain_q, gain_k, _, ctx.eps, ctx.offset = inputs
    ctx.save_for_backward(rows, rotation, gain_q, gain_k)


def _norm_and_rotate_gradients(ctx: Any, by_q: Tensor, by_k: Tensor, by_v: Tensor) -> tuple[Tensor | None, ...]:
    by_rows, by_gains = _norm_and_rotate_backward(by_q, by_k, by_v, *ctx.saved_tensors, ctx.eps, ctx.offset)
    gains = ctx.saved_tensors[2:]
    by_gain_q, by_gain_k = by_gains.sum(0).to(gains[0].dtype).split([gain.numel() for gain in gains])
    return by_rows, None, by_gain_q, by_gain_k, None, None, None


norm_and_rotate.register_autograd(_norm_and_rotate_gradients, setup_context=_norm_and_rotate_save)
