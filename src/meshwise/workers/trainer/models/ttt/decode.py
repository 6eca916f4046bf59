"""TTT layers one token at a time: the primal form (arXiv:2407.04620, 2.4), with a state of constant size.

A layer remembers each weight of its inner model as it was when the mini-batch began, and the sum of rate x gradient since then. A token
reads with weight - place x sum; after the last place of a mini-batch the sum goes into the weight.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.workers.trainer.models.ttt.learner import EPS, Learner, slope, turn
from meshwise.workers.trainer.models.ttt.linear import LinearLearner
from meshwise.workers.trainer.models.ttt.mlp import MLPLearner, gelu, gelu_slope
from meshwise.workers.trainer.models.ttt.model import TTTDecoder, rotation_of


@dataclass(frozen=True)
class Memory:
    """Of one layer: matrices (batch, heads, in, out) and biases (batch, heads, 1, out) in turn, and their sums."""

    weights: list[Tensor]
    sums: list[Tensor]
    state: Tensor
    """The same numbers as the decode kernel wants them, where weights and sums are views of them: (2, batch, heads, F + 1, F)."""


def start(layer: Learner, batch: int) -> Memory:
    first = [p.detach().float() for p in _parameters(layer)]
    if isinstance(layer, LinearLearner):
        size = layer.head_dim
        state = first[0].new_zeros(2, batch, layer.heads, size + 1, size)
        weights, sums = ([part[..., :size, :].transpose(-1, -2), part[..., size:, :]] for part in state)
    else:
        weights, sums = ([one.new_zeros(batch, *one.shape) for one in first] for _ in range(2))
        state = weights[0]
    for own, given in zip(weights, first, strict=True):
        own.copy_(given)
    return Memory(weights, sums, state)


def _parameters(layer: Learner) -> list[Tensor]:
    return [layer.W1, layer.b1, layer.W2, layer.b2] if isinstance(layer, MLPLearner) else [layer.W1, layer.b1]  # pyright: ignore


def taught(layer: Learner, k: Tensor, v: Tensor, weights: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What entered each matrix and the gradient at what left it, for keys and values (batch, heads, tokens, head_dim)."""
    if isinstance(layer, MLPLearner):
        w1, b1, w2, b2 = weights
        before = k @ w1 + b1
        outer = slope(gelu(before) @ w2 + b2, v - k, *layer.norm())
        return [(k, outer @ w2.transpose(-1, -2) * gelu_slope(before)), (gelu(before), outer)]
    w, b = weights
    return [(k, slope(k @ w + b, v - k, *layer.norm()))]


def add(layer: Learner, memory: Memory, k: Tensor, v: Tensor, rate: Tensor) -> None:
    """Put the gradients of some tokens of one mini-batch into the sums."""
    parts = taught(layer, k, v, memory.weights)
    for i, (entered, gradient) in enumerate(parts):
        step = rate[..., None] * gradient
        memory.sums[2 * i] += entered.transpose(-1, -2) @ step
        memory.sums[2 * i + 1] += step.sum(-2, keepdim=True)


def fold(memory: Memory, place: Tensor, full: Tensor) -> None:
    """After a mini-batch's last token, in place and without a look at the numbers, so that a CUDA graph may hold it."""
    for weight, total in zip(memory.weights, memory.sums, strict=True):
        weight -= torch.where(full, place * total, 0.0)
        total *= ~full


def read(layer: Learner, memory: Memory, q: Tensor, place: Tensor) -> Tensor:
    """(batch, heads, 1, head_dim): what a token at `place` reads."""
    now = [weight - place * total for weight, total in zip(memory.weights, memory.sums, strict=True)]
    out = q @ now[0] + now[1]
    if isinstance(layer, MLPLearner):
        out = gelu(out) @ now[2] + now[3]
    gamma, beta = layer.norm()
    return q + gamma * F.layer_norm(out, out.shape[-1:], eps=EPS) + beta


class Decoding:
    """A model that reads a prompt at once and then a token at a time. All its memory is taken at the start."""

    def __init__(self, model: TTTDecoder, batch: int = 1) -> None:
        self.model, self.trunk = model, model.model
        self.head: Any = model.lm_head
        device = self.head.weight.device
        self.layers: list[Any] = list(self.trunk.layers.values())
        self.memories = [start(block.seq_modeling_block, batch) for block in self.layers]
        self.rotation = rotation_of(model.config, device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        for block in self.layers:
            block.seq_modeling_block.choose(device)

    @torch.no_grad()
    def prompt(self, tokens: Tensor) -> Tensor:
        """Logits (batch, vocabulary) after the first tokens (batch, count), any number of them. Forgets what was read before."""
        x = self.trunk.embed_tokens(tokens)
        for block, memory in zip(self.layers, self.memories, strict=True):
            layer: Learner = block.seq_modeling_block
            normal = block.seq_norm(x)
            if layer.fast and isinstance(layer, LinearLearner):
                out = layer.read_and_keep(normal, self.rotation, memory.state)
            else:
                out = layer.read(normal, self.rotation)
                self._remember(layer, memory, normal)
            x = x + layer.o_proj(layer.post_norm(out))
            x = x + block.mlp(block.ffn_norm(x))
        self.position.fill_(tokens.shape[1])
        return self.head(self.trunk.norm(x[:, -1])).float()

    def _remember(self, layer: Learner, memory: Memory, x: Tensor) -> None:
        """The state after the tokens x, by running the chain of mini-batches alone."""
        for own, given in zip(memory.weights, _parameters(layer), strict=True):
            own.copy_(given)
        for total in memory.sums:
            total.zero_()
        size = layer.mini_batch
        for at in range(0, x.shape[1], size):
            part = x[:, at : at + size]
            k, v = (self._heads(layer, project(part)) for project in (layer.k_proj, layer.v_proj))
            rate, places = self._rates(layer, part)
            length = part.shape[1]
            add(layer, memory, turn(k, self.rotation[:, :length]), v, rate)
            fold(memory, places[-1], torch.tensor(length == size, device=x.device))

    def _heads(self, layer: Learner, x: Tensor) -> Tensor:
        return x.unflatten(-1, (layer.heads, -1)).transpose(1, 2).float()

    def _rates(self, layer: Learner, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rates of tokens (batch, heads, tokens), and of all places."""
        rate, places = layer.rates(F.pad(x, (0, 0, 0, -x.shape[1] % layer.mini_batch)))
        return rate.flatten(2)[..., : x.shape[1]], places

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Logits (batch, vocabulary) after one more token of each sequence (batch)."""
        x = self.trunk.embed_tokens(tokens)
        for block, memory in zip(self.layers, self.memories, strict=True):
            x = self._block(block, memory, x)
        self.position += 1
        return self.head(self.trunk.norm(x)).float()

    def _block(self, block: Any, memory: Memory, x: Tensor) -> Tensor:
        layer: Learner = block.seq_modeling_block
        normal = block.seq_norm(x)
        q, k, v = (self._heads(layer, project(normal[:, None])) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
        rate, places = self._rates(layer, normal[:, None])
        place = self.position % layer.mini_batch
        turned = self.rotation.index_select(1, place[None])
        add(layer, memory, turn(k, turned), v, rate)
        out = read(layer, memory, turn(q, turned), places.index_select(0, place[None])).transpose(1, 2).flatten(1)
        fold(memory, places[-1], place == layer.mini_batch - 1)
        x = x + layer.o_proj(layer.post_norm(out.to(x.dtype)))
        return x + block.mlp(block.ffn_norm(x))
