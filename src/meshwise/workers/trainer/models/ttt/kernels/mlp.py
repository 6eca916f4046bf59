"""TTT-MLP's inner loop as torch operators: shapes for the compiler, gradients for autograd, kernels for the GPU.

Inputs: q, k (rotated), v (batch, tokens, heads, D); rate (batch, tokens, heads) and place (T) in float32; W1 (heads, D, M),
b1 (heads, 1, M), W2 (heads, M, D), b2 (heads, 1, D); gamma, beta (heads, D).
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.models.ttt.kernels.mlp_back_chain import back_chain
from meshwise.workers.trainer.models.ttt.kernels.mlp_chain import chain
from meshwise.workers.trainer.models.ttt.kernels.mlp_readers import output, readers, through_w1

KERNELS: dict[str, Any] = {
    "chain": chain, "output": output, "readers": readers, "back_chain": back_chain, "through_w1": through_w1,
}  # fmt: skip
LAUNCH: dict[str, dict[str, int]] = {
    "chain": {"W": 8}, "output": {"W": 4}, "readers": {"W": 4}, "back_chain": {"W": 8}, "through_w1": {"W": 4},
}  # fmt: skip
"""Warps (W) per program, the fastest on an H200 (docs/reports/ttt-mlp-kernels.md). A chain holds 128 KiB of state in registers, half of a
multiprocessor's."""

Rows = slice  # a range of a batch's sequences


