"""Norms: of activations, and of queries and keys, whose heads tensor parallelism splits over ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from meshwise.workers.trainer.contract.models.description import Description


class OffsetRMSNorm(nn.Module):
    """RMSNorm whose stored weight is the gain minus one, computed in float32 (Gemma)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1 + self.weight.float())).to(x.dtype)


def norm_of(d: Description, width: int = 0) -> nn.Module:
    """Return a norm of activations."""
    width = width or d.hidden
    if d.norm == "layer":
        return nn.LayerNorm(width, eps=d.eps)
    return OffsetRMSNorm(width, d.eps) if d.norm == "rms+1" else nn.RMSNorm(width, eps=d.eps)


def local_weight(weight: Any) -> Tensor:
    """Return this rank's part of a weight. One that all tensor-parallel ranks hold whole gets the sum of their gradients."""
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local(grad_placements=[Partial() if isinstance(p, Replicate) else p for p in weight.placements])


class HeadNorm(nn.Module):
    """RMSNorm of queries or keys (..., heads, head_dim): per head, or over all heads together. Under tensor parallelism a rank has some of
    the heads. The gain of a head is the same on all ranks, and its gradient is their sum; the gains of all heads are cut like the heads,
    and their squares are summed over the ranks."""

    def __init__(self, d: Description, heads: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.together, self.eps, self.offset = d.qk_norm == "all", d.eps, float(d.norm == "rms+1")
        self.width, self.group = (heads if self.together else 1) * d.head_dim, group
        self.weight = nn.Parameter(torch.ones(self.width))

    def gain(self) -> Tensor:
        """Return the gain of this rank's heads, in the type of the weight."""
        return local_weight(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        squares = wide.square().sum((-2, -1) if self.together else -1, keepdim=True)
        if self.together and self.group is not None:
            squares = _SumOverRanks.apply(squares, self.group)
        gain = self.gain().float() + self.offset
        gain = gain.view(-1, x.shape[-1]) if self.together else gain
        return (wide * torch.rsqrt(squares / self.width + self.eps) * gain).to(x.dtype)


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks of a value that every rank then uses: its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        total = outer[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
