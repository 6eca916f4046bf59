"""The balance of experts over a step: their loads on all ranks, the imbalance that the report shows, and the biases that reduce it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwise.workers.trainer.models.decoder.experts import MixedFeedForward
from meshwise.workers.trainer.parallel import Ranks

BIAS_STEP = 1e-3  # how far a step moves the bias of an expert (arXiv:2412.19437, 4.2)


def forget_loads(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, MixedFeedForward):
            part.load.zero_()


class Balance:
    """The feed-forwards of experts on this rank's stages."""

    def __init__(self, ranks: Ranks, models: list[nn.Module], microbatches: int) -> None:
        self.ranks = ranks
        self.layers = [part for model in models for part in model.modules() if isinstance(part, MixedFeedForward)]
        self.models = models
        for layer in self.layers:
            layer.share = 1 / microbatches
        for model in models:
            forget_loads(model)  # stages are allocated without values

    def buffers(self) -> dict[str, Tensor]:
        """Return the biases of this rank's stages, which a checkpoint holds."""
        return {name: buffer for model in self.models for name, buffer in model.named_buffers() if name.endswith(".balance")}

    @torch.no_grad()
    def finish_step(self) -> Tensor:
        """Move the biases against the loads of the step, forget the loads, and return the worst imbalance of a layer. That is the load of
        the busiest expert over the mean; 0 if there are no experts. Every rank returns the same."""
        device = torch.device(self.ranks.mesh.device_type)
        worst = torch.zeros((), device=device)
        if self.layers:
            loads = torch.stack([layer.load for layer in self.layers])
            for axis in ("dp_replicate", "fsdp", "tp"):
                if self.ranks.mesh[axis].size() > 1:
                    dist.all_reduce(loads, group=self.ranks.mesh[axis].get_group())
            mean = loads.mean(-1, keepdim=True)
            worst = (loads / mean).max()
            for layer, load in zip(self.layers, loads, strict=True):
                if layer.router.balance is not None and layer.router.weight.requires_grad:
                    layer.router.balance.add_(BIAS_STEP * torch.sign(load.mean() - load))
                layer.load.zero_()
        if self.ranks.layout.pp > 1:
            dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=self.ranks.mesh["pp"].get_group())
        return worst
