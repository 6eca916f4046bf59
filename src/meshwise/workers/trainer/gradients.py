"""Gradients after the backward pass: reduced, summed for tied weights, and their norm over all ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from meshwise.workers.trainer.contract.models.registry import tied_embedding
from meshwise.workers.trainer.contract.models.tensors import HEAD
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.models.decoder.experts import ExpertStack
from meshwise.workers.trainer.parallel import Ranks

NamedParameters = list[tuple[str, nn.Parameter]]


def named_parameters(models: Iterable[nn.Module]) -> NamedParameters:
    return [pair for model in models for pair in model.named_parameters()]


def trained_parameters(models: Iterable[nn.Module]) -> NamedParameters:
    """Return the parameters that train, which are all unless some are frozen."""
    return [(name, parameter) for name, parameter in named_parameters(models) if parameter.requires_grad]


def reduce_gradients(settings: Settings, ranks: Ranks, parameters: NamedParameters) -> None:
    """Give every gradient its parameter's placement and scale, and both copies of a tied weight the sum of their gradients."""
    a = settings.layout
    for name, parameter in parameters:
        grad = parameter.grad
        if grad is not None and a.tp != a.ep and ".experts." in name:
            # summed over ep ranks and averaged over the others, where the rest is summed over tp ranks and averaged over the others
            _local(grad).mul_(a.tp / a.ep)
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
            # weights that sequence parallelism replicates: each rank saw different tokens
            parameter.grad = grad.redistribute(placements=parameter.placements)
    tied = tied_embedding(settings.model)
    if tied and settings.layout.pp > 1:
        _add_tied(tied, ranks, dict(parameters))


def _add_tied(tied: str, ranks: Ranks, parameters: dict[str, nn.Parameter]) -> None:
    ends = [parameters[name].grad for name in (tied, HEAD) if name in parameters]
    grads = [_local(grad) for grad in ends if grad is not None]
    if len(grads) == 2:  # the V schedule has both ends on one rank
        grads[0].add_(grads[1])
        grads[1].copy_(grads[0])
    elif grads:
        dist.all_reduce(grads[0], group=ranks.tied_group)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


Squares = Mapping[nn.Parameter, Tensor]
"""Leaves whose gradients, after a backward pass, are sums of squares of the gradients of these weights; several may share one."""


def known_squares(models: Iterable[nn.Module]) -> Squares:
    """Return where kernels of the backward pass leave the squares of gradients, so that the norm need not read these again."""
    stacks = [part for model in models for part in model.modules() if isinstance(part, ExpertStack)]
    return {p: stack.squares for stack in stacks if stack.squares is not None for p in (stack.gate_up_proj, stack.down_proj)}


def gradient_norm(settings: Settings, ranks: Ranks, parameters: NamedParameters, squares: Squares | None = None) -> Tensor:
    """Return the gradient norm of the whole model: squares summed over the axes that shard a weight, and once where it is replicated."""
    known = {parameter: leaf for parameter, leaf in (squares or {}).items() if leaf.grad is not None}
    second = HEAD if tied_embedding(settings.model) and settings.layout.pp > 1 else ""
    alike: dict[tuple[object, ...], list[Tensor]] = {}
    groups: dict[tuple[object, ...], list[dist.ProcessGroup]] = {}
    for name, parameter in parameters:
        grad = parameter.grad
        if grad is None or name == second or parameter in known:
            continue
        key = (grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else ()
        if key not in groups:
            groups[key] = _sharding_groups(grad)
        alike.setdefault(key, []).append(_local(grad))
    device = next(_local(parameter).device for _, parameter in parameters)
    total = torch.zeros((), device=device)
    if sums := [leaf.grad for leaf in dict.fromkeys(known.values()) if leaf.grad is not None]:
        total += torch.cat(sums).sum()
    for key, grads in alike.items():
        part = _sum_of_squares(grads)
        for group in groups[key]:
            dist.all_reduce(part, group=group)
        total += part
    if settings.layout.pp > 1:
        dist.all_reduce(total, group=ranks.mesh["pp"].get_group())
    return total.sqrt()


def _sum_of_squares(grads: list[Tensor]) -> Tensor:
    if grads[0].is_cuda:
        from meshwise.workers.trainer.ops.squares import sum_of_squares

        return sum_of_squares(grads)
    return torch.stack(torch._foreach_norm(grads, 2, torch.float32)).square().sum()  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def _sharding_groups(grad: Tensor) -> list[dist.ProcessGroup]:
    """Return the process groups over which a gradient is sharded."""
    if not isinstance(grad, DTensor):
        return []
    mesh = grad.device_mesh
    cut = [i for i, placement in enumerate(grad.placements) if not isinstance(placement, Replicate) and mesh.size(i) > 1]
    return [mesh.get_group(i) for i in cut]
