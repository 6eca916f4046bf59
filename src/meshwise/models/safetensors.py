"""Read the tensors of a checkpoint from the headers of its safetensors files. The weights themselves are not read."""

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any, cast

from meshwise.errors import UserError, quoted

MAX_HEADER_BYTES = 256 * 2**20
INDEX = "model.safetensors.index.json"


def elements_of(folder: Path) -> dict[str, int]:
    """Return the elements of every tensor of the safetensors files in a folder; empty where there are none."""
    found: dict[str, int] = {}
    for path in _files(folder):
        found |= {name: prod(shape) for name, shape in _header(path).items()}
    return found


def _files(folder: Path) -> list[Path]:
    """Return the files that hold the weights: those of the index, or every .safetensors file of the folder."""
    index = folder / INDEX
    if index.is_file():
        try:
            weights: Any = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted({str(name) for name in cast(dict[str, object], weights).values()})
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            raise UserError(f"{INDEX}: not a readable index of safetensors files: {error!s:.80}") from None
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{INDEX} names {quoted(missing[0])}, which is not in {quoted(str(folder), 200)}")
        return [folder / name for name in names]
    return sorted(path for path in folder.glob("*.safetensors") if path.is_file())


def _header(path: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor: a length of eight bytes, and a JSON table of that length."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            (length,) = struct.unpack("<Q", start)
            if length > min(MAX_HEADER_BYTES, os.path.getsize(path)):
                raise ValueError(f"its header claims {length} bytes")
            table: Any = json.loads(file.read(length))
            if not isinstance(table, dict):
                raise ValueError("its header is no table")
            entries = cast(dict[str, dict[str, Any]], table).items()
            shapes = {str(name): cast(list[int], entry["shape"]) for name, entry in entries if name != "__metadata__"}
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {error.strerror}") from None
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path.name}: not a readable safetensors file: {error!s:.80}") from None
    for name, shape in shapes.items():
        if not isinstance(cast(Any, shape), list) or not all(type(size) is int and size >= 0 for size in shape):
            raise UserError(f"{path.name}: the shape of {quoted(name)} is {quoted(shape)}; expected whole numbers")
    return shapes
