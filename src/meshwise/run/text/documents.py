"""Documents of text files, JSON lines and parquet, in pieces that fit in memory."""

import codecs
import glob
import gzip
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from meshwise.errors import UserError, nearest, quoted

TEXT, LINES, TABLES = (".txt",), (".jsonl", ".json", ".ndjson"), (".parquet",)
KEYED = LINES + TABLES
PIECE = 1 << 20
"""Bytes of a text file that are read at once, up to the end of a line."""
Piece = tuple[str, bool]
"""Some text, and whether its document ends there."""
INSTALL = "pip install '.[data]' in the folder of meshwise"


def files(given: str, suffixes: tuple[str, ...]) -> list[Path]:
    """The files that a path, folder or pattern means, in order of their names."""
    if os.path.isdir(given):
        every = [path for path in sorted(Path(given).rglob("*")) if path.is_file() and not _hidden(path.relative_to(given))]
        found = [path for path in every if kind_of(path) in suffixes]
        if not found:
            raise UserError(f"--data {given}: no {', '.join(suffixes)} in the folder")
        return found
    found = [Path(given)] if os.path.isfile(given) else [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    found = [path for path in found if path.is_file()]
    if not found:
        beside = Path(given).parent
        names = [path.name for path in beside.iterdir()] if os.path.isdir(beside) else []
        raise UserError(f"--data {quoted(given)}: no such file, folder or pattern{nearest(Path(given).name, names)}")
    other = next((path for path in found if kind_of(path) not in suffixes), None)
    if other is not None:
        raise UserError(f"--data {other}: {quoted(kind_of(other))} is none of {', '.join(suffixes)}")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def kind_of(path: Path) -> str:
    """The suffix, beneath .gz."""
    return path.with_suffix("").suffix if path.suffix == ".gz" and path.with_suffix("").suffix in TEXT + LINES else path.suffix


def need(package: str, what: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{what} needs {package}, which is not installed: {INSTALL}, or pip install {package}")


def pieces(path: Path, key: str) -> Iterator[Piece]:
    """The documents of a file: one of a text file, one a line or row of the others, from its `key`."""
    kind = kind_of(path)
    try:
        if kind in TABLES:
            yield from _rows(path, key)
        else:
            with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as opened:
                yield from _whole(opened, path) if kind in TEXT else _lines(opened, path, key)
    except (OSError, EOFError) as error:  # EOFError: a .gz that is cut off
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _whole(opened: "IO[bytes]", path: Path) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    more = True
    while more:
        some = opened.read(PIECE)
        more = len(some) == PIECE
        some += opened.readline(PIECE)
        kept = len(decoder.getstate()[0])  # the beginning of a letter that the last piece cut through
        try:
            yield decoder.decode(some, not more), not more
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8: byte {done - kept + error.start} cannot be read") from None
        done += len(some)


def _lines(opened: "IO[bytes]", path: Path, key: str) -> Iterator[Piece]:
    for number, line in enumerate(opened, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{path}, line {number}: not a JSON object") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number}: not a JSON object")
        text = cast(dict[str, Any], value).get(key)
        if not isinstance(text, str):
            held = ", ".join(name for name, one in cast(dict[str, Any], value).items() if isinstance(one, str))
            raise UserError(f"{path}, line {number}: no text under {quoted(key)}; --text-key names the key{_of(held)}")
        if text:
            yield text.encode("utf-8", "replace").decode(), True  # half a pair of UTF-16 is no text


def _rows(path: Path, key: str) -> Iterator[Piece]:
    need("pyarrow", f"{path.name}")
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

    arrow = cast(Any, pa)
    try:
        with cast(Any, parquet).ParquetFile(path) as table:
            texts = [field.name for field in table.schema_arrow if str(field.type).endswith("string")]
            if key not in texts:
                raise UserError(f"{path}: no column of text {quoted(key)}; --text-key names it{_of(', '.join(texts))}")
            for batch in table.iter_batches(columns=[key]):
                yield from ((text, True) for text in batch.column(0).to_pylist() if text)
    except arrow.ArrowException as error:
        raise UserError(f"{path} is no parquet file that can be read ({str(error).splitlines()[0][:80]})") from None


def _of(names: str) -> str:
    return f" (there: {names})" if names else ""
