"""Causal attention with soft caps for heads wider than 128: one fused kernel forward, three kernels backward.

A soft cap bounds the scores, so that exp(score) fits float32 and bfloat16 and softmax needs no largest score: the forward kernel never
rescales its sums. Backward, tiles of gradients for keys and values together would fill the registers of heads this wide. A kernel
therefore writes the softmax and the gradient of the scores in 16 bits, for some heads at a time, and another multiplies them: 10 bytes
move per score, but each of five products is computed once and at the rate of large tiles.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from meshwise.workers.trainer.ops.wide_kernels import wide_by_keys, wide_by_queries, wide_delta, wide_forward, wide_scores

MAX_CAP = 60.0  # exp(60) x 10^6 keys x values of 10^6 stay below the largest float32, 3.4e38
MAX_HEAD_SIZE = 256
"""Features of a head that a tile has room for. They must be a multiple of 8: a descriptor's rows begin at multiples of 16 bytes."""
AT_ONCE, MOST = 2**30, 2**31
"""Bytes of the softmax and the gradient of the scores that exist at a time, and the most that those of one key head may have."""


@dataclass(frozen=True)
class Tile:
    """A tile of one kernel, and its launch."""

    rows: int  # queries; in the products of keys and values, keys
    columns: int  # keys; the products have tiles as wide as a head
    step: int  # numbers that a product sums at a time; the forward kernel sums all features of a head at once
    warps: int
    stages: int

    @property
    def launch(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Tiles:
    """Tiles of the kernels that multiply: the fastest of 5, 10 and 5 at Gemma 2 2B's shapes, H200 (benchmarks/kernels/wide_attention.py).
    They take 0.22 ms forward, and 0.27 and 0.20 ms backward; FlexAttention takes 0.34 and 1.54."""

    forward: Tile = Tile(128, 64, 0, 8, 2)
    scores: Tile = Tile(64, 64, 64, 4, 3)
    products: Tile = Tile(128, 0, 64, 8, 4)


TILES = Tiles()


def fits(q: Tensor, k: Tensor, v: Tensor, cap: float) -> bool:
    """Return whether these kernels compute attention of such heads with this cap."""
    sizes = {x.shape[-1] for x in (q, k, v)}
    even = len(sizes) == 1 and max(sizes) <= MAX_HEAD_SIZE and max(sizes) % 8 == 0
    held = _bytes_of(q, k) <= MOST
    return even and held and all(x.is_cuda and x.dtype == torch.bfloat16 for x in (q, k, v)) and 0 < cap <= MAX_CAP


def _bytes_of(q: Tensor, k: Tensor) -> int:
    """Return bytes of the softmax and the gradient of the scores of the heads that share one key head; rows of keys are aligned."""
    return 2 * q.element_size() * (q.shape[1] // k.shape[1]) * q.shape[2] * _aligned_keys(q.shape[2])


def _aligned_keys(seq: int) -> int:
    return (seq + 7) // 8 * 8


def _heads(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor of (batch, heads, sequence, features) whose tiles are of one head."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, columns])


def _aligned(x: Tensor) -> Tensor:
    """Return x, copied if its tiles cannot be addressed: rows must begin at multiples of 16 bytes."""
    even = all(stride * x.element_size() % 16 == 0 for stride in x.stride()[:-1])
    return x if even and x.stride(-1) == 1 and x.data_ptr() % 16 == 0 else x.contiguous()


def _empty(x: Tensor) -> Tensor:
    """Return memory for a tensor like x (batch, heads, sequence, features); sequence before heads, as projections read and write it."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def _numbers(factor: float, cap: float) -> tuple[float, float]:
    """Return the factor of a raw score in the exponent of 2 that makes its tanh, and the cap in powers of 2."""
    return 2 * factor / cap * math.log2(math.e), cap * math.log2(math.e)


def run_forward(q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return attention, and the logarithm to base 2 of the sum of the powers of each query's scores."""
    batch, heads, seq, size = q.shape
    wide = triton.next_power_of_2(size)
    out, sums = _empty(q), q.new_empty(batch, heads, seq, dtype=torch.float32)
    run: Any = wide_forward[(triton.cdiv(seq, tile.rows), batch * heads)]
    run(
        _heads(q, tile.rows, wide), _heads(k, tile.columns, wide), _heads(v, tile.columns, wide), _heads(out, tile.rows, wide), sums,
        seq, heads, *_numbers(factor, cap), heads // k.shape[1], tile.rows, tile.columns, wide, **tile.launch,
    )  # fmt: skip
    return out, sums


def _deltas(by_out: Tensor, out: Tensor) -> Tensor:
    """Return the sum over features of the output by its gradient (batch, heads, sequence): the mean gradient of a query's softmax."""
    batch, heads, seq, size = out.shape
    deltas = out.new_empty(batch, heads, seq, dtype=torch.float32)
    padded = triton.next_power_of_2(heads), triton.next_power_of_2(size)
    run: Any = wide_delta[(seq, batch)]
    run(by_out, out, deltas, *by_out.stride()[:3], *out.stride()[:3], seq, size, heads, *padded, num_warps=4)
    return deltas


def run_backward(
    by_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, factor: float, cap: float, tiles: Tiles
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    batch, heads, seq, size = q.shape
    group, wide, by_out = heads // k.shape[1], triton.next_power_of_2(size), _aligned(by_out)
    deltas, grads = _deltas(by_out, out), (_empty(q), _empty(k), _empty(v))
    keys, shared = _aligned_keys(seq), batch * k.shape[1]
    together = max(1, min(shared, AT_ONCE // _bytes_of(q, k)))
    softmax, by_scores = (q.new_empty(together * group, seq, keys) for _ in range(2))
    s, p = tiles.scores, tiles.products
    for first in range(0, shared, together):
        count = min(together, shared - first)
        run: Any = wide_scores[(triton.cdiv(seq, s.columns), triton.cdiv(seq, s.rows), count * group)]
        run(
            *(_heads(x, s.rows, s.step) for x in (q, by_out)), *(_heads(x, s.columns, s.step) for x in (k, v)), sums, deltas,
            *(_tiles_of(x, s.rows, s.columns) for x in (softmax, by_scores)), first * group, seq, heads, *_numbers(factor, cap),
            4 * factor, group, s.rows, s.columns, wide, s.step, p.rows, **s.launch,
        )  # fmt: skip
        parts = triton.cdiv(seq, p.rows)
        for scores, rows, grad in ((softmax, by_out, grads[2]), (by_scores, q, grads[1])):
            run = wide_by_keys[(count, parts)]
            run(
                _tiles_of(scores, p.step, p.rows), _heads(rows, p.step, wide), _heads(grad, p.rows, wide),
                first, seq, k.shape[1], group, p.rows, p.step, wide, **p.launch,
            )  # fmt: skip
        run = wide_by_queries[(count * group, parts)]
        run(
            _tiles_of(by_scores, p.rows, p.step), _heads(k, p.step, wide), _heads(grads[0], p.rows, wide),
            first * group, seq, heads, group, p.rows, p.step, wide, **p.launch,
        )  # fmt: skip
    return grads


def _tiles_of(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor of (heads, queries, keys)."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows, columns])


@torch.library.custom_op("meshwise::wide_attention", mutates_args=())
def attend_wide(q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float) -> tuple[Tensor, Tensor]:
    return run_forward(_aligned(q), _aligned(k), _aligned(v), factor, cap, TILES.forward)


@attend_wide.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float) -> tuple[Tensor, Tensor]:
    return _empty(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("meshwise::wide_attention_backward", mutates_args=())
def attend_backward(
    by_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, factor: float, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    return run_backward(by_out, _aligned(q), _aligned(k), _aligned(v), out, sums, factor, cap, TILES)


@attend_backward.register_fake
def _(
    by_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, factor: float, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(q), _empty(k), _empty(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *kept, ctx.factor, ctx.cap = inputs
    ctx.save_for_backward(*kept, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, by_out: Tensor, by_sums: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_backward(by_out, *ctx.saved_tensors, ctx.factor, ctx.cap), None, None


attend_wide.register_autograd(_gradients, setup_context=_save)


def wide_attention(q: Tensor, k: Tensor, v: Tensor, factor: float, cap: float) -> Tensor:
    """Return causal attention on (batch, heads, sequence, features) with scores cap x tanh(factor x score / cap)."""
    out: Tensor = attend_wide(q, k, v, factor, cap)[0]
    return out
