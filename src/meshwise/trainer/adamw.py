"""AdamW (arXiv:1711.05101) on 16-bit weights that lose nothing: what rounding takes off a weight is kept beside it.

A float32 weight is its nearest bfloat16 and 16 bits more. Blocks compute with the first, which needs no cast, and the update joins both:
14 bytes a parameter with gradient and moments, where float32 weights, gradients and their 16-bit copies take 18.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

SIZE = 1024
"""Weights that one program updates."""


@triton.jit
def _update(weight, low, grad, mean, square, now, size, decay, beta1, beta2, eps, BLOCK: tl.constexpr):  # noqa: N803
    """One step on `size` weights. `now` holds the rate, what gradients are multiplied by, and both corrections of the moments."""
    scale = tl.load(now + 1)
    if scale == scale:  # a gradient that is no number changes nothing
        rate = tl.load(now)
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        high = tl.load(weight + at, inside).to(tl.int16, bitcast=True).to(tl.int32)
        w = ((high << 16) + tl.load(low + at, inside).to(tl.int32)).to(tl.float32, bitcast=True)
        g = tl.load(grad + at, inside).to(tl.float32) * scale
        m = tl.load(mean + at, inside)
        m = m + (1 - beta1) * (g - m)
        v = tl.load(square + at, inside)
        v = v + (1 - beta2) * (g * g - v)
        w -= rate * decay * w
        w -= rate / tl.load(now + 2) * m / (tl.sqrt(v / tl.load(now + 3)) + eps)
        bits = w.to(tl.int32, bitcast=True)
        high = (bits + 0x8000) >> 16
        tl.store(weight + at, high.to(tl.int16).to(tl.bfloat16, bitcast=True), inside)
        tl.store(low + at, (bits - (high << 16)).to(tl.int16), inside)
        tl.store(mean + at, m, inside)
        tl.store(square + at, v, inside)


class SplitAdamW(torch.optim.Optimizer):
    """Takes float32 weights and makes them bfloat16. `step` asks the device nothing, so that a CUDA graph can hold it."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], eps: float = 1e-8) -> None:
        super().__init__(groups, {"betas": betas, "eps": eps})
        parameters: list[nn.Parameter] = [parameter for group in self.param_groups for parameter in group["params"]]
        self.rate = torch.zeros((), device=parameters[0].device)
        self.count = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            whole = parameter.detach()
            parameter.data = torch.empty_like(whole, dtype=torch.bfloat16)
            self.state[parameter] = {"low": torch.empty_like(whole, dtype=torch.int16)}
            self.put(parameter, whole)
            self.state[parameter] |= {kind: torch.zeros_like(whole) for kind in ("exp_avg", "exp_avg_sq")}

    @torch.no_grad()
    def put(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Let a weight have this float32 value."""
        parameter.copy_(_nearest(whole))
        self.state[parameter]["low"].copy_(whole.view(torch.int32) - (_bits(parameter) << 16))

    def whole(self, parameter: nn.Parameter) -> Tensor:
        """The float32 value of a weight."""
        return ((_bits(parameter) << 16) + self.state[parameter]["low"].int()).view(torch.float32)

    @torch.no_grad()
    def step(self, closure: None = None, scale: Tensor | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every weight with its gradient times `scale`; where scale is no number, change none."""
        scale = torch.ones_like(self.count) if scale is None else scale
        self.count += torch.isfinite(scale)
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            now = torch.stack((self.rate, scale, 1 - beta1**self.count, 1 - beta2**self.count))
            for p in group["params"]:
                kept = self.state[p]
                run: Any = _update[(triton.cdiv(p.numel(), SIZE),)]
                run(
                    p, kept["low"], p.grad, kept["exp_avg"], kept["exp_avg_sq"], now, p.numel(), group["weight_decay"],
                    beta1, beta2, group["eps"], SIZE,
                )  # fmt: skip


def _bits(weight: Tensor) -> Tensor:
    return weight.detach().view(torch.int16).int()


def _nearest(whole: Tensor) -> Tensor:
    """The bfloat16 nearest to a float32; of two equally near the one further from zero, so that the rest fits 16 bits."""
    return ((whole.view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
