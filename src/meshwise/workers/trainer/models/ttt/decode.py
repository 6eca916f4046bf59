"""TTT layers one token at a time: the primal form (arXiv:2407.04620, 2.4), with a state of constant size.

A layer keeps each weight of its inner model as of the start of the mini-batch, and the sum of rate x gradient since then. A token reads
with weight - place x sum; after the last position of a mini-batch the sum is applied to the weight.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.workers.trainer.models.ttt.learner import EPS, Learner, loss_gradient, rotate
from meshwise.workers.trainer.models.ttt.linear import LinearLearner
from meshwise.workers.trainer.models.ttt.mlp import MLPLearner, gelu, gelu_derivative
from meshwise.workers.trainer.models.ttt.model import TTTDecoder, rotation_of


@dataclass(frozen=True)
class Memory:
    """The state of one layer: matrices (batch, heads, in, out) alternating with biases (batch, heads, 1, out), and their sums."""

    weights: list[Tensor]
    sums: list[Tensor]
    state: Tensor  # storage in the decode kernel's order, (2, batch, heads, F + 1, F), if weights and sums are views of it


def initial_memory(layer: Learner, batch: int) -> Memory:
    """Return the state before the first token: the learned initial weights, and sums of zero."""
    first = [p.detach().float() for p in _parameters(layer)]
    if isinstance(layer, LinearLearner):
        size = layer.head_dim
        state = first[0].new_zeros(2, batch, layer.heads, size + 1, size)
        weights, sums = ([part[..., :size, :].transpose(-1, -2), part[..., size:, :]] for part in state)
    else:
        weights, sums = ([parameter.new_zeros(batch, *parameter.shape) for parameter in first] for _ in range(2))
        state = weights[0]
    for weight, start in zip(weights, first, strict=True):
        weight.copy_(start)
    return Memory(weights, sums, state)


def _parameters(layer: Learner) -> list[Tensor]:
    return [layer.W1, layer.b1, layer.W2, layer.b2] if isinstance(layer, MLPLearner) else [layer.W1, layer.b1]  # pyright: ignore


def layer_gradients(layer: Learner, k: Tensor, v: Tensor, weights: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the input of each matrix and the gradient at its output, for keys and values (batch, heads, tokens, head_dim)."""
    if isinstance(layer, MLPLearner):
        w1, b1, w2, b2 = weights
        before = k @ w1 + b1
        outer = loss_gradient(gelu(before) @ w2 + b2, v - k, *layer.norm())
        return [(k, outer @ w2.transpose(-1, -2) * gelu_derivative(before)), (gelu(before), outer)]
    w, b = weights
    return [(k, loss_gradient(k @ w + b, v - k, *layer.norm()))]


def add_gradients(layer: Learner, memory: Memory, k: Tensor, v: Tensor, rate: Tensor) -> None:
    """Add the gradients of tokens of one mini-batch to the sums."""
    parts = layer_gradients(layer, k, v, memory.weights)
    for i, (inputs, gradient) in enumerate(parts):
        step = rate[..., None] * gradient
        memory.sums[2 * i] += inputs.transpose(-1, -2) @ step
        memory.sums[2 * i + 1] += step.sum(-2, keepdim=True)


def apply_sums(memory: Memory, place: Tensor, full: Tensor) -> None:
    """Apply the sums to the weights if `full`, in place and without reading values on the host, so that a CUDA graph may hold it."""
    for weight, total in zip(memory.weights, memory.sums, strict=True):
        weight -= torch.where(full, place * total, 0.0)
        total *= ~full


def read_token(layer: Learner, memory: Memory, q: Tensor, place: Tensor) -> Tensor:
    """Return the output (batch, heads, 1, head_dim) of a token whose position has the factor `place`."""
    current = [weight - place * total for weight, total in zip(memory.weights, memory.sums, strict=True)]
    out = q @ current[0] + current[1]
    if isinstance(layer, MLPLearner):
        out = gelu(out) @ current[2] + current[3]
    gamma, beta = layer.norm()
    return q + gamma * F.layer_norm(out, out.shape[-1:], eps=EPS) + beta


class Decoding:
    """A predictor that reads a prompt at once and then a token at a time. It allocates all its memory at the start."""

    def __init__(self, model: TTTDecoder, batch: int = 1) -> None:
        self.model, self.trunk = model, model.model
        self.head: Any = model.lm_head
        device = self.head.weight.device
        self.layers: list[Any] = list(self.trunk.layers.values())
        self.memories = [initial_memory(block.seq_modeling_block, batch) for block in self.layers]
        self.rotation = rotation_of(model.config, device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        for block in self.layers:
            block.seq_modeling_block.choose_kernels(device)

    @torch.no_grad()
    def prompt(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, vocabulary) after a prompt (batch, count) of any length. Forgets earlier text."""
        x = self.trunk.embed_tokens(tokens)
        for block, memory in zip(self.layers, self.memories, strict=True):
            layer: Learner = block.seq_modeling_block
            normal = block.seq_norm(x)
            if layer.fast and isinstance(layer, LinearLearner):
                out = layer.read_and_keep(normal, self.rotation, memory.state)
            else:
                out = layer.read(normal, self.rotation)
                self._replay_state(layer, memory, normal)
            x = x + layer.o_proj(layer.post_norm(out))
            x = x + block.mlp(block.ffn_norm(x))
        self.position.fill_(tokens.shape[1])
        return self.head(self.trunk.norm(x[:, -1])).float()

    def _replay_state(self, layer: Learner, memory: Memory, x: Tensor) -> None:
        """Compute the state after the tokens x by running the chain of mini-batches."""
        for weight, start in zip(memory.weights, _parameters(layer), strict=True):
            weight.copy_(start)
        for total in memory.sums:
            total.zero_()
        size = layer.mini_batch
        for at in range(0, x.shape[1], size):
            part = x[:, at : at + size]
            k, v = (self._heads(layer, project(part)) for project in (layer.k_proj, layer.v_proj))
            rate, places = self._rates(layer, part)
            length = part.shape[1]
            add_gradients(layer, memory, rotate(k, self.rotation[:, :length]), v, rate)
            apply_sums(memory, places[-1], torch.tensor(length == size, device=x.device))

    def _heads(self, layer: Learner, x: Tensor) -> Tensor:
        return x.unflatten(-1, (layer.heads, -1)).transpose(1, 2).float()

    def _rates(self, layer: Learner, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the learning rates of the tokens (batch, heads, tokens), and the factors of all positions."""
        rate, places = layer.rates(F.pad(x, (0, 0, 0, -x.shape[1] % layer.mini_batch)))
        return rate.flatten(2)[..., : x.shape[1]], places

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, vocabulary) after one more token of each sequence (batch)."""
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
        rotation = self.rotation.index_select(1, place[None])
        add_gradients(layer, memory, rotate(k, rotation), v, rate)
        out = read_token(layer, memory, rotate(q, rotation), places.index_select(0, place[None])).transpose(1, 2).flatten(1)
        apply_sums(memory, places[-1], place == layer.mini_batch - 1)
        x = x + layer.o_proj(layer.post_norm(out.to(x.dtype)))
        return x + block.mlp(block.ffn_norm(x))
