"""TTT-Linear's inner loop as one differentiable operation, `learn`, on top of four Triton kernels.

torch.compile sees two opaque operations with known shapes; nothing here waits for the device, so a CUDA graph may hold it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwise.trainer.models.ttt.kernels import linear_backward, linear_decode, linear_forward

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
PADDING = int(linear_backward.PADDING.value)
KEPT, TILES = int(linear_backward.KEPT.value), int(linear_backward.TILES.value)


@dataclass(frozen=True)
class Tuning:
    """How a kernel is launched: warps of a program, and mini-batches whose reads are under way at once."""

    warps: int
    stages: int = 1


TUNING = {"forward_chain": Tuning(4, 2), "forward_out": Tuning(2), "backward_each": Tuning(2), "backward_chain": Tuning(4, 2)}
"""On an H200 (docs/ttt-kernels.md)."""

DECODE_WARPS = 8


def launch(kernel: Any, programs: int) -> Any:
    return kernel[(programs,)]


def columns(width: int, heads: int) -> int:
    """Of a packed row: queries, keys, values, one learning-rate score per head, and none-such up to a multiple of 16."""
    return 3 * width + -(-heads // PADDING) * PADDING


def _sizes(packed: Tensor, w1: Tensor, token_idx: Tensor) -> tuple[int, int, int, int, int, int]:
    """batch, seq, heads, features, tokens of a mini-batch, mini-batches"""
    batch, seq, _ = packed.shape
    tokens = token_idx.shape[0]
    return batch, seq, w1.shape[0], w1.shape[-1], tokens, -(-seq // tokens)


def _options(name: str, packed: Tensor, features: int, tokens: int, staged: bool) -> dict[str, Any]:
    tuning = TUNING[name]
    # float32 means float32: the tensor cores' short form of it would be three digits off
    options: dict[str, Any] = {"T": tokens, "F": features, "PRECISION": "ieee" if packed.dtype == torch.float32 else "tf32"}
    return options | ({"STAGES": tuning.stages} if staged else {}) | {"num_warps": tuning.warps}


@torch.library.custom_op("meshwise::ttt_linear", mutates_args=())
def forward(
    packed: Tensor,
    rotation: Tensor,
    w1: Tensor,
    b1: Tensor,
    gamma: Tensor,
    beta: Tensor,
    token_idx: Tensor,
    lr_bias: Tensor,
    base_lr: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (batch, seq, width); W and b before each mini-batch, for the way back."""
    return _forward(packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, base_lr)


