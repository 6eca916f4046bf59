"""TTT-Linear: a linear model W1, b1 per head."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.trainer.models.ttt.learner import EPS, Learner, seen, slope


class LinearLearner(Learner):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.W1 = nn.Parameter(torch.empty(self.heads, self.head_dim, self.head_dim))
        self.b1 = nn.Parameter(torch.empty(self.heads, 1, self.head_dim))

    def learn(self, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
        w, b = self.W1.float(), self.b1.float()
        gamma, beta = self.norm()
        outputs: list[Tensor] = []
        for qs, ks, vs, rs in zip(q.unbind(2), k.unbind(2), v.unbind(2), rate.unbind(2), strict=True):
            gradient = slope(ks @ w + b, vs - ks, gamma, beta)
            read = qs @ w + b - seen(qs, ks, rs, place) @ gradient
            outputs.append(qs + gamma * F.layer_norm(read, read.shape[-1:], eps=EPS) + beta)
            step = (place[-1] * rs)[..., None] * gradient
            w, b = w - ks.transpose(-1, -2) @ step, b - step.sum(-2, keepdim=True)
        return torch.stack(outputs, 2)
