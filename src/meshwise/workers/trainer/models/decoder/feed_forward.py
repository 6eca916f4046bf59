"""The feed-forward of a layer: gated (SwiGLU, GeGLU; arXiv:2002.05202) or plain."""

# pyright: reportUnknownVariableType=false
from typing import cast

from torch import Tensor, nn

from meshwise.workers.trainer.models.description import Description
from meshwise.workers.trainer.ops.experts import ACTIVATE


def project(x: Tensor, linear: nn.Linear, eight: bool) -> Tensor:
    """Apply a linear layer; if `eight`, its product is in 8 bits."""
    if not eight:
        return linear(x)
    from meshwise.workers.trainer.ops.fp8 import fp8_linear

    y = fp8_linear(x, [linear.weight])[0]
    bias = cast("Tensor | None", linear.bias)
    return y if bias is None else y + bias


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
        self.eight = False
        """Whether products are in 8 bits."""

    def forward(self, x: Tensor) -> Tensor:
        if self.eight and self.gated and not self.biased and self.activation in ("silu", "gelu_tanh"):
            from meshwise.workers.trainer.ops.fp8 import fp8_gated_product

            return fp8_gated_product(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight, self.activation)[0]
        if self.fused:
            from meshwise.workers.trainer.ops.fused_projections import gated_product

            return gated_product(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight, self.activation)[0]
        activate = ACTIVATE[self.activation]
        up = project(x, self.up_proj, self.eight)
        inner = activate(project(x, self.gate_proj, self.eight)) * up if self.gated else activate(up)
        return project(inner, self.down_proj, self.eight)

    def fuse(self) -> None:
        """Compute gate and up by one product, unless they have biases or would need padding."""
        from meshwise.workers.trainer.ops.fused_projections import GATES, needs_no_padding, stack

        if not self.gated or self.biased or self.activation not in GATES:
            return
        weights: list[Tensor] = [self.gate_proj.weight, self.up_proj.weight]
        if needs_no_padding(weights):
            stack(weights)
            self.fused = True
