"""TTT-Linear's inner loop as one differentiable operation, `forward`, on top of six Triton kernels.

torch.compile sees two opaque operations with known shapes; nothing here waits for the device, so that a CUDA graph may hold it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.models.ttt.kernels import linear_backward, linear_decode, linear_forward

PADDING = int(linear_backward.PADDING.value)
KEPT, TILES = int(linear_backward.KEPT.value), int(linear_backward.TILES.value)
READY, LINES = int(linear_forward.READY.value), int(linear_forward.LINES.value)


@dataclass(frozen=True)
class LaunchSettings:
    """A kernel with its warps per program, and mini-batches of a chain whose reads are in flight at once."""

    kernel: Any
    warps: int
    stages: int = 0


LAUNCH_SETTINGS = {
    "prepare": LaunchSettings(linear_forward.prepare, 1),
    "forward_chain": LaunchSettings(linear_forward.forward_chain, 4, 2),
    "forward_out": LaunchSettings(linear_forward.forward_out, 1),
    "backward_each": LaunchSettings(linear_backward.backward_each, 2),
    "backward_chain": LaunchSettings(linear_backward.backward_chain, 4, 2),
    "backward_finish": LaunchSettings(linear_backward.backward_finish, 1),
    "decode": LaunchSettings(linear_decode.decode, 8),
}
"""The fastest settings on an H200 (docs/reports/ttt-kernels.md)."""


def launch(name: str, programs: int, packed: Tensor) -> Callable[..., None]:
    """Look up a kernel by name and bind its launch settings."""
    settings = LAUNCH_SETTINGS[name]
    options: dict[str, Any] = {"num_warps": settings.warps} | ({"STAGES": settings.stages} if settings.stages else {})
    if "PRECISION" in settings.kernel.arg_names:
        # float32 means float32: TF32, the tensor cores' short form, would lose three digits
        options["PRECISION"] = "ieee" if packed.dtype == torch.float32 else "tf32"
    return partial(settings.kernel[(programs,)], **options)


def columns(width: int, heads: int) -> int:
    """Return the columns of a packed row: queries, keys, values, one learning-rate score per head, and padding to a multiple of 16."""
    return 3 * width + -(-heads // PADDING) * PADDING


def _sizes(packed: Tensor, w1: Tensor, token_idx: Tensor) -> tuple[int, int, int, int, int, int]:
    """Return batch, seq, heads, features, tokens of a mini-batch, and mini-batches."""
    batch, seq, _ = packed.shape
    tokens = token_idx.shape[0]
    return batch, seq, w1.shape[0], w1.shape[-1], tokens, -(-seq // tokens)


@torch.library.custom_op("meshwise::ttt_linear", mutates_args=())
def forward(
    packed: Tensor, rotation: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor,
    base_lr: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return outputs (batch, seq, width) and, for the backward pass, W and b before each mini-batch and the results of `prepare`."""
    return _forward(packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, base_lr)


