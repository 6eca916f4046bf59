"""Causal attention with wide heads and soft caps: products of whole blocks by cuBLAS, and a kernel between them.

For heads of 256 features the tiles of a fused kernel fill the registers, and it reaches a tenth of the GPU's rate in the backward pass.
Here scores exist in memory, for some sequences and heads at a time. Queries are cut into blocks, and a block is multiplied only by the
keys before its end. A row is a query of one head; rows of heads that share keys and values are neighbours, and one product.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS = 4
"""Blocks of queries: of their 16 products with blocks of keys, 10 are computed."""
AT_ONCE = 2**30
"""Bytes of float32 scores that exist at a time, about."""
COLUMNS = 4096
"""Scores that a program reads at a time."""


@triton.jit
def _score(raw, at, seen, factor, cap, CAPPED: tl.constexpr):  # noqa: N803
    """Return scores, minus infinity for unseen keys, and their derivative by the product."""
    score = tl.load(raw + at, seen, other=0.0) * factor
    slope = score * 0.0 + factor
    if CAPPED:
        bent = 2 * tl.sigmoid(score * (2 / cap)) - 1
        score = cap * bent
        slope = factor * (1 - bent * bent)
    return tl.where(seen, score, float("-inf")), slope


@triton.jit
def _soften(
    raw, by_chances, chances, by_raw, first, rows, keys, whole, stride, factor, cap,
    GROUP: tl.constexpr, CAPPED: tl.constexpr, BACK: tl.constexpr, ONCE: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write the softmax of one row of scores; if BACK, also the gradient of the products, given that of the softmax.

    If ONCE, a row fits a block and is read once.

    `raw` and `by_chances` are (batch, rows, keys); `chances` and `by_raw` are (batch, whole, stride), of which this is row `first` on.
    """
    batch, row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    query = (first + row) // GROUP
    place, out = (batch * rows + row) * keys, (batch * whole + first + row) * stride
    if ONCE:
        at = tl.arange(0, BLOCK)
        score, slope = _score(raw + place, at, at <= query, factor, cap, CAPPED)
        power = tl.exp(score - tl.max(score, 0))
        chance = power / tl.sum(power, 0)
        tl.store(chances + out + at, chance.to(chances.dtype.element_ty), at < keys)
        if BACK:
            outer = tl.load(by_chances + place + at, at <= query, other=0.0)
            grad = chance * (outer - tl.sum(chance * outer, 0)) * slope
            tl.store(by_raw + out + at, grad.to(by_raw.dtype.element_ty), at < keys)
    else:
        most = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        mean = tl.zeros((), tl.float32)
        for start in range(0, query + 1, BLOCK):
            at = start + tl.arange(0, BLOCK)
            score, _ = _score(raw + place, at, at <= query, factor, cap, CAPPED)
            higher = tl.maximum(most, tl.max(score, 0))
            power, less = tl.exp(score - higher), tl.exp(most - higher)
            total = total * less + tl.sum(power, 0)
            if BACK:
                mean = mean * less + tl.sum(power * tl.load(by_chances + place + at, at <= query, other=0.0), 0)
            most = higher
        for start in range(0, keys, BLOCK):
            at = start + tl.arange(0, BLOCK)
            score, slope = _score(raw + place, at, at <= query, factor, cap, CAPPED)
            chance = tl.exp(score - most) / total
            tl.store(chances + out + at, chance.to(chances.dtype.element_ty), at < keys)
            if BACK:
                outer = tl.load(by_chances + place + at, at <= query, other=0.0)
                grad = chance * (outer - mean / total) * slope
                tl.store(by_raw + out + at, grad.to(by_raw.dtype.element_ty), at < keys)