def sizes(q: Tensor, w1: Tensor, place: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Return batch, heads, mini-batches, and the constants of every kernel."""
    batch, tokens, heads, width = q.shape
    return batch, heads, tokens // len(place), {"D": width, "M": w1.shape[-1], "T": len(place)}


def launch(name: str, programs: int, *given: Tensor | int, **constants: int) -> None:
    options = LAUNCH[name]
    KERNELS[name][(programs,)](*given, **constants, **options, num_warps=options["W"])


def waves(q: Tensor) -> list[Rows]:
    """Split the batch into ranges whose chains, one per head and multiprocessor, run at the same time."""
    batch, _, heads, _ = q.shape
    cores = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 0
    each = cores // heads or batch
    return [slice(at, min(at + each, batch)) for at in range(0, batch, each)]


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def staggered(rows: list[Rows], chain: Callable[[Rows], None], after: Callable[[Rows], None]) -> None:
    """Run each wave's `chain`, then its `after`; for all waves but the last, `after` overlaps the next chain, which leaves cores idle."""
    if len(rows) == 1:
        chain(rows[0])
        after(rows[0])
        return
    main = torch.cuda.current_stream()
    side = side_stream(main.device)
    chain(rows[0])
    for now, coming in pairwise(rows):
        done = main.record_event()
        chain(coming)  # queued first: a chain needs a whole multiprocessor
        side.wait_event(done)
        with torch.cuda.stream(side):
            after(now)
    after(rows[-1])
    main.wait_stream(side)


def fresh_states(k: Tensor, batch: int, heads: int, batches: int, c: dict[str, int]) -> list[Tensor]:
    """Allocate the weights at the start of every mini-batch: W1' and W2 in k's precision, b1 and b2 in float32."""
    starts = [k.new_empty(batch, heads, batches, c[size], dtype=torch.float32) for size in "MD"]
    return [*(k.new_empty(batch, heads, batches, c["M"], c["D"]) for _ in range(2)), *starts]


@torch.library.custom_op("meshwise::ttt_mlp", mutates_args=())
def ttt_mlp(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor,
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, gamma: Tensor, beta: Tensor,
) -> Tensor:  # fmt: skip
    q, k, v, rate, w1, w2 = (tensor.contiguous() for tensor in (q, k, v, rate, w1, w2))
    batch, heads, batches, c = sizes(q, w1, place)
    states, out = fresh_states(k, batch, heads, batches, c), torch.empty_like(q)

    def chain(rows: Rows) -> None:
        kept, given = [tensor[rows] for tensor in states], (k[rows], v[rows], rate[rows], place)
        launch("chain", len(kept[0]) * heads, *given, w1, b1, w2, b2, gamma, beta, *kept, heads, batches, **c)

    def output(rows: Rows) -> None:
        kept, given = [tensor[rows] for tensor in states], (q[rows], k[rows], v[rows], rate[rows], place, gamma, beta)
        launch("output", len(kept[0]) * heads * batches, *given, *kept, out[rows], heads, batches, **c)

    staggered(waves(q), chain, output)
    return out


@ttt_mlp.register_fake
def _(q: Tensor, *others: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("meshwise::ttt_mlp_backward", mutates_args=())
def ttt_mlp_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor,
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, gamma: Tensor, beta: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    d_out, q, k, v, rate, w1, w2 = (tensor.contiguous() for tensor in (d_out, q, k, v, rate, w1, w2))
    batch, heads, batches, c = sizes(q, w1, place)
    width, inner, short = c["D"], c["M"], c["T"]
    # keeping the weights would take 64 KiB per mini-batch and head, 5 GiB for 125M at 16 x 512: rerunning the chain costs less
    states = fresh_states(k, batch, heads, batches, c)

    def fresh(*shape: int, like: Tensor = rate) -> Tensor:
        return like.new_empty(batch, heads, *shape)

    tiles = [fresh(batches, 8, inner, short, like=k), fresh(batches, 3, short, width, like=k), fresh(batches, 5, short)]
    dq, dk, dv, d_rate = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(rate)
    dk_read, d_rate_read = torch.empty_like(k, dtype=torch.float32), torch.empty_like(rate)
    # for each mini-batch d place, d gamma, d beta; for each chain dW1, dW2, db1, db2, d gamma, d beta, d place of the last position
    each, parts = fresh(batches, short + 2 * width), [inner * width, inner * width, inner, width, width, width, 1]
    sums = fresh(sum(parts))

    def cut(rows: Rows, *whole: Tensor) -> list[Tensor]:
        return [tensor[rows] for tensor in whole]

    def chain(rows: Rows) -> None:
        given = (*cut(rows, k, v, rate), place, w1, b1, w2, b2, gamma, beta, *cut(rows, *states))
        launch("chain", len(q[rows]) * heads, *given, heads, batches, **c)

    def readers(rows: Rows) -> None:
        given = (
            *cut(rows, q, k, v, rate), place, gamma, beta, *cut(rows, *states, d_out, *tiles, dq, dk_read, d_rate_read, each),
        )  # fmt: skip
        launch("readers", len(q[rows]) * heads * batches, *given, heads, batches, **c)

    def back_chain(rows: Rows) -> None:
        left = cut(rows, states[1], *tiles, dk_read, d_rate_read, dv, d_rate, sums)
        given = (*cut(rows, q, k, v, rate), place, gamma, beta, *left)
        launch("back_chain", len(q[rows]) * heads, *given, heads, batches, **c, SUMS=sum(parts))

    def through_w1(rows: Rows) -> None:
        launch("through_w1", len(q[rows]) * heads * batches, *cut(rows, states[0], tiles[0], dk_read, dk), heads, batches, **c)

    staggered(waves(q), chain, readers)
    staggered(waves(q), back_chain, through_w1)
    d_w1, d_w2, d_b1, d_b2, *d_norm, d_last = sums.sum(0).split(parts, 1)
    # one dimension after the other: at once, a sum has as few programs as results
    d_place, *d_norm_read = each.sum(2).sum(0).split([short, width, width], 1)
    d_place = d_place.sum(0)
    d_place[-1] += d_last.sum()
    d_gamma, d_beta = (read + chained for read, chained in zip(d_norm_read, d_norm, strict=True))
    # copies: an operator's results share no memory
    return (
        dq, dk, dv, d_rate, d_place, d_w1.reshape(w1.shape).to(w1.dtype, copy=True), d_b1.reshape(b1.shape).to(b1.dtype, copy=True),
        d_w2.reshape(w2.shape).to(w2.dtype, copy=True), d_b2.reshape(b2.shape).to(b2.dtype, copy=True),
        d_gamma.to(gamma.dtype), d_beta.to(beta.dtype),
    )  # fmt: skip


@ttt_mlp_backward.register_fake
def _(d_out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(one.new_empty(one.shape) for one in inputs)


def _save(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, d_out: Tensor) -> tuple[Tensor, ...]:
    return ttt_mlp_backward(d_out, *ctx.saved_tensors)


ttt_mlp.register_autograd(_backward, setup_context=_save)
