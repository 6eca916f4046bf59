"""Forward and backward over the micro-batches of a step, with or without a pipeline."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from contextlib import ExitStack
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshwise.workers.trainer.balance import Balance, forget_loads
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.ops.loss import IGNORED_TARGET
from meshwise.workers.trainer.parallel import Ranks, build_stages, initialize
from meshwise.workers.trainer.phases import Phases

SCHEDULES: dict[str, Any] = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention backends on a GPU, fastest first (Hopper, 16 bits)."""


class Stage(PipelineStage):
    """A pipeline's stage. torch learns its shapes from a pass over memory without values, before the first step and after every
    evaluation: what experts counted there is forgotten before the first micro-batch."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if fwd_chunk_id == 0:
            forget_loads(self.submod)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)


class Passes:
    """This rank's stages, ready to run."""

    def __init__(self, settings: Settings, ranks: Ranks, device: torch.device) -> None:
        self.settings, self.ranks, self.device = settings, ranks, device
        self.phases = Phases(device)
        stages = build_stages(settings, ranks)
        self.models: list[nn.Module] = [model for _, model in stages]
        initialize(settings, self.models, device)
        self.balance = Balance(ranks, self.models, settings.microbatches)
        self.factor: Tensor | None = None
        """All tokens of a step over those with a loss, if some have none."""
        last = settings.layout.pp * settings.layout.chunks - 1
        self.starts = any(number == 0 for number, _ in stages)
        self.ends = any(number == last for number, _ in stages)
        self.schedule = self._schedule(stages, last + 1) if ranks.uses("pp") else None

    def _schedule(self, stages: list[tuple[int, nn.Module]], total: int) -> Any:
        group = self.ranks.mesh["pp"].get_group()
        parts = [Stage(model, number, total, self.device, group=group) for number, model in stages]
        # the loss is already divided by the micro-batches: torch would do it again
        options: dict[str, Any] = {"loss_fn": self.loss, "scale_grads": False}
        if self.settings.layout.schedule == "1f1b":
            return schedules.Schedule1F1B(parts[0], self.settings.microbatches, **options)
        return SCHEDULES[self.settings.layout.schedule](parts, self.settings.microbatches, **options)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy as a mean over this rank's tokens of a step. All ranks have as many, so their mean is the batch's. With
        hidden tokens, the sum over the others is divided by as many, and `factor` makes it their mean."""
        if self.ranks.uses("tp"):
            logits = DTensor.from_local(logits, self.ranks.mesh["tp"], [Shard(-1)], run_check=False)
        rows, labels = logits.flatten(0, 1).float(), targets.flatten()
        if self.factor is None:
            return F.cross_entropy(rows, labels) / self.settings.microbatches
        total = F.cross_entropy(rows, labels, ignore_index=IGNORED_TARGET, reduction="sum")
        return total * (self.factor / (labels.numel() * self.settings.microbatches))

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Accumulate the gradients of a step, and return the loss of the whole batch, the same on all ranks."""
        return self._mean_loss(tokens, targets, backward=True)

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch without gradients, the same on all ranks."""
        with torch.no_grad():
            return self._mean_loss(tokens, targets, backward=False)

    def _count_answers(self, targets: Tensor) -> None:
        """Set the factor of a step: all its tokens over those with a loss, on all ranks."""
        known = (targets >= 0).sum().float()
        dist.all_reduce(known)
        self.factor = targets.numel() * dist.get_world_size() / known.clamp(min=1.0)

    def _mean_loss(self, tokens: Tensor, targets: Tensor, backward: bool) -> Tensor:
        if self.settings.answers:
            self._count_answers(targets)
        with ExitStack() as around:
            if self.ranks.uses("tp"):
                around.enter_context(loss_parallel())
            if self.device.type == "cuda":
                around.enter_context(sdpa_kernel(KERNELS, set_priority=True))
            if self.settings.half and not self.ranks.uses_fsdp and not self.settings.split_weights:
                around.enter_context(torch.autocast(self.device.type, torch.bfloat16))
            losses = (self._pipelined if self.schedule else self._plain)(tokens, targets, backward)
        parts = [(loss.full_tensor() if isinstance(loss, DTensor) else loss).detach() for loss in losses]
        mean = torch.stack(parts).sum() if parts else torch.zeros((), device=self.device)
        mean = mean * self.settings.layout.pp / dist.get_world_size()
        dist.all_reduce(mean)
        return mean

    def _plain(self, tokens: Tensor, targets: Tensor, backward: bool) -> list[Tensor]:
        losses: list[Tensor] = []
        (model,) = self.models
        mbs, sharded = self.settings.layout.mbs, self.ranks.uses("tp")
        for inputs, labels in zip(tokens.split(mbs), targets.split(mbs), strict=True):
            with self.phases("forward"):
                # under tensor parallelism each rank already holds only a part of the logits
                loss = self.loss(model(inputs), labels) if sharded else self._scaled(model(inputs, labels))
            if backward:
                with self.phases("backward"):
                    loss.backward()
            losses.append(loss)
        return losses

    def _scaled(self, loss: Tensor) -> Tensor:
        """Return the share of a micro-batch's loss in that of the step."""
        loss = loss / self.settings.microbatches
        return loss if self.factor is None else loss * self.factor

    def _pipelined(self, tokens: Tensor, targets: Tensor, backward: bool) -> list[Tensor]:
        losses: list[Tensor] = []
        inputs = (tokens,) if self.starts else ()
        ends: dict[str, Any] = {"target": targets, "losses": losses} if self.ends else {}
        with self.phases("passes"):  # forward and backward passes alternate
            schedule = cast(Any, self.schedule)
            if backward:
                schedule.step(*inputs, **ends, return_outputs=False)
            else:
                schedule.eval(*inputs, **ends)
        return losses
