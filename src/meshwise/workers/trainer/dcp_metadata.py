"""Description of a checkpoint, as JSON of our own beside the marker: its tensors, and the file that holds each part of them.

A checkpoint folder may come from anywhere. DCP describes it in `.metadata`, a pickle, which runs whatever somebody put into it. It is still
written, for other programs, and never read here: DCP gets the description that is built from the JSON, checked against the marker.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from meshwise.workers.trainer.contract.marker import DESCRIPTION, MAX_COUNT

MAX_DESCRIPTION_BYTES = 1 << 28  # bytes at most; a sharded tensor takes about a hundred for each of its parts
MAX_DIMENSIONS = 8


class MetadataError(ValueError):
    """A description that no run writes; one line."""


class DescribingWriter(FileSystemWriter):
    """DCP's writer to a folder, which also writes the description."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        super().finish(metadata, results)
        # torch 2.11 adds the places of parts to a copy of the metadata, 2.13 to the metadata itself: they come from the results here
        places = {written.index: written.storage_data for of_rank in results for written in of_rank}
        with Path(self.path, DESCRIPTION).open("w", encoding="utf-8") as file:
            json.dump(described(metadata, places), file)
            file.flush()
            os.fsync(file.fileno())


def described(metadata: Metadata, places: Mapping[MetadataIndex, _StorageInfo]) -> dict[str, Any]:
    """Return the tensors of a checkpoint as JSON values: data type, size, and of each part its place in the tensor and in a file."""
    tensors: dict[str, Any] = {}
    for name, tensor in cast("dict[str, TensorStorageMetadata]", metadata.state_dict_metadata).items():
        tensors[name] = {"dtype": str(tensor.properties.dtype).removeprefix("torch."), "size": list(tensor.size), "parts": []}
        for chunk in tensor.chunks:
            stored = places[MetadataIndex(name, chunk.offsets)]
            place = [stored.relative_path, stored.offset, stored.length]
            tensors[name]["parts"].append([list(chunk.offsets), list(chunk.sizes), *place])
    return {"tensors": tensors}


def read_metadata(folder: Path, files: Mapping[str, tuple[int, int]]) -> Metadata:
    """Return the description of a checkpoint, checked against the files (name: size, checksum) that its marker lists."""
    with (folder / DESCRIPTION).open("rb") as file:
        data = file.read(MAX_DESCRIPTION_BYTES + 1)
    if len(data) > MAX_DESCRIPTION_BYTES:
        raise MetadataError(f"{DESCRIPTION} is larger than {MAX_DESCRIPTION_BYTES >> 20} MiB")
    try:
        tensors = json.loads(data)["tensors"]
        found = {name: _tensor(name, tensor, files) for name, tensor in tensors.items()}
    except MetadataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataError(f"{DESCRIPTION} cannot be read ({type(error).__name__})") from None
    places = {index: place for _, parts in found.values() for index, place in parts.items()}
    return Metadata({name: tensor for name, (tensor, _) in found.items()}, storage_data=places)


def _tensor(
    name: str, values: dict[str, Any], files: Mapping[str, tuple[int, int]]
) -> tuple[TensorStorageMetadata, dict[MetadataIndex, _StorageInfo]]:
    """Return the description of one tensor, and where its parts are."""
    dtype = getattr(torch, values["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise MetadataError(f"{DESCRIPTION}: {name[:60]!r} has no data type")
    size, chunks, places = _size(values["size"]), list[ChunkStorageMetadata](), dict[MetadataIndex, _StorageInfo]()
    for offsets, sizes, file, offset, length in values["parts"]:
        chunk = ChunkStorageMetadata(_size(offsets), _size(sizes))
        inside = len(chunk.offsets) == len(chunk.sizes) == len(size)
        if not inside or any(at + part > whole for at, part, whole in zip(chunk.offsets, chunk.sizes, size, strict=True)):
            raise MetadataError(f"{DESCRIPTION}: a part of {name[:60]!r} is outside of it")
        if not _is_count(offset) or not _is_count(length) or offset + length > files.get(file, (-1, 0))[0]:
            raise MetadataError(f"{DESCRIPTION} names a part that is in no file of the checkpoint")
        chunks.append(chunk)
        places[MetadataIndex(name, chunk.offsets)] = _StorageInfo(file, offset, length)
    return TensorStorageMetadata(TensorProperties(dtype), size, chunks), places


def _size(values: list[Any]) -> torch.Size:
    if len(values) > MAX_DIMENSIONS or not all(map(_is_count, values)):
        raise MetadataError(f"{DESCRIPTION} has a size that no tensor has")
    return torch.Size(values)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def find_problem(folder: Path, files: Mapping[str, tuple[int, int]]) -> str:
    """Return why a checkpoint's description cannot be used; empty if it can."""
    try:
        read_metadata(folder, files)
    except (MetadataError, OSError) as error:
        return str(error)
    return ""


class CheckedReader(FileSystemReader):
    """DCP's reader of a folder, with the checked description. It reads tensors with `weights_only`."""

    def __init__(self, folder: Path, files: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(folder)
        self.folder, self.files = folder, files

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(self.folder, self.files)
        metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
