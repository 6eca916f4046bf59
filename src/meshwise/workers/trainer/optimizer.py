"""The optimizer: AdamW with clipped gradients, on float32 weights or on split 16-bit ones."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from meshwise.workers.trainer.gradients import NamedParameters
from meshwise.workers.trainer.settings import Settings

BETAS = (0.9, 0.95)
DECAY = 0.1
"""Weight decay of matrices; norms and biases have none (GPT-3's recipe, arXiv:2005.14165, appendix B)."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class StepOptimizer(Protocol):
    """The methods that a step and a checkpoint call on an optimizer."""

    def set_rate(self, rate: float) -> None: ...

    def apply(self, total: Tensor, most: float) -> None:
        """Update the weights with gradients of norm `total`, scaled down to at most `most`. A norm that is not finite changes nothing."""
        ...

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a weight and its moments, in float32."""
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

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        from meshwise.workers.trainer.ops.adamw import SplitAdamW

        self.adamw = SplitAdamW(groups, BETAS)

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
    matrices = [parameter for _, parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for _, parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if not settings.split_weights:
        return FusedAdamW(groups)
    optimizer = SplitWeightsAdamW(groups)
    if settings.microbatches > 1:
        for _, parameter in parameters:  # gradients of several micro-batches accumulate in float32
            parameter.grad_dtype = torch.float32  # pyright: ignore[reportAttributeAccessIssue]
    return optimizer


def rate_at(settings: Settings, step: int) -> float:
    """Return the learning rate: linear warm-up over `warmup` steps, then half a cosine down to a tenth (arXiv:2005.14165, appendix B)."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
