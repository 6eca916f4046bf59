"""Read documents from text, JSON lines and parquet files, in pieces that fit in memory."""

import codecs
import glob
import gzip
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from meshwise.errors import UserError, nearest, quoted
from meshwise.run import packages

TEXT, LINES, TABLES = (".txt",), (".jsonl", ".json", ".ndjson"), (".parquet",)
KEYED = LINES + TABLES
READ_BYTES = 1 << 20  # bytes of a text file per read, extended to the end of a line
MAX_LINE_BYTES = 1 << 26  # bytes of a line of JSON, at most
Piece = tuple[str, bool]  # text, and whether its document ends there


def files(given: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files that a path, folder or pattern names, sorted by name."""
    if os.path.isdir(given):
        every = [path for path in sorted(Path(given).rglob("*")) if path.is_file() and not _hidden(path.relative_to(given))]
        paths = [path for path in every if kind_of(path) in suffixes]
        if not paths:
            raise UserError(f"--data {given}: the folder has no {', '.join(suffixes)} files")
        return paths
    paths = [Path(given)] if os.path.isfile(given) else [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    paths = [path for path in paths if path.is_file()]
    if not paths:
        folder = Path(given).parent
        names = [path.name for path in folder.iterdir()] if os.path.isdir(folder) else []
        raise UserError(f"--data {quoted(given)}: no such file, folder or pattern{nearest(Path(given).name, names)}")
    other = next((path for path in paths if kind_of(path) not in suffixes), None)
    if other is not None:
        raise UserError(f"--data {other}: {quoted(kind_of(other))} is not one of {', '.join(suffixes)}")
    return paths


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def kind_of(path: Path) -> str:
    """Return the suffix of a file, below .gz."""
    return path.with_suffix("").suffix if path.suffix == ".gz" and path.with_suffix("").suffix in TEXT + LINES else path.suffix


def pieces(path: Path, key: str) -> Iterator[Piece]:
    """Yield the documents of a file: the whole of a text file, the `key` of each line or row of the others."""
    kind = kind_of(path)
    try:
        if kind in TABLES:
            yield from _rows(path, key)
        else:
            with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as opened:
                yield from _whole(opened, path) if kind in TEXT else _lines(opened, path, key)
    except (OSError, EOFError, zlib.error) as error:  # EOFError: an incomplete .gz
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _whole(opened: "IO[bytes]", path: Path) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    more = True
    while more:
        data = opened.read(READ_BYTES)
        more = len(data) == READ_BYTES
        data += opened.readline(READ_BYTES)
        kept = len(decoder.getstate()[0])  # the first bytes of a character that the last piece ended in
        try:
            yield decoder.decode(data, not more), not more
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8: invalid byte at {done - kept + error.start}") from None
        done += len(data)


def _lines(opened: "IO[bytes]", path: Path, key: str) -> Iterator[Piece]:
    for number, value in _objects(opened, path):
        text = value.get(key)
        if not isinstance(text, str):
            held = ", ".join(name for name, member in value.items() if isinstance(member, str))
            raise UserError(f"{path}, line {number}: no text under {quoted(key)}; name the key with --text-key{_listed(held)}")
        if text:
            yield clean(text), True


def clean(text: str) -> str:
    """Return text without halves of UTF-16 surrogate pairs, which are not text."""
    return text.encode("utf-8", "replace").decode()


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a JSON lines file or the rows of a parquet file with their numbers from 1 on."""
    try:
        if kind_of(path) in TABLES:
            yield from enumerate(_table_rows(path), 1)
        else:
            with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as opened:
                yield from _objects(opened, path)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _table_rows(path: Path) -> Iterator[dict[str, Any]]:
    packages.require("pyarrow", path.name)
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

    try:
        with cast(Any, parquet).ParquetFile(path) as table:
            for batch in table.iter_batches(1024):
                yield from batch.to_pylist()
    except cast(Any, pa).ArrowException as error:
        raise UserError(f"{path} is not a readable parquet file ({str(error).splitlines()[0][:80]})") from None


def _objects(opened: "IO[bytes]", path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number in itertools.count(1):
        line = opened.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise UserError(f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB, so it is no document")
        if not line:
            return
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{path}, line {number}: not a JSON object") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number}: not a JSON object")
        yield number, cast(dict[str, Any], value)


def _rows(path: Path, key: str) -> Iterator[Piece]:
    packages.require("pyarrow", path.name)
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingTypeStubs]

    arrow = cast(Any, pa)
    try:
        with cast(Any, parquet).ParquetFile(path) as table:
            texts = [field.name for field in table.schema_arrow if str(field.type).endswith("string")]
            if key not in texts:
                raise UserError(f"{path}: no text column {quoted(key)}; name it with --text-key{_listed(', '.join(texts))}")
            for batch in table.iter_batches(columns=[key]):
                yield from ((text, True) for text in batch.column(0).to_pylist() if text)
    except UnicodeDecodeError:
        raise UserError(f"{path}: the column {quoted(key)} has bytes that are not UTF-8") from None
    except arrow.ArrowException as error:
        raise UserError(f"{path} is not a readable parquet file ({str(error).splitlines()[0][:80]})") from None


def _listed(names: str) -> str:
    return f" (found: {names})" if names else ""
