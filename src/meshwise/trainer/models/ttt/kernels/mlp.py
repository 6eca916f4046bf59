"""TTT-MLP's inner loop as torch operators: shapes for the compiler, gradients for autograd, kernels for the GPU.

Inputs: q, k (with positions turned), v (batch, tokens, heads, D); rate (batch, tokens, heads) and place (T) in float32; W1 (heads, D, M),
b1 (heads, 1, M), W2 (heads, M, D), b2 (heads, 1, D); gamma, beta (heads, D).
"""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
import torch
from torch import Tensor

from meshwise.trainer.models.ttt.kernels import mlp_backward, mlp_forward

LAUNCH = {
    "chain": {"num_warps": 8, "num_stages": 1},
    "output": {"num_warps": 8, "num_stages": 1},
    "readers": {"num_warps": 8, "num_stages": 1},
    "back_chain": {"num_warps": 8, "num_stages": 1},
    "through_w1": {"num_warps": 4, "num_stages": 1},
}
"""A chain holds 128 KiB of state in its registers, half of what a multiprocessor has; two stages read a mini-batch ahead."""

States = tuple[Tensor, Tensor, Tensor, Tensor]


def sizes(q: Tensor, w1: Tensor, place: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Batch, heads, mini-batches, and the constants of every kernel."""
    batch, tokens, heads, width = q.shape
    return batch, heads, tokens // len(place), {"D": width, "M": w1.shape[-1], "T": len(place)}


def run_chain(k: Tensor, v: Tensor, rate: Tensor, place: Tensor, weights: tuple[Tensor, ...]) -> States:
    """The weights at the start of every mini-batch: W1' and W2 in k's precision, b1 and b2 in float32."""
    batch, heads, batches, c = sizes(k, weights[0], place)
    states = [k.new_empty(batch, heads, batches, c["M"], c["D"]) for _ in range(2)]
    starts = [k.new_empty(batch, heads, batches, c[size], dtype=torch.float32) for size in "MD"]
    grid = (batch * heads,)
    mlp_forward.chain[grid](k, v, rate, place, *weights, *states, *starts, heads, batches, **c, **LAUNCH["chain"])
    return states[0], states[1], starts[0], starts[1]


@torch.library.custom_op("meshwise::ttt_mlp", mutates_args=())
def ttt_mlp(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor,
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, gamma: Tensor, beta: Tensor,
) -> Tensor:  # fmt: skip
    batch, heads, batches, c = sizes(q, w1, place)
    states = run_chain(k, v, rate, place, (w1, b1, w2, b2, gamma, beta))
    out = torch.empty_like(q)
    grid = (batch * heads * batches,)
    mlp_forward.output[grid](
        q, k, v, rate, place, gamma, beta, *states, out, heads, batches, **c, **LAUNCH["output"]
    )  # fmt: skip
    return out


@ttt_mlp.register_fake
def _(q: Tensor, *others: Tensor) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("meshwise::ttt_mlp_backward", mutates_args=())
def ttt_mlp_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor,
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, gamma: Tensor, beta: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, heads, batches, c = sizes(q, w1, place)
    width, inner, short = c["D"], c["M"], c["T"]
    # kept weights would be 64 KiB per mini-batch and head, 5 GiB for 125M at 16 x 512: running the chain again costs less
    states = run_chain(k, v, rate, place, (w1, b1, w2, b2, gamma, beta))

    def fresh(*shape: int, like: Tensor = rate) -> Tensor:
        return like.new_empty(batch, heads, *shape)

    wide, narrow = fresh(batches, 8, inner, short, like=k), fresh(batches, 3, width, short, like=k)
    thin = fresh(batches, 3, short)
    dq, dk, dv, d_rate = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(rate)
    dk_read, d_rate_read = torch.empty_like(k, dtype=torch.float32), torch.empty_like(rate)
    d_places, d_gammas, d_betas = fresh(batches, short), fresh(batches, width), fresh(batches, width)
    mlp_backward.readers[(batch * heads * batches,)](
        q, k, v, rate, place, gamma, beta, *states, d_out, wide, narrow, thin, dq, dk_read, d_rate_read, d_places, d_gammas, d_betas,
        heads, batches, **c, **LAUNCH["readers"],
    )  # fmt: skip
    d_last, d_gamma, d_beta = fresh(), fresh(width), fresh(width)
    d_w1, d_b1, d_w2, d_b2 = fresh(inner, width), fresh(inner), fresh(inner, width), fresh(width)
    mlp_backward.back_chain[(batch * heads,)](
        q, k, v, rate, place, gamma, beta, states[1], wide, narrow, thin, dk_read, d_rate_read,
        dv, d_rate, d_last, d_w1, d_b1, d_w2, d_b2, d_gamma, d_beta, heads, batches, **c, **LAUNCH["back_chain"],
    )  # fmt: skip
    mlp_backward.through_w1[(batch * heads * batches,)](states[0], wide, dk_read, dk, heads, batches, **c, **LAUNCH["through_w1"])
    d_place = d_places.sum((0, 1, 2))
    d_place[-1] += d_last.sum()
    return (
        dq, dk, dv, d_rate, d_place,
        d_w1.sum(0).transpose(1, 2).to(w1.dtype).contiguous(), d_b1.sum(0).unsqueeze(1).to(b1.dtype),
        d_w2.sum(0).to(w2.dtype), d_b2.sum(0).unsqueeze(1).to(b2.dtype),
        (d_gammas.sum((0, 2)) + d_gamma.sum(0)).to(gamma.dtype), (d_betas.sum((0, 2)) + d_beta.sum(0)).to(beta.dtype),
    )  # fmt: skip


@ttt_mlp_backward.register_fake
def _(d_out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(one) for one in inputs)


def _keep(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, d_out: Tensor) -> tuple[Tensor, ...]:
    return ttt_mlp_backward(d_out.contiguous(), *ctx.saved_tensors)


ttt_mlp.register_autograd(_backward, setup_context=_keep)
