"""Fine-tuning a model that is built but not allocated: adapted layers in place of linear ones, and the weights that train."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import zlib
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod, is_adapter
from meshwise.workers.trainer.contract.finetune.targets import Target, chosen, linear_layers
from meshwise.workers.trainer.models.linear import AdaptedLinear, adapted_layers, row_lengths, whole_of
from meshwise.workers.trainer.weights import local_part

LAYER = "model.layers."


def attach(model: Any, finetune: FinetuneMethod, half: bool) -> None:
    """Replace the linear layers of a model that get adapters or become nf4, and freeze what does not train; in 16 bits if `half`."""
    if not finetune.freezes:
        return
    if finetune.adapts:
        adapted = {target.module for target in chosen(model.config, finetune.targets)}
        for target in linear_layers(model.config):
            if finetune.quantized or target.module in adapted:
                _replace(model, target, finetune, target.module in adapted)
    mark_trained(model, finetune)
    if half:
        for part in model.modules():
            for name, parameter in list(part.named_parameters(recurse=False)):
                if not parameter.requires_grad:
                    part.register_parameter(name, nn.Parameter(parameter.to(torch.bfloat16), requires_grad=False))
        model.tie()


def _replace(model: nn.Module, target: Target, finetune: FinetuneMethod, adapted: bool) -> None:
    """Replace the layers of a target, as far as this stage has them; all of them are in one layer of the model."""
    first: AdaptedLinear | None = None
    for name in target.parts:
        path, _, last = name.rpartition(".")
        try:
            parent = model.get_submodule(path)
        except AttributeError:
            return  # on another pipeline stage
        layer = AdaptedLinear(cast(nn.Linear, getattr(parent, last)), finetune, adapted)
        setattr(parent, last, layer)
        if first is not None:
            layer.lora_a = first.lora_a
        first = first or layer


def mark_trained(model: nn.Module, finetune: FinetuneMethod) -> None:
    """Set which parameters train; parameters that were replaced since forget it."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trains(name, finetune))


def trains(name: str, finetune: FinetuneMethod) -> bool:
    """Return whether a parameter trains."""
    if finetune.adapts:
        return is_adapter(name)
    if finetune.method == "freeze":
        if name.startswith(LAYER):
            return int(name.removeprefix(LAYER).partition(".")[0]) >= finetune.frozen_layers
        return not name.startswith("model.embed_")
    return True


@torch.no_grad()
def start_adapters(models: Iterable[nn.Module], finetune: FinetuneMethod, seed: int) -> None:
    """Initialize adapters as PEFT does: `a` uniform within 1 / sqrt(inputs), `b` zero, magnitudes the lengths of the weights' rows. Each
    has its own seed, derived from its name, so that every layout starts from the same ones."""
    started: set[int] = set()
    for model in models:
        for name, layer in adapted_layers(model):
            if layer.lora_a is None or layer.lora_b is None:
                continue
            if id(layer.lora_a) not in started:  # packed layers share it
                fill_parameter(layer.lora_a, _uniform(f"{seed}:{name}", layer.lora_a, 1 / math.sqrt(layer.in_features)))
                started.add(id(layer.lora_a))
            fill_parameter(layer.lora_b, torch.zeros(layer.lora_b.shape, device=layer.lora_b.device))
            if layer.lora_magnitude is not None:
                fill_parameter(layer.lora_magnitude, start_magnitude(layer))


def start_magnitude(layer: AdaptedLinear) -> Tensor:
    """Return the lengths of the rows of a weight and its adapter, whole on every rank."""
    weight = layer.plain_weight(torch.float32)
    return row_lengths(whole_of(weight), whole_of(layer.lora_a), whole_of(layer.lora_b), layer.scale)


def fill_parameter(parameter: Tensor, whole: Tensor) -> None:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    local.copy_(local_part(parameter, whole))


def _uniform(key: str, like: Tensor, bound: float) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(zlib.crc32(key.encode()))
    return (torch.rand(like.shape, generator=generator, device=like.device) * 2 - 1) * bound


def fuse_adapters(models: Iterable[nn.Module]) -> None:
    """Compute by the products of `ops.adapted`, on one GPU with whole weights."""
    for model in models:
        for _, layer in adapted_layers(model):
            layer.use_adapted_products()
