"""Weights in HF's safetensors files: the table at the head of each file, checked against the file's size. No torch.

The format: eight bytes of length, a JSON table (type, shape and offsets of every tensor), then the bytes, without gaps to the end.
"""

import json
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The file that transformers looks for first, and the index of several files that it looks for next."""
WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64"), 8), **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2), **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}  # fmt: skip
"""Bytes of an element by the format's type names."""
MAX_TABLE_BYTES = 1 << 25
"""Most bytes of a table or an index: of 200,000 tensors. The format's own limit is 100 MB, which would take gigabytes to parse."""
MAX_ELEMENTS = 1 << 60  # no tensor has as many elements, and no file as many bytes


class WeightsError(ValueError):
    """Files that cannot be read, or that hold other weights than the model's; one line that begins with the path."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else " " for c in message))  # names come from files


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    end: int


def contents(given: Path) -> dict[str, TensorEntry]:
    """Return every tensor of a file, or of the files of a folder, by name."""
    return {name: entry for path in files(given) for name, entry in table(path).items()}


def files(given: Path) -> list[Path]:
    """Return the safetensors files that a path stands for: the file itself, or the folder's files that transformers would read, or all."""
    if given.is_file():
        # one of several parts stands for all of them
        return files(given.parent) if given.name != SINGLE_FILE and given.name in _indexed(given.parent / INDEX) else [given]
    if not given.is_dir():
        raise WeightsError(f"{given}: no such folder or .safetensors file")
    if (given / SINGLE_FILE).is_file():
        return [given / SINGLE_FILE]
    parts = _indexed(given / INDEX)
    for name in parts:
        if not os.path.isfile(given / name):  # unlike Path's, it is False for a name that is too long
            raise WeightsError(f"{given / INDEX} names {name[:100]}, which does not exist")
    paths = [given / name for name in parts] or sorted(given.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"{given}: holds no .safetensors file")
    return paths


def _indexed(path: Path) -> list[str]:
    """Return the files that an index names; none if there is no index."""
    if not path.is_file():
        return []
    try:
        with path.open("rb") as file:
            names = {str(name) for name in json.loads(file.read(MAX_TABLE_BYTES))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WeightsError(f"{path} is not an index of safetensors files: it has no readable weight_map") from None
    outside = next(
        (name for name in sorted(names) if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name), None
    )
    if outside is not None:
        raise WeightsError(f"{path} names {outside[:100]!r}, which is not a file of its folder")
    return sorted(names)


def table(path: Path) -> dict[str, TensorEntry]:
    """Read a file's table of tensors, and check that the file is as long as its table says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            text = file.read(length) if 2 <= length <= MAX_TABLE_BYTES else b""
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) < length and text[:1] == b"{":
        raise WeightsError(f"{path} is truncated: it has {size:,} bytes, but its table alone takes {length + 8:,}")
    try:
        rows = json.loads(text)
        entries = {name: _entry(path, row, 8 + length) for name, row in rows.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WeightsError(f"{path} is not a safetensors file: it does not begin with a table of tensors") from None
    for name, entry in entries.items():
        need = prod(entry.shape) * WIDTHS.get(entry.dtype, 0)
        if entry.end - entry.start != need and entry.dtype in WIDTHS:
            raise WeightsError(
                f"{path}: {name} has {entry.end - entry.start:,} bytes, but {format_shape(entry.shape)} of {entry.dtype} take {need:,}"
            )
    whole = max((entry.end for entry in entries.values()), default=8 + length)
    if size != whole:
        raise WeightsError(
            f"{path} {'is truncated' if size < whole else 'is too long'}: it has {size:,} bytes, but its table asks for {whole:,}"
        )
    return entries


def _entry(path: Path, row: dict[str, Any], base: int) -> TensorEntry:
    shape, (start, end) = tuple(cast(list[int], row["shape"])), cast(list[int], row["data_offsets"])
    whole = all(type(number) is int and 0 <= number < MAX_ELEMENTS for number in (*shape, start, end))
    if not whole or start > end or prod(shape) >= MAX_ELEMENTS:
        raise ValueError("numbers that no file has")
    return TensorEntry(path, str(row["dtype"]), shape, base + start, base + end)


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as '512 x 256'."""
    return " x ".join(map(str, shape)) or "one number"
