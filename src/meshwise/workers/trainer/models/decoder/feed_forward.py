"""The feed-forward of a layer: gated (SwiGLU, GeGLU; arXiv:2002.05202) or plain."""

# pyright: reportUnknownVariableType=false
from typing import cast

from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.ops.experts import ACTIVATE


def project(x: Tensor, linear: nn.Linear, eight: str) -> Tensor:
    """Apply a linear layer, in 8 bits if `eight` says what has a scale: a tensor, or a row."""
    if not eight:
        return linear(x)
    from meshwise.workers.trainer.ops.fp8 import fp8_linear

    y = fp8_linear(x, [linear.weight], eight == "row")[0]
    bias = cast("Tensor | None", linear.bias)
    return y if bias is None else y + bias


class FeedForward(nn.Module):
    def __init__(self, d: Description, width: int = 0, recomputed: bool = False) -> None:
        super().__init__()
        self.recomputed = recomputed
        """Whether the backward pass computes all of this again."""
        self.gated, self.biased, self.activation = d.gated, d.ffn_bias, d.activation
        width = width or d.ffn
        if d.gated:
            self.gate_proj = nn.Linear(d.hidden, width, bias=d.ffn_bias)
        self.up_proj = nn.Linear(d.hidden, width, bias=d.ffn_bias)
        self.down_proj = nn.Linear(width, d.hidden, bias=d.ffn_bias)
        self.fused = False
        """Whether one product computes the gate and up projections."""
        self.frozen, self.columns = False, (tuple[int, ...](), tuple[int, ...]())
        """Whether products have no gradients of their weights, and where adapters are among the joined ones of gate and up, and of down."""
        self.eight = ""
        """tensor or row, which has one scale, if products are in 8 bits."""

    def forward(self, x: Tensor) -> Tensor:
        if self.eight and self.gated and not self.biased and self.activation in ("silu", "gelu_tanh"):
            from meshwise.workers.trainer.ops.fp8 import fp8_gated_product

            weights = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
            return fp8_gated_product(x, *weights, self.activation, self.eight == "row")[0]
        if self.fused and self.frozen:
            from meshwise.workers.trainer.models.linear import gated_product as frozen_product

            both = (self.gate_proj, self.up_proj)
            return frozen_product(x, both, self.down_proj, self.columns, self.activation, keep=not self.recomputed)
        if self.fused:
            from meshwise.workers.trainer.ops.fused_projections import gated_product

            return gated_product(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight, self.activation)[0]
        activate = ACTIVATE[self.activation]
        up = project(x, self.up_proj, self.eight)
        inner = activate(project(x, self.gate_proj, self.eight)) * up if self.gated else activate(up)
        return project(inner, self.down_proj, self.eight)

    def fuse(self) -> None:
        """Compute gate and up by one product, unless they have biases or would need padding."""
        from meshwise.workers.trainer.models.linear import columns_of, is_frozen, join
        from meshwise.workers.trainer.ops.fused_projections import GATES

        if not self.gated or self.biased or self.activation not in GATES:
            return
        both = (self.gate_proj, self.up_proj)
        if join(both):
            self.fused, self.frozen = True, any(map(is_frozen, (*both, self.down_proj)))
            self.columns = columns_of(both), columns_of((self.down_proj,))
