"""TTT-Linear: Llama's frame, with attention replaced by a linear model per head that learns while it reads (arXiv:2407.04620).

Plain and serial: one step of the loop per mini-batch of tokens, in float32. Names are those of the paper's code, from memory.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.trainer.attention import HERE, Place
from meshwise.trainer.models import Span, Tied
from meshwise.trainer.models.llama.model import FeedForward, norm_of
from meshwise.trainer.recompute import again
from meshwise.trainer.settings import Sizes

EPS = 1e-6


class Learner(nn.Module):
    """A linear model W, b per head, trained on K -> V - K one mini-batch at a time, and read with Q."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = Sizes.of(config)
        self.heads, self.head_dim = sizes.heads, sizes.hidden // sizes.heads
        self.mini_batch, self.base_lr = int(config["mini_batch_size"]), float(config.get("ttt_base_lr", 1.0))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(sizes.hidden, sizes.hidden, bias=False) for _ in range(4))
        self.W1 = nn.Parameter(torch.empty(self.heads, self.head_dim, self.head_dim))
        self.b1 = nn.Parameter(torch.empty(self.heads, 1, self.head_dim))
        self.ttt_norm_weight = nn.Parameter(torch.empty(self.heads, self.head_dim))
        self.ttt_norm_bias = nn.Parameter(torch.empty(self.heads, self.head_dim))
        self.learnable_ttt_lr_weight = nn.Parameter(torch.empty(self.heads, 1, sizes.hidden))
        self.learnable_ttt_lr_bias = nn.Parameter(torch.empty(self.heads, 1))
        self.learnable_token_idx = nn.Parameter(torch.empty(self.mini_batch))
        self.post_norm = nn.LayerNorm(sizes.hidden, eps=EPS)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        q, k, v = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        rate, place = self.rates(x)
        out = self.learn(turn(q, rotation), turn(k, rotation), v, rate, place)
        out = out.flatten(2, 3).transpose(1, 2).flatten(2).to(x.dtype)
        return self.o_proj(self.post_norm(out))

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, mini-batches, tokens, head_dim)"""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).unflatten(2, (-1, self.mini_batch)).float()

    def rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rates: of each token (batch, heads, mini-batches, tokens), and of each place in a mini-batch."""
        score = x.float() @ self.learnable_ttt_lr_weight.squeeze(1).float().T + self.learnable_ttt_lr_bias.squeeze(1).float()
        rate = score.sigmoid().transpose(1, 2).unflatten(2, (-1, self.mini_batch)) * self.base_lr / self.head_dim
        counted = 1 / torch.arange(1, self.mini_batch + 1, device=x.device)
        return rate, (counted + self.learnable_token_idx.float()).clamp(min=0)

    def learn(self, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
        """All mini-batches in turn, each in the dual form (arXiv:2407.04620, 2.5): token i sees the gradients of tokens up to i."""
        w, b = self.W1.float(), self.b1.float()
        gamma, beta = self.ttt_norm_weight.float().unsqueeze(1), self.ttt_norm_bias.float().unsqueeze(1)
        outputs: list[Tensor] = []
        for qs, ks, vs, rs in zip(q.unbind(2), k.unbind(2), v.unbind(2), rate.unbind(2), strict=True):
            gradient = slope(ks @ w + b, vs - ks, gamma, beta)
            seen = torch.tril(place[:, None] * rs[..., None, :] * (qs @ ks.transpose(-1, -2) + 1))
            read = qs @ w + b - seen @ gradient
            outputs.append(qs + gamma * F.layer_norm(read, read.shape[-1:], eps=EPS) + beta)
            step = (place[-1] * rs)[..., None] * gradient
            w, b = w - ks.transpose(-1, -2) @ step, b - step.sum(-2, keepdim=True)
        return torch.stack(outputs, 2)


def slope(z: Tensor, target: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """The gradient of |LN(z) - target|^2 / 2 with respect to z."""
    scale = torch.rsqrt(z.var(-1, correction=0, keepdim=True) + EPS)
    normal = (z - z.mean(-1, keepdim=True)) * scale
    at_normal = (gamma * normal + beta - target) * gamma
    return scale * (at_normal - at_normal.mean(-1, keepdim=True) - normal * (at_normal * normal).mean(-1, keepdim=True))


def turn(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions on neighbouring pairs, counted from the start of the mini-batch."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = rotation
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, config: Mapping[str, Any], recompute: str) -> None:
        super().__init__()
        self.full = recompute == "full"
        self.seq_norm = norm_of(config)
        self.seq_modeling_block = Learner(config)
        self.ffn_norm = norm_of(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        return again(self._run, x, rotation) if self.full else self._run(x, rotation)

    def _run(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.seq_modeling_block(self.seq_norm(x), rotation)
        return x + self.mlp(self.ffn_norm(x))


class Trunk(nn.Module):
    def __init__(self, config: Mapping[str, Any], span: Span, recompute: str) -> None:
        super().__init__()
        sizes = Sizes.of(config)
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.hidden) if span.starts else None
        self.layers = nn.ModuleDict({str(i): Block(config, recompute) for i in span.layers})
        self.norm = norm_of(config) if span.ends else None


class TTTLinear(Tied):
    def __init__(self, config: Mapping[str, Any], span: Span, place: Place = HERE, recompute: str = "none") -> None:
        super().__init__()
        sizes = Sizes.of(config)
        self.config, self.tied = config, sizes.tied
        self.model = Trunk(config, span, recompute)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if span.ends else None
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        rotation = rotation_of(self.config, x.device)
        for block in self.model.layers.values():
            x = block(x, rotation)
        return self.end(x, self.model.norm, targets)


def rotation_of(config: Mapping[str, Any], device: torch.device) -> Tensor:
    """Cosines and sines (2, mini-batch, head_dim / 2) of the places in a mini-batch."""
    sizes = Sizes.of(config)
    dim = sizes.hidden // sizes.heads
    frequency = float(config.get("rope_theta", 10000.0)) ** -(torch.arange(0, dim, 2, device=device).float() / dim)
    angle = torch.arange(int(config["mini_batch_size"]), device=device).float()[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()))
