"""Adapters in PEFT's format, in and out, and weights with the adapters added to them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwise.workers.trainer.contract.files.safetensors import TensorEntry, WeightsError, table
from meshwise.workers.trainer.contract.finetune.adapter_config import CONFIG, MAGNITUDE, PREFIX, TENSORS, A, B, config_text
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.finetune.targets import Target, linear_layers
from meshwise.workers.trainer.contract.models.registry import Config
from meshwise.workers.trainer.finetune.attach import fill_parameter
from meshwise.workers.trainer.models.conversion import extract, pack
from meshwise.workers.trainer.models.linear import AdaptedLinear, whole_of
from meshwise.workers.trainer.ranks.faults import TrainingError
from meshwise.workers.trainer.weights import read, try_write


def _adapted(model: Any) -> Iterator[tuple[Target, list[AdaptedLinear]]]:
    """Yield the targets of a model that have adapters, with their layers, as far as this stage has them."""
    parts = dict(model.named_modules())
    for target in linear_layers(model.config):
        layers = [parts.get(name) for name in target.parts]
        adapted = [layer for layer in layers if isinstance(layer, AdaptedLinear) and layer.lora_a is not None]
        if adapted:
            yield target, adapted


def _tensors(target: Target, layers: list[AdaptedLinear]) -> dict[str, Tensor]:
    """Return the tensors of one adapter by PEFT's names. Gathering needs all ranks."""
    plain = replace(target.stored, transposed=False)
    kinds = {B: [layer.lora_b for layer in layers], MAGNITUDE: [layer.lora_magnitude for layer in layers]}
    found = {A: whole_of(layers[0].lora_a).detach().float().cpu()}
    for kind, parameters in kinds.items():
        if parameters[0] is not None:
            whole = [whole_of(parameter).detach().float().cpu() for parameter in parameters]
            found[kind] = pack(plain, {part.parameter: each for part, each in zip(plain.parts, whole, strict=True)})
    return {f"{PREFIX}{target.module}.{kind}": tensor.contiguous() for kind, tensor in found.items()}


def adapter_tensors(models: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Return the adapters of these stages by PEFT's names, in float32 on the CPU. Gathering needs all ranks."""
    found: dict[str, Tensor] = {}
    for model in models:
        for target, layers in _adapted(model):
            found |= _tensors(target, layers)
    return found


def write_adapter(tensors: dict[str, Tensor], folder: Path, config: Config, finetune: FinetuneMethod, base: str) -> str:
    """Write an adapter that PEFT opens; return why it could not be written, empty on success."""
    partial = folder / f"{TENSORS}.part"
    problem = try_write(partial, tensors)
    if problem:
        partial.unlink(missing_ok=True)
        return problem.replace("the weights", "the adapter")
    try:
        partial.replace(folder / TENSORS)
        (folder / CONFIG).write_text(config_text(config, finetune, base), encoding="utf-8")
    except OSError as error:
        return f"the adapter could not be written in {folder}: {error.strerror}"
    return ""


def save_adapter(
    models: Iterable[nn.Module], folder: Path, config: Config, finetune: FinetuneMethod, base: str, lead: bool
) -> str:
    """Write an adapter on rank 0; the `lead` ranks of all pipeline stages send theirs. Every rank calls it. Returns why it could not be
    written; empty on success and on other ranks."""
    held = adapter_tensors(models)
    parts: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(held if lead else {}, parts)
    if parts is None:
        return ""
    return write_adapter({name: tensor for part in parts for name, tensor in part.items()}, folder, config, finetune, base)


@torch.no_grad()
def load_adapter(models: Iterable[nn.Module], folder: Path) -> None:
    """Set adapters to those of a folder in PEFT's format. The launcher has checked it, but perhaps on another host."""
    try:
        stored = table(folder / TENSORS)
    except WeightsError as error:
        raise TrainingError("error", str(error)) from None
    for model in models:
        for target, layers in _adapted(model):
            plain = replace(target.stored, transposed=False)
            fill_parameter(_parameter(layers[0].lora_a), _read(stored, f"{target.module}.{A}", folder))
            for place, layer in enumerate(layers):
                fill_parameter(_parameter(layer.lora_b), extract(plain, place, _read(stored, f"{target.module}.{B}", folder)))
                if layer.lora_magnitude is not None:
                    whole = _read(stored, f"{target.module}.{MAGNITUDE}", folder)
                    fill_parameter(layer.lora_magnitude, extract(plain, place, whole))


def _parameter(parameter: Tensor | None) -> Tensor:
    assert parameter is not None
    return parameter


def _read(stored: dict[str, TensorEntry], name: str, folder: Path) -> Tensor:
    entry = stored.get(f"{PREFIX}{name}")
    if entry is None:
        raise TrainingError("error", f"{folder}: no tensor named {PREFIX}{name}")
    return read(entry)
