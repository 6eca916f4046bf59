"""The parts that every TTT layer has: projections, learning rates per token and position, and a small model per head.

Plain and serial: one loop iteration per mini-batch of tokens, in float32. Parameter names are those of the paper's code, from memory.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.registry import Config, sizes_of
from meshwise.workers.trainer.models.families.ttt import learner_of
from meshwise.workers.trainer.models.ttt.dispatch import Limits, operand_dtype, use_kernels

EPS = 1e-6


class Learner(nn.Module, ABC):
    """A small model per head, trained on K -> V - K one mini-batch at a time, and read with Q (arXiv:2407.04620)."""

    limits: Limits | None = None  # the layers its kernels support; None if it has no kernels

    def __init__(self, config: Config) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.heads, self.head_dim = sizes.heads, sizes.hidden // sizes.heads
        self.mini_batch, self.base_lr = learner_of(config)[1], float(config.get("ttt_base_lr", 1.0))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(sizes.hidden, sizes.hidden, bias=False) for _ in range(4))
        self.ttt_norm_weight = nn.Parameter(torch.empty(self.heads, self.head_dim))
        self.ttt_norm_bias = nn.Parameter(torch.empty(self.heads, self.head_dim))
        self.learnable_ttt_lr_weight = nn.Parameter(torch.empty(self.heads, 1, sizes.hidden))
        self.learnable_ttt_lr_bias = nn.Parameter(torch.empty(self.heads, 1))
        self.learnable_token_idx = nn.Parameter(torch.empty(self.mini_batch))
        self.post_norm = nn.LayerNorm(sizes.hidden, eps=EPS)
        self.fast = False
        """Whether to use the kernels; the decoder decides before each pass."""

    def choose_kernels(self, device: torch.device) -> None:
        """Use the kernels if they support this layer."""
        dtype = operand_dtype(device, self.q_proj.weight.dtype)
        self.fast = self.limits is not None and use_kernels(device, dtype, self.head_dim, self.mini_batch, self.limits)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        out = self.read_fast(x, rotation) if self.fast else self.read(x, rotation)
        return self.o_proj(self.post_norm(out))

    def read(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Return the outputs of all heads for every token, side by side. A partial last mini-batch is padded."""
        seq = x.shape[1]
        x = F.pad(x, (0, 0, 0, -seq % self.mini_batch))
        q, k, v = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        rate, place = self.rates(x)
        out = self.learn(rotate(q, rotation), rotate(k, rotation), v, rate, place)
        return out.flatten(2, 3).transpose(1, 2).flatten(2)[:, :seq].to(x.dtype)

    @abstractmethod
    def read_fast(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Compute `read` by kernels."""

    def _split(self, x: Tensor) -> Tensor:
        """Return x as (batch, heads, mini-batches, tokens, head_dim)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).unflatten(2, (-1, self.mini_batch)).float()

    def rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the learning rates of each token (batch, heads, mini-batches, tokens), and the factor of each position in a mini-batch."""
        score = x.float() @ self.learnable_ttt_lr_weight.squeeze(1).float().T + self.learnable_ttt_lr_bias.squeeze(1).float()
        rate = score.sigmoid().transpose(1, 2).unflatten(2, (-1, self.mini_batch)) * self.base_lr / self.head_dim
        counted = 1 / torch.arange(1, self.mini_batch + 1, device=x.device)
        return rate, (counted + self.learnable_token_idx.float()).clamp(min=0)

    @abstractmethod
    def learn(self, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
        """Process mini-batches in order, each in the dual form (arXiv:2407.04620, 2.5): token i sees the gradients of tokens up to i."""

    def norm(self) -> tuple[Tensor, Tensor]:
        """Return gain and shift (heads, 1, head_dim) of the norm that ends each head's model."""
        return self.ttt_norm_weight.float().unsqueeze(1), self.ttt_norm_bias.float().unsqueeze(1)


def dual_weights(q: Tensor, k: Tensor, rate: Tensor, place: Tensor) -> Tensor:
    """Return the weight of token j's gradient in token i's output, through a matrix (q @ k) and its bias (the "+ 1")."""
    return torch.tril(place[:, None] * rate[..., None, :] * (q @ k.transpose(-1, -2) + 1))


def loss_gradient(z: Tensor, target: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Return the gradient of |LN(z) - target|^2 / 2 with respect to z."""
    scale = torch.rsqrt(z.var(-1, correction=0, keepdim=True) + EPS)
    normal = (z - z.mean(-1, keepdim=True)) * scale
    at_normal = (gamma * normal + beta - target) * gamma
    return scale * (at_normal - at_normal.mean(-1, keepdim=True) - normal * (at_normal * normal).mean(-1, keepdim=True))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Apply rotary positions, counted from the start of the mini-batch, to neighbouring pairs."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = rotation
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
