"""DCP's `.metadata`, a pickle, read without running code that somebody put into it.

A checkpoint folder may come from anywhere, and its checksums lie beside its files. Only the few classes that DCP writes are loaded, and
what they say is checked: tensors alone, in the files that the marker lists, within their sizes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
import io
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

METADATA = ".metadata"
MAX_METADATA_BYTES = 1 << 28
"""Bytes at most; a sharded tensor takes about a hundred for each of its parts."""
_DCP = "torch.distributed.checkpoint"
ALLOWED_CLASSES = {
    (f"{_DCP}.metadata", name)
    for name in (
        "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata", "ChunkStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
}  # fmt: skip
"""Classes that torch 2.11 to 2.13 write, beside data types."""


class MetadataError(ValueError):
    """A `.metadata` that DCP would not write; one line."""


class _Unpickler(pickle._Unpickler):
    """Python's unpickler with a list of classes. The one in C would allocate as much memory as a hostile file names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) in ALLOWED_CLASSES:
            __import__(module)
            return getattr(sys.modules[module], name)
        raise MetadataError(f"{METADATA} asks for {module[:60]}.{name[:60]}, which no checkpoint needs")

    def persistent_load(self, pid: Any) -> Any:
        raise MetadataError(f"{METADATA} refers to other objects, which no checkpoint needs")


def read_metadata(folder: Path, files: Mapping[str, tuple[int, int]]) -> Metadata:
    """Return the description of a checkpoint, checked against the files (name: size, checksum) that its marker lists."""
    with (folder / METADATA).open("rb") as file:
        data = file.read(MAX_METADATA_BYTES + 1)
    if len(data) > MAX_METADATA_BYTES:
        raise MetadataError(f"{METADATA} is larger than {MAX_METADATA_BYTES >> 20} MiB")
    try:
        metadata: object = _Unpickler(io.BytesIO(data)).load()
    except MetadataError:
        raise
    except (Exception, RecursionError) as error:  # a damaged pickle may raise anything
        raise MetadataError(f"{METADATA} cannot be read ({type(error).__name__})") from None
    if not isinstance(metadata, Metadata):
        raise MetadataError(f"{METADATA} holds no description of a checkpoint")
    _check(metadata, files)
    return metadata


def _check(metadata: Metadata, files: Mapping[str, tuple[int, int]]) -> None:
    described, stored = metadata.__dict__.get("state_dict_metadata"), metadata.__dict__.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise MetadataError(f"{METADATA} lists no tensors")
    for name, tensor in cast("dict[Any, Any]", described).items():
        if not isinstance(name, str) or not _is_tensor(tensor):  # other objects are pickles, which DCP would load
            raise MetadataError(f"{METADATA}: {str(name)[:60]!r} is not a tensor")
    for index, part in cast("dict[Any, Any]", stored).items():
        where: dict[str, Any] = part.__dict__ if isinstance(part, _StorageInfo) else {}
        size, _ = files.get(str(where.get("relative_path")), (-1, 0))
        offset, length = where.get("offset"), where.get("length")
        inside = type(offset) is int and type(length) is int and 0 <= offset <= offset + length <= size
        if not isinstance(index, MetadataIndex) or not inside or where.get("transform_descriptors"):
            raise MetadataError(f"{METADATA} names a part that is in no file of the checkpoint")


def _is_tensor(value: object) -> bool:
    if not isinstance(value, TensorStorageMetadata):
        return False
    held = value.__dict__
    properties, chunks = held.get("properties"), held.get("chunks")
    return (
        isinstance(properties, TensorProperties)
        and isinstance(properties.__dict__.get("dtype"), torch.dtype)
        and isinstance(held.get("size"), torch.Size)
        and isinstance(chunks, list)
        and all(_is_chunk(chunk) for chunk in chunks)
    )


def _is_chunk(value: object) -> bool:
    held = value.__dict__ if isinstance(value, ChunkStorageMetadata) else {}
    return all(isinstance(held.get(name), torch.Size) for name in ("offsets", "sizes"))


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