def _forward(
    packed: Tensor,
    rotation: Tensor,
    w1: Tensor,
    b1: Tensor,
    gamma: Tensor,
    beta: Tensor,
    token_idx: Tensor,
    lr_bias: Tensor,
    base_lr: float,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, seq, heads, features, tokens, count = _sizes(packed, w1, token_idx)
    width, row = heads * features, packed.stride(1)
    out, states, biases = _empty_forward(packed, w1, token_idx)
    numbers = (seq, row, width, heads, count, base_lr / features)
    options = _options("forward_chain", packed, features, tokens, True) | {"KEEP": kept is not None}
    last, pending = (biases, biases) if kept is None else kept
    launch(linear_forward.forward_chain, batch * heads)(
        packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, states, biases, last, pending, *numbers, **options
    )
    options = _options("forward_out", packed, features, tokens, False)
    launch(linear_forward.forward_out, batch * heads * count)(
        packed, rotation, gamma, beta, token_idx, lr_bias, states, biases, out, *numbers, **options
    )
    return out, states, biases


def prefill(
    packed: Tensor,
    rotation: Tensor,
    w1: Tensor,
    b1: Tensor,
    gamma: Tensor,
    beta: Tensor,
    token_idx: Tensor,
    lr_bias: Tensor,
    base_lr: float,
    state: Tensor,
) -> Tensor:
    """Outputs, and for a decoder W', b and their pending sums after the last token in `state` (2, batch, heads, F + 1, F)."""
    state.zero_()
    return _forward(packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, base_lr, state)[0]


def decode(
    packed: Tensor,
    rotation: Tensor,
    gamma: Tensor,
    beta: Tensor,
    token_idx: Tensor,
    lr_bias: Tensor,
    base_lr: float,
    state: Tensor,
    position: Tensor,
) -> Tensor:
    """Outputs (batch, width) of one token of each sequence, packed (batch, columns), at `position`; takes `state` one token on."""
    _, batch, heads, _, features = state.shape
    width = heads * features
    out = packed.new_empty(batch, width)
    shared = (packed, rotation, gamma, beta, token_idx, lr_bias, *state, position, out)
    numbers = (packed.stride(0), width, heads, base_lr / features)
    launch(linear_decode.decode, batch * heads)(*shared, *numbers, T=token_idx.shape[0], F=features, num_warps=DECODE_WARPS)
    return out


def _empty_forward(packed: Tensor, w1: Tensor, token_idx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, seq, heads, features, _, count = _sizes(packed, w1, token_idx)
    return (
        packed.new_empty(batch, seq, heads * features),
        packed.new_empty(batch, heads, count, features, features),
        packed.new_empty(batch, heads, count, features, dtype=torch.float32),
    )


@forward.register_fake
def _(
    packed: Tensor, rotation: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor,
    base_lr: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_forward(packed, w1, token_idx)


@torch.library.custom_op("meshwise::ttt_linear_backward", mutates_args=())
def backward(
    d_out: Tensor,
    packed: Tensor,
    rotation: Tensor,
    w1: Tensor,
    gamma: Tensor,
    beta: Tensor,
    token_idx: Tensor,
    lr_bias: Tensor,
    states: Tensor,
    biases: Tensor,
    base_lr: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `packed`; of W1 and b1 per chain; of gamma, beta and places per mini-batch; of what the chains add to those."""
    batch, seq, heads, features, tokens, count = _sizes(packed, w1, token_idx)
    width, row = heads * features, packed.stride(1)
    d_packed, d_state, each, chain = _empty_backward(packed, w1, token_idx)
    kept = packed.new_empty(batch * heads * count, KEPT, tokens, dtype=torch.float32)
    tiles = packed.new_empty(batch * heads * count, TILES, tokens, features)
    numbers = (seq, row, width, heads, count, base_lr / features)
    rates = (token_idx, lr_bias, states)
    options = _options("backward_each", packed, features, tokens, False)
    launch(linear_backward.backward_each, batch * heads * count)(
        d_out, packed, rotation, gamma, beta, *rates, biases, d_packed, kept, tiles, each, *numbers, **options
    )
    options = _options("backward_chain", packed, features, tokens, True)
    launch(linear_backward.backward_chain, batch * heads)(
        packed, rotation, gamma, *rates, d_packed, kept, tiles, chain, d_state, *numbers, **options
    )
    return d_packed, d_state, each, chain


def _empty_backward(packed: Tensor, w1: Tensor, token_idx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, _, heads, features, tokens, count = _sizes(packed, w1, token_idx)
    return (
        torch.empty_like(packed),
        packed.new_empty(batch, heads, features + 1, features, dtype=torch.float32),
        packed.new_empty(batch, heads, count, 2 * features + tokens, dtype=torch.float32),
        packed.new_empty(batch, heads, 2 * features + 2, dtype=torch.float32),
    )


@backward.register_fake
def _(
    d_out: Tensor, packed: Tensor, rotation: Tensor, w1: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor,
    states: Tensor, biases: Tensor, base_lr: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_backward(packed, w1, token_idx)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, ctx.base_lr = inputs
    ctx.set_materialize_grads(False)  # the states are nobody else's: zeros for them would be as large again
    ctx.save_for_backward(packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, *output[1:])


def _differentiate(ctx: Any, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, states, biases = ctx.saved_tensors
    d_packed, d_state, each, chain = backward(
        d_out.to(packed.dtype).contiguous(), packed, rotation, w1, gamma, beta, token_idx, lr_bias, states, biases, ctx.base_lr
    )
    features, tokens = w1.shape[-1], token_idx.shape[0]
    d_state, each, chain = d_state.sum(0), each.sum((0, 2)), chain.sum(0)
    counted = 1 / torch.arange(1, tokens + 1, device=packed.device)
    d_place = each[:, 2 * features :].sum(0)
    d_place = torch.cat((d_place[:-1], (d_place[-1] + chain[:, 2 * features].sum())[None]))
    return (
        d_packed,
        None,
        d_state[:, :-1].transpose(1, 2).to(w1.dtype),
        d_state[:, -1:].reshape(b1.shape).to(b1.dtype),
        (each[:, :features] + chain[:, :features]).to(gamma.dtype),
        (each[:, features : 2 * features] + chain[:, features : 2 * features]).to(beta.dtype),
        torch.where(counted + token_idx >= 0, d_place, 0.0).to(token_idx.dtype),
        chain[:, -1].reshape(lr_bias.shape).to(lr_bias.dtype),
        None,
    )


forward.register_autograd(_differentiate, setup_context=_save)
