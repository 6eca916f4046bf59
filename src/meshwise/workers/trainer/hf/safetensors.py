"""Weights as they lie in HF's safetensors files: the table at the head of each, checked against the size of the file. No torch here.

The format: eight bytes of length, a table in JSON (type, shape and place of every weight), then the bytes, without a gap and to the end.
"""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What transformers looks for first, and else."""
WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}
"""Bytes of an element by the format's names."""
LONGEST = 100_000_000
"""Bytes of a table, at most: the format's own bound."""


class Unfit(ValueError):
    """Files that no weights can be read from, or not those of the model, in one line that begins with the path."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One weight of a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Bytes from the beginning of the file."""
    end: int


def contents(given: Path) -> dict[str, Stored]:
    """Every weight of a file, or of the files of a folder, by name."""
    return {name: one for path in files(given) for name, one in table(path).items()}


def files(given: Path) -> list[Path]:
    """The safetensors files that a path means: itself, or in a folder those that transformers would read, or all."""
    if given.is_file():
        # one of several parts stands for all of them
        return files(given.parent) if given.name != ONE and given.name in _indexed(given.parent / INDEX) else [given]
    if not given.is_dir():
        raise Unfit(f"{given}: no such folder or .safetensors file")
    if (given / ONE).is_file():
        return [given / ONE]
    parts = _indexed(given / INDEX)
    for name in parts:
        if not (given / name).is_file():
            raise Unfit(f"{given / INDEX} names {name}, which is not there")
    found = [given / name for name in parts] or sorted(given.glob("*.safetensors"))
    if not found:
        raise Unfit(f"{given}: no .safetensors in it")
    return found


def _indexed(path: Path) -> list[str]:
    """The files that an index names; none where there is no index."""
    if not path.is_file():
        return []
    try:
        return sorted({str(name) for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Unfit(f"{path} is no index of safetensors files: it has no weight_map that can be read") from None


def table(path: Path) -> dict[str, Stored]:
    """What a file holds, once its size is seen to be what its table says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            text = file.read(length) if 2 <= length <= LONGEST else b""
    except OSError as error:
        raise Unfit(f"{path} cannot be read: {error.strerror}") from None
    if len(text) < length and text[:1] == b"{":
        raise Unfit(f"{path} is cut off: it has {size:,} bytes, and its table alone {length + 8:,}")
    try:
        rows = json.loads(text)
        found = {name: _row(path, row, 8 + length) for name, row in rows.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unfit(f"{path} is no safetensors file: it does not begin with a table of weights") from None
    for name, one in found.items():
        if one.end - one.start != prod(one.shape) * WIDTHS.get(one.dtype, 0) and one.dtype in WIDTHS:
            raise Unfit(f"{path}: {name} has {one.end - one.start:,} bytes, and {shown(one.shape)} of {one.dtype} have others")
    whole = max((one.end for one in found.values()), default=8 + length)
    if size != whole:
        raise Unfit(
            f"{path} {'is cut off' if size < whole else 'is too long'}: it has {size:,} bytes, and by its table {whole:,}"
        )
    return found


def _row(path: Path, row: dict[str, Any], base: int) -> Stored:
    shape, (start, end) = tuple(int(size) for size in row["shape"]), cast(list[int], row["data_offsets"])
    if min((*shape, start, end - start)) < 0:
        raise ValueError(row)
    return Stored(path, str(row["dtype"]), shape, base + start, base + end)


def shown(shape: tuple[int, ...]) -> str:
    """'512 x 256'"""
    return " x ".join(map(str, shape)) or "one number"
