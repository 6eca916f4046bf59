"""Weights: random ones that no layout changes, and HF's safetensors in and out."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from meshwise.workers.trainer.hf.expected import HEAD, key_of
from meshwise.workers.trainer.hf.safetensors import INDEX, ONE, Stored, Unfit, contents, shown, table
from meshwise.workers.trainer.ranks.faults import Trouble

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
TOKENIZER = "tokenizer.json"
ZERO = ("bias", "b1", "b2", "token_idx")
CONSTANT = (*ZERO, "ttt_norm_weight")
"""Endings of weights that start the same everywhere, at zero or at one."""


def own_part(parameter: Tensor, whole: Tensor) -> Tensor:
    """The part of a whole weight that this rank keeps."""
    if not isinstance(parameter, DTensor):
        return whole
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]


@torch.no_grad()
def fill(models: Iterable[nn.Module], find: Callable[[str, Tensor], Tensor]) -> None:
    """Put `find(name, parameter)`, a whole weight, into every parameter."""
    for model in models:
        for name, parameter in model.named_parameters():
            here = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            here.copy_(own_part(parameter, find(name, parameter)))


def start(models: Iterable[nn.Module], seed: int, spread: float, tied: str = "") -> None:
    """Random weights: normal with `spread` for matrices, one for norms, zero for biases.

    Each weight has its own seed, made of its name, so that every layout starts from the same model. A head that is tied to an embedding
    of another stage (`tied`) has the embedding's.
    """

    def draw(name: str, parameter: Tensor) -> Tensor:
        device = parameter.device
        if parameter.dim() == 1 or name.endswith(CONSTANT):
            return (torch.zeros if name.endswith(ZERO) else torch.ones)(parameter.shape, device=device)
        key = tied if tied and name == HEAD else name
        dice = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}:{key}".encode()))
        return torch.randn(parameter.shape, generator=dice, device=device) * spread

    fill(models, draw)


def load(models: Iterable[nn.Module], given: Path, tied: str = "") -> None:
    """Weights from HF's safetensors, a file or a folder of them. A launcher has looked at them, maybe on another host."""
    try:
        found = contents(given)
    except Unfit as error:
        raise Trouble("error", str(error)) from None

    def find(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
        key = key_of(name, found) or (key_of(tied, found) if name == HEAD else "")
        if not key:
            raise Trouble("error", f"{given}: no weight named {name}")
        weight = arranged(model, "from_hf", name, read(found[key]))
        if weight.shape != parameter.shape:
            raise Trouble("error", f"{given}: {name} is {shown(weight.shape)}, and the model's is {shown(parameter.shape)}")
        return weight.to(parameter.device)

    for model in models:
        fill([model], partial(find, model))


def arranged(model: nn.Module, way: str, name: str, weight: Tensor) -> Tensor:
    """A weight in the order of rows that HF stores (`to_hf`) or the model computes with (`from_hf`), where these differ."""
    turn: Callable[[str, Tensor], Tensor] | None = getattr(model, way, None)
    return weight if turn is None else turn(name, weight)


def save(
    models: Iterable[nn.Module],
    folder: Path,
    part: int = 0,
    parts: int = 1,
    writes: bool = True,
    skip: str = "",
    beside: Mapping[str, str] | None = None,
) -> str:
    """Every weight with HF's name; where stages hold parts of the model, one file for each part. Gathering needs all ranks.

    Files have their names only once all are whole. What could not be written is told, by all ranks that hold parts alike.
    `beside` are other files of the folder, by name.
    """
    found: dict[str, Tensor] = {}
    for model in models:
        for name, parameter in model.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            if writes and name != skip:
                found[name] = arranged(model, "to_hf", name, whole.detach()).cpu()
    file = folder / (ONE if parts == 1 else f"model-{part + 1:05}-of-{parts:05}.safetensors")
    begun = file.with_name(f"{file.name}.part")
    problem = _first(_written(begun, found) if writes else "", parts)
    if writes and problem:
        begun.unlink(missing_ok=True)
    elif writes:
        begun.replace(file)
    if parts > 1:
        dist.barrier()
    if writes and part == 0 and not problem:
        problem = _finished(folder, parts, beside or {})
    return problem


def _first(words: str, parts: int) -> str:
    """The first words of any rank, where several write."""
    if parts == 1:
        return words
    every: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, words)
    return next((one for one in every if one), "")


def _written(path: Path, found: dict[str, Tensor]) -> str:
    """Write a file until it is on the disk; where it does not fit, why and how much was needed."""
    need, free = sum(weight.nbytes for weight in found.values()), 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        _write(path, found)
    except OSError as error:
        room = f"{need / 1e6:,.1f} MB are needed, and {free / 1e6:,.1f} MB were free"
        return f"the weights could not be written in {path.parent}: {error.strerror} ({room})"
    return ""


def _finished(folder: Path, parts: int, beside: Mapping[str, str]) -> str:
    """What belongs to files of weights; and what an earlier run left there with other weights is removed, lest it be read."""
    some = [ONE] if parts == 1 else [f"model-{number + 1:05}-of-{parts:05}.safetensors" for number in range(parts)]
    try:
        for path in folder.glob("model*.safetensors"):
            if path.name not in some:
                path.unlink()
        others = dict(beside)
        if parts > 1:
            where = {name: file for file in some for name in table(folder / file)}
            others[INDEX] = json.dumps({"metadata": {}, "weight_map": where}, indent=2)
        for name in (INDEX, TOKENIZER):
            if name not in others:
                (folder / name).unlink(missing_ok=True)
        for name, text in others.items():
            begun = folder / f"{name}.part"
            begun.write_text(text, encoding="utf-8")
            begun.replace(folder / name)
    except OSError as error:
        for path in folder.glob("*.json.part"):
            path.unlink()
        return f"the weights are in {folder}, and what belongs to them could not be written: {error.strerror}"
    return ""


def read(one: Stored) -> Tensor:
    """One weight of a file, without reading the others."""
    if one.dtype not in DTYPES:
        raise Trouble("error", f"{one.path}: a weight of type {one.dtype}, and the trainer reads {', '.join(DTYPES)}")
    with one.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        data = bytearray(view[one.start : one.end])
    return torch.frombuffer(data, dtype=DTYPES[one.dtype]).reshape(one.shape)


def _write(path: Path, weights: dict[str, Tensor]) -> None:
    rows: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, weight in weights.items():
        end = offset + weight.nbytes
        rows[name] = {"dtype": NAMES[weight.dtype], "shape": list(weight.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(rows).encode()
    header += b" " * (-len(header) % 8)  # the format wants data on multiples of eight
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for weight in weights.values():
            data = bytearray(weight.nbytes)
            torch.frombuffer(data, dtype=weight.dtype).copy_(weight.flatten())
            file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a disk may find only now that it is full