@triton.jit
def _move(x, rows, seq, KV: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BACK: tl.constexpr):  # noqa: N803
    """Copy one token of x (batch, seq, KV, WIDTH) to rows (batch, KV, seq, WIDTH); if BACK, from them."""
    token = tl.program_id(0).to(tl.int64)
    for head in tl.static_range(KV):
        here = (token * KV + head) * WIDTH
        there = ((token // seq * KV + head) * seq + token % seq) * WIDTH
        for start in tl.static_range(0, WIDTH, BLOCK):
            at = start + tl.arange(0, BLOCK)
            if BACK:
                tl.store(x + here + at, tl.load(rows + there + at, at < WIDTH), at < WIDTH)
            else:
                tl.store(rows + there + at, tl.load(x + here + at, at < WIDTH), at < WIDTH)


class Block(NamedTuple):
    """A block of queries: its rows, and the keys before its end."""

    first: int
    last: int
    keys: int


def _blocks(seq: int, group: int) -> list[Block]:
    cuts = [seq * i // BLOCKS for i in range(BLOCKS + 1)]
    return [Block(start * group, end * group, end) for start, end in pairwise(cuts) if end > start]


def _rows(x: Tensor, kv_heads: int) -> Tensor:
    """Return (batch x kv_heads, seq x group, head_dim) of (batch, heads, seq, head_dim)."""
    batch, heads, seq, size = x.shape
    out = x.new_empty(batch * kv_heads, seq * (heads // kv_heads), size)
    _copy(x.transpose(1, 2).contiguous(), out, kv_heads, False)
    return out


def _heads(rows: Tensor, like: Tensor, kv_heads: int) -> Tensor:
    """Return (batch, heads, seq, head_dim) of rows as `_rows` makes them; in memory, sequence before heads."""
    batch, heads, seq, size = like.shape
    out = rows.new_empty(batch, seq, heads, size)
    _copy(out, rows, kv_heads, True)
    return out.transpose(1, 2)


def _copy(x: Tensor, rows: Tensor, kv_heads: int, back: bool) -> None:
    """Copy x (batch, seq, heads, head_dim) to rows, or from them; torch's copy of permuted tensors takes four times as long."""
    batch, seq, heads, size = x.shape
    width = heads // kv_heads * size
    run: Any = _move[(batch * seq,)]
    run(x, rows, seq, kv_heads, width, min(COLUMNS, triton.next_power_of_2(width)), back, num_warps=2)


def _wide(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T in float32."""
    if not a.is_cuda or a.dtype == torch.float32:
        return a.float() @ b.float().mT
    return torch.bmm(a, b.mT, out_dtype=torch.float32)


def _each(q: Tensor, k: Tensor) -> int:
    """Return how many pairs of a sequence and a key head have scores at a time."""
    return max(1, AT_ONCE // (4 * (q.shape[1] // k.shape[1]) * q.shape[2] * k.shape[2]))


def _run(
    raw: Tensor, by_chances: Tensor, chances: Tensor, by_raw: Tensor, block: Block, group: int, numbers: tuple[float, float]
) -> None:
    back = by_raw is not chances
    run: Any = _soften[(block.last - block.first, len(raw))]
    columns = min(COLUMNS, triton.next_power_of_2(block.keys))
    once = columns >= block.keys
    run(
        raw, by_chances, chances, by_raw, block.first, block.last - block.first, block.keys, chances.shape[1], chances.shape[2],
        *numbers, group, numbers[1] > 0, back, once, columns, num_warps=max(1, min(8, columns // 512)),
    )  # fmt: skip


@torch.library.custom_op("meshwise::wide_attention", mutates_args=())
def wide_attention(q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float) -> Tensor:
    """Return causal attention on (batch, heads, sequence, head_dim); scores become cap x tanh(score / cap) if cap is above zero."""
    kv_heads, group, seq = k.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    rows = [_rows(x, kv_heads) for x in (q, k, v)]
    out, each = torch.empty_like(rows[0]), _each(q, k)
    for mine, keys, values, made in zip(*(x.split(each) for x in (*rows, out)), strict=True):
        chances = q.new_empty(len(mine), seq * group, seq)
        for block in _blocks(seq, group):
            raw = _wide(mine[:, block.first : block.last], keys[:, : block.keys])
            _run(raw, raw, chances, chances, block, group, (factor, cap))
            seen = chances[:, block.first : block.last, : block.keys]
            torch.bmm(seen, values[:, : block.keys], out=made[:, block.first : block.last])
    return _heads(out, q, kv_heads)


@wide_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


@torch.library.custom_op("meshwise::wide_attention_backward", mutates_args=())
def _wide_attention_backward(
    by_out: Tensor, q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values. Scores are computed again."""
    kv_heads, group, seq = k.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    rows = [_rows(x, kv_heads) for x in (q, k, v, by_out)]
    grads, each = [torch.empty_like(x) for x in rows[:3]], _each(q, k)
    for mine, keys, values, outer, by_q, by_k, by_v in zip(*(x.split(each) for x in (*rows, *grads)), strict=True):
        chances, by_raw = (q.new_empty(len(mine), seq * group, seq) for _ in range(2))
        blocks = _blocks(seq, group)
        for block in blocks:
            cut, seen = slice(block.first, block.last), slice(0, block.keys)
            raw, by_chances = _wide(mine[:, cut], keys[:, seen]), _wide(outer[:, cut], values[:, seen])
            _run(raw, by_chances, chances, by_raw, block, group, (factor, cap))
            torch.bmm(by_raw[:, cut, seen], keys[:, seen], out=by_q[:, cut])
        for block in blocks:  # keys of a block are seen by its own queries and later ones
            start = block.first // group
            part = slice(start, block.keys)
            torch.bmm(chances[:, block.first :, part].mT, outer[:, block.first :], out=by_v[:, part])
            torch.bmm(by_raw[:, block.first :, part].mT, mine[:, block.first :], out=by_k[:, part])
    by_q, by_k, by_v = (_heads(grad, x, kv_heads) for grad, x in zip(grads, (q, k, v), strict=True))
    return by_q, by_k, by_v


@_wide_attention_backward.register_fake
def _(by_out: Tensor, q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float) -> tuple[Tensor, Tensor, Tensor]:
    by_q, by_k, by_v = (x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
    return by_q, by_k, by_v


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *kept, ctx.factor, ctx.cap = inputs
    ctx.save_for_backward(*kept)


def _gradients(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
    return *_wide_attention_backward(by_out, *ctx.saved_tensors, ctx.factor, ctx.cap), None, None


wide_attention.register_autograd(_gradients, setup_context=_save)
