"""Gradients after the backward pass: whole, shared by tied weights, and the one norm of all ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from meshwise.workers.trainer.parallel import EMBEDDINGS, Ranks
from meshwise.workers.trainer.settings import Settings, Sizes

Named = list[tuple[str, nn.Parameter]]


def named(models: Iterable[nn.Module]) -> Named:
    return [pair for model in models for pair in model.named_parameters()]


def settle(settings: Settings, ranks: Ranks, parameters: Named) -> None:
    """Give every gradient the placement of its parameter, and tied weights of two stages the sum of both gradients."""
    for _, parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
            # weights that sequence parallelism repeats: each rank saw other tokens
            parameter.grad = grad.redistribute(placements=parameter.placements)
    if Sizes.of(settings.model).tied and settings.layout.pp > 1:
        _add_tied(settings, ranks, dict(parameters))


def _add_tied(settings: Settings, ranks: Ranks, parameters: dict[str, nn.Parameter]) -> None:
    ends = [parameters[name].grad for name in (EMBEDDINGS[settings.model["model_type"]], "lm_head.weight") if name in parameters]
    grads = [_local(grad) for grad in ends if grad is not None]
    if len(grads) == 2:  # a V has both ends on one rank
        grads[0].add_(grads[1])
        grads[1].copy_(grads[0])
    elif grads:
        dist.all_reduce(grads[0], group=ranks.ties)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def norm(settings: Settings, ranks: Ranks, parameters: Named) -> Tensor:
    """The norm of the gradient of the whole model: squares added over the axes that cut a weight, once where it is repeated."""
    second = "lm_head.weight" if Sizes.of(settings.model).tied and settings.layout.pp > 1 else ""
    alike: dict[tuple[object, ...], list[Tensor]] = {}
    cuts: dict[tuple[object, ...], list[dist.ProcessGroup]] = {}
    for name, parameter in parameters:
        grad = parameter.grad
        if grad is None or name == second:
            continue
        key = (grad.device_mesh, grad.placements) if isinstance(grad, DTensor) else ()
        if key not in cuts:
            cuts[key] = _cutting(grad)
        alike.setdefault(key, []).append(_local(grad))
    device = next(_local(parameter).device for _, parameter in parameters)
    total = torch.zeros((), device=device)
    for key, found in alike.items():
        part = torch.stack(torch._foreach_norm(found, 2, torch.float32)).square().sum()  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        for group in cuts[key]:
            dist.all_reduce(part, group=group)
        total += part
    if settings.layout.pp > 1:
        dist.all_reduce(total, group=ranks.mesh["pp"].get_group())
    return total.sqrt()


def _cutting(grad: Tensor) -> list[dist.ProcessGroup]:
    """The groups over which a gradient is cut."""
    if not isinstance(grad, DTensor):
        return []
    mesh = grad.device_mesh
    cut = [i for i, placement in enumerate(grad.placements) if not isinstance(placement, Replicate) and mesh.size(i) > 1]
    return [mesh.get_group(i) for i in cut]
