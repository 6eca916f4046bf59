"""Weights of a model: random ones that do not depend on the layout, and HF's safetensors in and out."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from meshwise.workers.trainer.contract.files.expected import stored_name
from meshwise.workers.trainer.contract.files.safetensors import (
    INDEX,
    SINGLE_FILE,
    TensorEntry,
    WeightsError,
    contents,
    format_shape,
    table,
)
from meshwise.workers.trainer.contract.finetune.method import is_adapter
from meshwise.workers.trainer.contract.models.registry import stored_of
from meshwise.workers.trainer.contract.models.tensors import HEAD
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.models.conversion import Conversion
from meshwise.workers.trainer.models.linear import adapted_layers, whole_of
from meshwise.workers.trainer.ranks.faults import TrainingError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
TOKENIZER = "tokenizer.json"


def local_part(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return the part of a whole weight that this rank keeps."""
    if not isinstance(parameter, DTensor):
        return whole
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]


def stored_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a model without adapters, and the buffers that belong to its weights: the biases that balance experts."""
    yield from ((name, parameter) for name, parameter in model.named_parameters() if not is_adapter(name))
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name.endswith(".balance"))


@torch.no_grad()
def fill(models: Iterable[nn.Module], find: Callable[[nn.Module, str, Tensor], Tensor]) -> None:
    """Copy `find(model, name, parameter)`, a whole weight, into every parameter."""
    for model in models:
        for name, parameter in stored_state(model):
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.copy_(local_part(parameter, find(model, name, parameter)))
        for name, layer in adapted_layers(model):
            if layer.quantized:
                layer.set_weight(find(model, f"{name}.weight", layer.like_weight()))


def init_random(models: Iterable[nn.Module], seed: int, spread: float, tied: str = "") -> None:
    """Initialize matrices from a normal distribution with deviation `spread`, norms to one and biases to zero. Each weight has its own
    seed, derived from its name, so that every layout starts from the same model. A head that is tied to an embedding on another stage
    (`tied`) gets the embedding's values. A model's `constants` map name endings to other initial values, and its `spreads` to factors of
    the deviation."""

    def draw(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
        device = parameter.device
        constants: Mapping[str, float] = getattr(model, "constants", {})
        constant = next((value for ending, value in constants.items() if name.endswith(ending)), None)
        if constant is None and (parameter.dim() == 1 or name.endswith("bias")):
            constant = 0.0 if name.endswith("bias") else 1.0
        if constant is not None:
            return torch.full(parameter.shape, constant, device=device)
        key = tied if tied and name == HEAD else name
        generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}:{key}".encode()))
        spreads: Mapping[str, float] = getattr(model, "spreads", {})
        factor = next((value for ending, value in spreads.items() if name.endswith(ending)), 1.0)
        return torch.randn(parameter.shape, generator=generator, device=device).mul_(spread * factor)

    fill(models, draw)


def load(models: Iterable[nn.Module], given: Path, tied: str = "") -> None:
    """Load HF's safetensors, a file or a folder. The launcher has checked them, but perhaps on another host."""
    try:
        stored = contents(given)
    except WeightsError as error:
        raise TrainingError("error", str(error)) from None

    conversions: dict[int, Conversion] = {}

    def find(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
        conversion = conversions.setdefault(id(model), conversion_of(model))
        name = tied if tied and name == HEAD and HEAD not in conversion.places else name
        weight = conversion.read(name, lambda key: _read_stored(key, stored, given))
        if weight.shape != parameter.shape:
            raise TrainingError(
                "error", f"{given}: {name} is {format_shape(weight.shape)}, but the model needs {format_shape(parameter.shape)}"
            )
        return weight.to(parameter.device)

    fill(models, find)


def conversion_of(model: Any) -> Conversion:
    """Return where HF's files store the parameters of a model."""
    return Conversion(stored_of(model.config))


def _read_stored(name: str, stored: dict[str, TensorEntry], given: Path) -> Tensor:
    key = stored_name(name, stored)
    if not key:
        raise TrainingError("error", f"{given}: no weight named {name}")
    return read(stored[key])


def save(
    models: Iterable[nn.Module], folder: Path, part: int = 0, parts: int = 1, writes: bool = True,
    extra: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Save every weight under HF's name, in one file per pipeline stage. Gathering needs all ranks. Files get their final names only once
    all are complete. Returns why something could not be written, the same on all ranks that hold parts; empty on success. `extra` holds
    the text of other files for the folder, by name."""
    gathered: dict[str, Tensor] = {}
    for model in models:
        parameters: dict[str, Tensor] = {}
        for name, whole in _whole_state(model):
            if writes:
                parameters[name] = whole.detach().cpu()
        gathered |= conversion_of(model).write(parameters)
    file = folder / (SINGLE_FILE if parts == 1 else f"model-{part + 1:05}-of-{parts:05}.safetensors")
    partial = file.with_name(f"{file.name}.part")
    problem = _first_problem(try_write(partial, gathered) if writes else "", parts)
    reach("weights partial")
    if writes and problem:
        partial.unlink(missing_ok=True)
    elif writes:
        partial.replace(file)
    if parts > 1:
        dist.barrier()
    if writes and part == 0 and not problem:
        problem = _finish_folder(folder, parts, extra or {})
    return problem


def _whole_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight, whole on every rank; those with adapters have them added."""
    adapted = {f"{name}.weight": layer for name, layer in adapted_layers(model)}
    dtype = next(model.parameters()).dtype
    for name, parameter in stored_state(model):
        if name not in adapted:
            yield name, whole_of(parameter)
    for name, layer in adapted.items():
        yield name, layer.merged().to(dtype)


def _first_problem(problem: str, parts: int) -> str:
    """Return the first rank's problem, if several ranks write."""
    if parts == 1:
        return problem
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((reason for reason in problems if reason), "")


def try_write(path: Path, weights: dict[str, Tensor]) -> str:
    """Write and sync a file; if that fails, return why and how much space was needed."""
    need, free = sum(weight.nbytes for weight in weights.values()), 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        _write(path, weights)
    except OSError as error:
        room = f"{need / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
        return f"the weights could not be written in {path.parent}: {error.strerror} ({room})"
    return ""


def _finish_folder(folder: Path, parts: int, extra: Mapping[str, str]) -> str:
    """Write the index and other files, and remove an earlier run's files of weights, so that nobody reads them."""
    written = [SINGLE_FILE] if parts == 1 else [f"model-{number + 1:05}-of-{parts:05}.safetensors" for number in range(parts)]
    try:
        for path in folder.glob("model*.safetensors"):
            if path.name not in written:
                path.unlink()
        others = dict(extra)
        if parts > 1:
            where = {name: file for file in written for name in table(folder / file)}
            others[INDEX] = json.dumps({"metadata": {}, "weight_map": where}, indent=2)
        for name in (INDEX, TOKENIZER):
            if name not in others:
                (folder / name).unlink(missing_ok=True)
        for name, text in others.items():
            partial = folder / f"{name}.part"
            partial.write_text(text, encoding="utf-8")
            partial.replace(folder / name)
    except OSError as error:
        for path in folder.glob("*.json.part"):
            path.unlink()
        return f"the weights are in {folder}, but its config or index could not be written: {error.strerror}"
    return ""


def read(entry: TensorEntry) -> Tensor:
    """Read one tensor of a file without reading the others."""
    if entry.dtype not in DTYPES:
        raise TrainingError("error", f"{entry.path}: a tensor has type {entry.dtype}; the trainer reads {', '.join(DTYPES)}")
    with entry.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        data = bytearray(view[entry.start : entry.end])
    return torch.frombuffer(data, dtype=DTYPES[entry.dtype]).reshape(entry.shape)


def _write(path: Path, weights: dict[str, Tensor]) -> None:
    rows: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, weight in weights.items():
        end = offset + weight.nbytes
        rows[name] = {"dtype": NAMES[weight.dtype], "shape": list(weight.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(rows).encode()
    header += b" " * (-len(header) % 8)  # the format aligns data to eight bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for weight in weights.values():
            data = bytearray(weight.nbytes)
            torch.frombuffer(data, dtype=weight.dtype).copy_(weight.flatten())
            file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a full disk may show only now
