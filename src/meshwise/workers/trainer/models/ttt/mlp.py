"""TTT-MLP: two layers per head, W1, b1 to four times the width, gelu, and W2, b2 back."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.registry import Config
from meshwise.workers.trainer.models.ttt.dispatch import MLP
from meshwise.workers.trainer.models.ttt.learner import EPS, Learner, dual_weights, loss_gradient, rotate

INNER_WIDTH_FACTOR = 4


class MLPLearner(Learner):
    """TTT-MLP: the inner model is gelu(x W1 + b1) W2 + b2."""

    limits = MLP

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        inner = INNER_WIDTH_FACTOR * self.head_dim
        self.W1 = nn.Parameter(torch.empty(self.heads, self.head_dim, inner))
        self.b1 = nn.Parameter(torch.empty(self.heads, 1, inner))
        self.W2 = nn.Parameter(torch.empty(self.heads, inner, self.head_dim))
        self.b2 = nn.Parameter(torch.empty(self.heads, 1, self.head_dim))
        self.fused = False
        """Whether the projections are stacked in one storage, and one product."""

    def learn(self, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
        return learn(q, k, v, rate, place, self.W1.float(), self.b1.float(), self.W2.float(), self.b2.float(), *self.norm())

    def read_fast(self, x: Tensor, rotation: Tensor) -> Tensor:
        from meshwise.workers.trainer.models.ttt.kernels.mlp import ttt_mlp

        seq = x.shape[1]
        x = F.pad(x, (0, 0, 0, -seq % self.mini_batch))
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self._projected(x))
        rate, place = self.rates(x)
        rate = rate.flatten(2).transpose(1, 2).contiguous()
        weights = (self.W1, self.b1, self.W2, self.b2, self.ttt_norm_weight, self.ttt_norm_bias)
        out = ttt_mlp(self._rotated(q, rotation), self._rotated(k, rotation), v.contiguous(), rate, place, *weights)
        return out.flatten(2)[:, :seq]

    def _projected(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if not self.fused:
            return [project(x) for project in projections]
        from meshwise.workers.trainer.ops.fused_projections import fused_linear

        return list(fused_linear(x, [project.weight for project in projections]).split(x.shape[-1], -1))

    def fuse(self) -> None:
        """Compute queries, keys and values by one product if that needs no padding."""
        from meshwise.workers.trainer.ops.fused_projections import needs_no_padding, stack

        weights: list[Tensor] = [project.weight for project in (self.q_proj, self.k_proj, self.v_proj)]
        if needs_no_padding(weights):
            stack(weights)
            self.fused = True

    def _rotated(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Apply rotary positions to (batch, tokens, heads, head_dim)."""
        return rotate(x.unflatten(1, (-1, self.mini_batch)).float(), rotation.unsqueeze(2)).flatten(1, 2).to(x.dtype)


def learn(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor,
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, gamma: Tensor, beta: Tensor,
) -> Tensor:  # fmt: skip
    """Compute the outputs (batch, heads, mini-batches, tokens, head_dim) of each head's inner model; the kernels compute the same."""
    outputs: list[Tensor] = []
    for qs, ks, vs, rs in zip(q.unbind(2), k.unbind(2), v.unbind(2), rate.unbind(2), strict=True):
        before = ks @ w1 + b1
        inner = gelu(before)
        outer_gradient = loss_gradient(inner @ w2 + b2, vs - ks, gamma, beta)
        inner_gradient = outer_gradient @ w2.transpose(-1, -2) * gelu_derivative(before)
        read = gelu(qs @ w1 + b1 - dual_weights(qs, ks, rs, place) @ inner_gradient)
        read = read @ w2 + b2 - dual_weights(read, inner, rs, place) @ outer_gradient
        outputs.append(qs + gamma * F.layer_norm(read, read.shape[-1:], eps=EPS) + beta)
        step = (place[-1] * rs)[..., None]
        w1, b1 = w1 - (step * ks).transpose(-1, -2) @ inner_gradient, b1 - (step * inner_gradient).sum(-2, keepdim=True)
        w2, b2 = w2 - (step * inner).transpose(-1, -2) @ outer_gradient, b2 - (step * outer_gradient).sum(-2, keepdim=True)
    return torch.stack(outputs, 2)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_derivative(x: Tensor) -> Tensor:
    """Return the derivative of x (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3) (arXiv:1606.08415)."""
    root = 0.7978845608028654  # sqrt(2 / pi)
    tanh = torch.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * root * (1 + 3 * 0.044715 * x * x)
