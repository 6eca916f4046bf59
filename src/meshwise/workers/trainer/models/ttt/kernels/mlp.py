"""TTT-MLP's inner loop as torch operators: shapes for the compiler, gradients for autograd, kernels for the GPU.

Inputs: q, k (rotated), v (batch, tokens, heads, D); rate (batch, tokens, heads) and place (T) in float32; W1 (heads, D, M),
b1 (heads, 1, M), W2 (heads, M, D), b2 (heads, 1, D); gamma, beta (heads, D).
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from meshwise.workers.trainer.models.ttt.kernels import mlp_backward, mlp_forward

LAUNCH = {"chain": 8, "output": 4, "readers": 4, "back_chain": 8, "through_w1": 4}
"""Warps per program, the fastest on an H200 (docs/ttt-mlp-kernels.md).

A chain holds 128 KiB of state in registers, half of a multiprocessor's. Stages stay at 1: with 2, Triton 3.6 compiles a backward chain
that reads outside of its shared memory.
"""

Rows = slice
"""A range of a batch's sequences."""


def sizes(q: Tensor, w1: Tensor, place: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Return batch, heads, mini-batches, and the constants of every kernel."""
    batch, tokens, heads, width = q.shape
    return batch, heads, tokens // len(place), {"D": width, "M": w1.shape[-1], "T": len(place)}


def launch(name: str) -> dict[str, int]:
    return {"num_warps": LAUNCH[name], "num_stages": 1}


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
        kept = [tensor[rows] for tensor in states]
        grid = (len(kept[0]) * heads,)
        weights = (w1, b1, w2, b2, gamma, beta)
        mlp_forward.chain[grid](k[rows], v[rows], rate[rows], place, *weights, *kept, heads, batches, **c, **launch("chain"))

    def output(rows: Rows) -> None:
        kept = [tensor[rows] for tensor in states]
        grid = (len(kept[0]) * heads * batches,)
        given = (q[rows], k[rows], v[rows], rate[rows], place, gamma, beta)
        mlp_forward.output[grid](*given, *kept, out[rows], heads, batches, **c, **launch("output"))

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

    tiles = [fresh(batches, 8, inner, short, like=k), fresh(batches, 3, width, short, like=k), fresh(batches, 3, short)]
    dq, dk, dv, d_rate = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(rate)
    dk_read, d_rate_read = torch.empty_like(k, dtype=torch.float32), torch.empty_like(rate)
    each = [fresh(batches, short), fresh(batches, width), fresh(batches, width)]
    sums = [fresh(), fresh(inner, width), fresh(inner), fresh(inner, width), fresh(width), fresh(width), fresh(width)]

    def cut(rows: Rows, *whole: Tensor) -> list[Tensor]:
        return [tensor[rows] for tensor in whole]

    def chain(rows: Rows) -> None:
        weights = (w1, b1, w2, b2, gamma, beta)
        grid = (len(q[rows]) * heads,)
        mlp_forward.chain[grid](
            *cut(rows, k, v, rate), place, *weights, *cut(rows, *states), heads, batches, **c, **launch("chain")
        )

    def readers(rows: Rows) -> None:
        given, left = cut(rows, q, k, v, rate), cut(rows, *states, d_out, *tiles, dq, dk_read, d_rate_read, *each)
        grid = (len(given[0]) * heads * batches,)
        mlp_backward.readers[grid](*given, place, gamma, beta, *left, heads, batches, **c, **launch("readers"))

    def back_chain(rows: Rows) -> None:
        given, left = cut(rows, q, k, v, rate), cut(rows, states[1], *tiles, dk_read, d_rate_read, dv, d_rate, *sums)
        grid = (len(given[0]) * heads,)
        mlp_backward.back_chain[grid](*given, place, gamma, beta, *left, heads, batches, **c, **launch("back_chain"))

    def through_w1(rows: Rows) -> None:
        given = cut(rows, states[0], tiles[0], dk_read, dk)
        mlp_backward.through_w1[(len(given[0]) * heads * batches,)](*given, heads, batches, **c, **launch("through_w1"))

    staggered(waves(q), chain, readers)
    staggered(waves(q), back_chain, through_w1)
    d_last, d_w1, d_b1, d_w2, d_b2, d_gamma, d_beta = (tensor.sum(0) for tensor in sums)
    d_place = each[0].sum((0, 1, 2))
    d_place[-1] += d_last.sum()
    return (
        dq, dk, dv, d_rate, d_place, d_w1.transpose(1, 2).to(w1.dtype).contiguous(), d_b1.unsqueeze(1).to(b1.dtype),
        d_w2.to(w2.dtype), d_b2.unsqueeze(1).to(b2.dtype),
        (each[1].sum((0, 2)) + d_gamma).to(gamma.dtype), (each[2].sum((0, 2)) + d_beta).to(beta.dtype),
    )  # fmt: skip


@ttt_mlp_backward.register_fake
def _(d_out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(one.new_empty(one.shape) for one in inputs)


def _save(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, d_out: Tensor) -> tuple[Tensor, ...]:
    return ttt_mlp_backward(d_out, *ctx.saved_tensors)


ttt_mlp.register_autograd(_backward, setup_context=_save)
