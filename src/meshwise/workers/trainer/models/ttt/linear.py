"""TTT-Linear: a linear model W1, b1 per head."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.registry import Config
from meshwise.workers.trainer.models.ttt.dispatch import LINEAR
from meshwise.workers.trainer.models.ttt.learner import EPS, Learner, dual_weights, loss_gradient

ROWS_MULTIPLE = 16  # rows are padded to a multiple of this: tensor cores read multiples of 16 bytes, and the kernels rely on it


class LinearLearner(Learner):
    """TTT-Linear: the inner model is x W1 + b1."""

    limits = LINEAR

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.W1 = nn.Parameter(torch.empty(self.heads, self.head_dim, self.head_dim))
        self.b1 = nn.Parameter(torch.empty(self.heads, 1, self.head_dim))
        self.fused = False
        """Whether the projections are stacked in one storage."""

    def learn(self, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
        return learn(q, k, v, rate, place, self.W1.float(), self.b1.float(), *self.norm())

    def read_fast(self, x: Tensor, rotation: Tensor) -> Tensor:
        from meshwise.workers.trainer.models.ttt.kernels import linear

        return linear.forward(*self._kernel_inputs(x, rotation))[0]

    def read_and_keep(self, x: Tensor, rotation: Tensor, state: Tensor) -> Tensor:
        """Compute `read` from the first token on, and write the state after the last token into `state`, for a decoder."""
        from meshwise.workers.trainer.models.ttt.kernels import linear

        return linear.prefill(*self._kernel_inputs(x, rotation), state)

    def _kernel_inputs(
        self, x: Tensor, rotation: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        norm = (self.ttt_norm_weight, self.ttt_norm_bias)
        rates = (self.learnable_token_idx, self.learnable_ttt_lr_bias)
        return self._packed(x), rotation, self.W1, self.b1, *norm, *rates, self.base_lr

    def _packed(self, x: Tensor) -> Tensor:
        """Return all four projections of x side by side, computed by one product instead of four."""
        if self.fused:
            from meshwise.workers.trainer.ops.fused_projections import fused_linear

            return fused_linear(x, self._projections())
        return F.linear(x, self.packed_weight())

    def _projections(self) -> list[Tensor]:
        return [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight, self.learnable_ttt_lr_weight]

    def packed_weight(self) -> Tensor:
        """Return the four projections of x as one matrix, padded with zeros to a multiple of 16 rows."""
        parts = [part.flatten(0, -2) for part in self._projections()]
        return torch.cat([*parts, parts[0].new_zeros(-sum(map(len, parts)) % ROWS_MULTIPLE, parts[0].shape[1])])

    def fuse(self) -> None:
        """Stack the projections in one storage, so that none is copied for the product."""
        from meshwise.workers.trainer.ops.fused_projections import stack

        stack(self._projections())
        self.fused = True


def learn(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor, w: Tensor, b: Tensor, gamma: Tensor, beta: Tensor
) -> Tensor:
    """Compute the outputs (batch, heads, mini-batches, tokens, head_dim) of each head's inner model; the kernels compute the same."""
    outputs: list[Tensor] = []
    for qs, ks, vs, rs in zip(q.unbind(2), k.unbind(2), v.unbind(2), rate.unbind(2), strict=True):
        gradient = loss_gradient(ks @ w + b, vs - ks, gamma, beta)
        read = qs @ w + b - dual_weights(qs, ks, rs, place) @ gradient
        outputs.append(qs + gamma * F.layer_norm(read, read.shape[-1:], eps=EPS) + beta)
        step = (place[-1] * rs)[..., None] * gradient
        w, b = w - ks.transpose(-1, -2) @ step, b - step.sum(-2, keepdim=True)
    return torch.stack(outputs, 2)
