"""The optimizer: AdamW with clipped gradients, on float32 weights or on split 16-bit ones."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.gradients import NamedParameters

BETAS = (0.9, 0.95)
NOT_DECAYED = ("bias", "norm_weight", "b1", "b2", "token_idx")
"""Endings of names of biases and gains that have several dimensions, as TTT's have one per head."""
MOMENTS = ("exp_avg", "exp_avg_sq")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}  # formats of the moments, by the names of the settings


class StepOptimizer(Protocol):
    """The methods that a step and a checkpoint call on an optimizer."""

    def set_rate(self, rate: float) -> None: ...

    def apply(self, total: Tensor, most: float) -> None:
        """Update the weights with gradients of norm `total`, scaled down to at most `most`. A norm that is not finite changes nothing."""
        ...

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a weight in float32, and its moments."""
        ...

    def restore(self, parameter: nn.Parameter, state: dict[str, Tensor], step: int) -> None:
        """Continue from a state after `step` steps."""
        ...


class FusedAdamW:
    """torch's fused AdamW on float32 weights, sharded or not."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.adamw: Any = AdamW(groups, lr=0.0, betas=BETAS, fused=True)

    def set_rate(self, rate: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = rate

    def apply(self, total: Tensor, most: float) -> None:
        # the attributes through which torch's own gradient scaler controls a fused optimizer
        self.adamw.grad_scale = (total / most + 1e-6).clamp(min=1.0)
        self.adamw.found_inf = (~torch.isfinite(total)).float()
        self.adamw.step()

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        moments = self.adamw.state[parameter]
        for kind in MOMENTS:
            moments.setdefault(kind, torch.zeros_like(parameter))
        return {"weight": parameter.detach(), **{kind: cast(Tensor, moments[kind]) for kind in MOMENTS}}

    def restore(self, parameter: nn.Parameter, state: dict[str, Tensor], step: int) -> None:
        """Set the step count: the state was read in place, and AdamW counts steps per weight."""
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        self.adamw.state[parameter]["step"] = torch.tensor(float(step), device=local.device)


class SplitWeightsAdamW:
    """Our AdamW on split 16-bit weights of one GPU."""

    def __init__(self, groups: list[dict[str, Any]], moments: torch.dtype) -> None:
        from meshwise.workers.trainer.ops.adamw import SplitAdamW

        self.adamw = SplitAdamW(groups, BETAS, moments=moments)

    def set_rate(self, rate: float) -> None:
        self.adamw.rate.fill_(rate)

    def apply(self, total: Tensor, most: float) -> None:
        self.adamw.step(scale=torch.where(torch.isfinite(total), (most / (total + 1e-6)).clamp(max=1.0), torch.nan))

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        moments = self.adamw.state[parameter]
        return {"weight": self.adamw.value(parameter), **{kind: cast(Tensor, moments[kind]) for kind in MOMENTS}}

    def restore(self, parameter: nn.Parameter, state: dict[str, Tensor], step: int) -> None:
        self.adamw.set_value(parameter, state["weight"])
        self.adamw.count.fill_(step)


def make_optimizer(settings: Settings, parameters: NamedParameters) -> StepOptimizer:
    """Create the optimizer of these weights. If they are to be split, they become 16 bits here."""
    matrices = [parameter for name, parameter in parameters if decays(name, parameter)]
    vectors = [parameter for name, parameter in parameters if not decays(name, parameter)]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if not settings.split_weights:
        return FusedAdamW(groups)
    optimizer = SplitWeightsAdamW(groups, DTYPES[settings.moments])
    if settings.microbatches > 1:
        for _, parameter in parameters:  # gradients of several micro-batches accumulate in float32
            parameter.grad_dtype = torch.float32  # pyright: ignore[reportAttributeAccessIssue]
    return optimizer


def decays(name: str, parameter: Tensor) -> bool:
    """Return whether weight decay applies: to matrices, and not to norms and biases (arXiv:2005.14165, appendix B)."""
    return parameter.dim() > 1 and not name.endswith(NOT_DECAYED)
