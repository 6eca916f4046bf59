"""The feed-forward of a layer: gated (SwiGLU, GeGLU; arXiv:2002.05202) or plain."""

# pyright: reportUnknownVariableType=false
from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.models.description import Description

ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    def __init__(self, d: Description, width: int = 0) -> None:
        super().__init__()
        self.gated, self.biased, self.activation = d.gated, d.ffn_bias, d.activation
        width = width or d.ffn
        if d.gated:
            self.gate_proj = nn.Linear(d.hidden, width, bias=d.ffn_bias)
        self.up_proj = nn.Linear(d.hidden, width, bias=d.ffn_bias)
        self.down_proj = nn.Linear(width, d.hidden, bias=d.ffn_bias)
        self.fused = False
        """Whether one product computes the gate and up projections."""

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            from meshwise.workers.trainer.ops.fused_projections import gated_product

            return gated_product(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight, self.activation)[0]
        activate = ACTIVATE[self.activation]
        inner = activate(self.gate_proj(x)) * self.up_proj(x) if self.gated else activate(self.up_proj(x))
        return self.down_proj(inner)

    def fuse(self) -> None:
        """Compute gate and up by one product, unless they have biases or would need padding."""
        from meshwise.workers.trainer.ops.fused_projections import GATES, needs_no_padding, stack

        if not self.gated or self.biased or self.activation not in GATES:
            return
        weights: list[Tensor] = [self.gate_proj.weight, self.up_proj.weight]
        if needs_no_padding(weights):
            stack(weights)
            self.fused = True