def _forward(
    packed: Tensor, rotation: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor,
    base_lr: float, kept: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, seq, heads, features, tokens, count = _sizes(packed, w1, token_idx)
    width, row = heads * features, packed.stride(1)
    out, states, biases, ready, lines = _empty_forward(packed, w1, token_idx)
    numbers = (seq, row, width, heads, count, base_lr / features)
    launch("prepare", batch * heads * count, packed)(
        packed, rotation, gamma, beta, lr_bias, ready, lines, *numbers, T=tokens, F=features
    )
    last, pending = (biases, biases) if kept is None else kept
    launch("forward_chain", batch * heads, packed)(
        ready, lines, rotation, w1, b1, gamma, token_idx, states, biases, last, pending, seq, heads, count,
        T=tokens, F=features, KEEP=kept is not None,
    )  # fmt: skip
    launch("forward_out", batch * heads * count, packed)(
        ready, lines, gamma, beta, token_idx, states, biases, out, seq, width, heads, count, T=tokens, F=features
    )
    return out, states, biases, ready, lines


def prefill(
    packed: Tensor, rotation: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor,
    base_lr: float, state: Tensor,
) -> Tensor:  # fmt: skip
    """Return outputs, and write W', b and their pending sums after the last token into `state` (2, batch, heads, F + 1, F)."""
    state.zero_()
    return _forward(packed, rotation, w1, b1, gamma, beta, token_idx, lr_bias, base_lr, state)[0]


def decode(
    packed: Tensor, rotation: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor, base_lr: float,
    state: Tensor, position: Tensor,
) -> Tensor:  # fmt: skip
    """Return the outputs (batch, width) of one token per sequence, packed (batch, columns), at `position`; updates `state`."""
    _, batch, heads, _, features = state.shape
    width = heads * features
    out = packed.new_empty(batch, width)
    shared = (packed, rotation, gamma, beta, token_idx, lr_bias, *state, position, out)
    numbers = (packed.stride(0), width, heads, base_lr / features)
    launch("decode", batch * heads, packed)(*shared, *numbers, T=token_idx.shape[0], F=features)
    return out


def _empty_forward(packed: Tensor, w1: Tensor, token_idx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, seq, heads, features, tokens, count = _sizes(packed, w1, token_idx)
    return (
        packed.new_empty(batch, seq, heads * features),
        packed.new_empty(batch, heads, count, features, features),
        packed.new_empty(batch, heads, count, features, dtype=torch.float32),
        packed.new_empty(batch, heads, count, READY, tokens, features),
        packed.new_empty(batch, heads, count, LINES, tokens, dtype=torch.float32),
    )


@forward.register_fake
def _(
    packed: Tensor, rotation: Tensor, w1: Tensor, b1: Tensor, gamma: Tensor, beta: Tensor, token_idx: Tensor, lr_bias: Tensor,
    base_lr: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_forward(packed, w1, token_idx)


@torch.library.custom_op("meshwise::ttt_linear_backward", mutates_args=())
def backward(
    d_out: Tensor, rotation: Tensor, w1: Tensor, gamma: Tensor, token_idx: Tensor, states: Tensor, biases: Tensor,
    ready: Tensor, lines: Tensor, base_lr: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return gradients of `packed`, of W1 and b1 per chain, and in two parts of gamma, beta and places per mini-batch."""
    batch, seq, heads, features, tokens, count = _sizes(d_out, w1, token_idx)
    d_packed, d_first, each, finish = _empty_backward(d_out, w1, token_idx)
    kept = d_out.new_empty(batch * heads * count, KEPT, tokens, dtype=torch.float32)
    tiles = d_out.new_empty(batch * heads * count, TILES, tokens, features)
    d_states, d_biases = torch.empty_like(states), torch.empty_like(biases)
    numbers: Any = (seq, d_packed.stride(1), heads * features, heads, count)
    sizes: Any = {"T": tokens, "F": features}
    launch("backward_each", batch * heads * count, d_out)(
        d_out, ready, lines, rotation, gamma, token_idx, states, biases, d_packed, kept, tiles, each, *numbers, **sizes
    )
    launch("backward_chain", batch * heads, d_out)(
        ready, rotation, gamma, kept, tiles, d_states, d_biases, d_first, heads, count, **sizes
    )
    launch("backward_finish", batch * heads * count, d_out)(
        ready, lines, rotation, gamma, token_idx, states, d_states, d_biases, kept, tiles, d_packed, finish,
        *numbers, base_lr / features, **sizes,
    )  # fmt: skip
    return d_packed, d_first, each, finish


def _empty_backward(d_out: Tensor, w1: Tensor, token_idx: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, seq, heads, features, tokens, count = _sizes(d_out, w1, token_idx)
    return (
        d_out.new_empty(batch, seq, columns(heads * features, heads)),
        d_out.new_empty(batch, heads, features + 1, features, dtype=torch.float32),
        d_out.new_empty(batch, heads, count, 2 * features + tokens, dtype=torch.float32),
        d_out.new_empty(batch, heads, count, 2 * features + 2, dtype=torch.float32),
    )


@backward.register_fake
def _(
    d_out: Tensor, rotation: Tensor, w1: Tensor, gamma: Tensor, token_idx: Tensor, states: Tensor, biases: Tensor,
    ready: Tensor, lines: Tensor, base_lr: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_backward(d_out, w1, token_idx)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, rotation, w1, b1, gamma, beta, token_idx, lr_bias, ctx.base_lr = inputs
    ctx.set_materialize_grads(False)  # nobody else uses the states: their zero gradients would take as much memory again
    ctx.save_for_backward(rotation, w1, b1, gamma, beta, token_idx, lr_bias, *output[1:])


def _differentiate(ctx: Any, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    rotation, w1, b1, gamma, beta, token_idx, lr_bias, states, biases, ready, lines = ctx.saved_tensors
    d_packed, d_first, each, finish = backward(
        d_out.to(ready.dtype).contiguous(), rotation, w1, gamma, token_idx, states, biases, ready, lines, ctx.base_lr
    )
    features, tokens = w1.shape[-1], token_idx.shape[0]
    d_first, each, finish = d_first.sum(0), each.sum((0, 2)), finish.sum((0, 2))
    counted = 1 / torch.arange(1, tokens + 1, device=d_out.device)
    d_place = each[:, 2 * features :].sum(0)
    d_place = torch.cat((d_place[:-1], (d_place[-1] + finish[:, 2 * features].sum())[None]))
    return (
        d_packed, None, d_first[:, :-1].transpose(1, 2).to(w1.dtype), d_first[:, -1:].reshape(b1.shape).to(b1.dtype),
        (each[:, :features] + finish[:, :features]).to(gamma.dtype),
        (each[:, features : 2 * features] + finish[:, features : 2 * features]).to(beta.dtype),
        torch.where(counted + token_idx >= 0, d_place, 0.0).to(token_idx.dtype),
        finish[:, -1].reshape(lr_bias.shape).to(lr_bias.dtype), None,
    )  # fmt: skip


forward.register_autograd(_differentiate, setup_context=_save)
