"""Lines of a plain or gzip-compressed text file, read as they are asked for, with bounds on the file and on a line."""

import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from meshwise.catalogue import files
from meshwise.errors import UserError

MAX_TRACE_BYTES = 4 * 2**30  # bytes of a trace, decompressed: 20 million rows of Mooncake's kind have 3 GiB
MAX_TRACE_LINE_BYTES = 4 * 2**20
MIN_LINE_BYTES = 200  # bytes that a line counts for at least: a small compressed file can hold billions of empty ones
MAX_DOCUMENT_BYTES = 512 * 2**20  # bytes of a file that is one JSON document, which must be held whole
GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Generator[IO[bytes]]:
    """Open a trace, decompressed where it is compressed, and close it."""
    size = path.stat().st_size if path.is_file() else 0
    if size > MAX_TRACE_BYTES:
        raise UserError(f"{path.name} has {size / 1e9:.1f} GB; expected at most {MAX_TRACE_BYTES >> 30} GiB: cut it into parts")
    with files.open_file(path) as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if file.peek(2)[:2] == GZIP else file


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every line that is not empty."""
    left = MAX_TRACE_BYTES
    number = 0
    with opened(path) as file:
        while True:
            number += 1
            try:
                line = file.readline(MAX_TRACE_LINE_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise UserError(f"{path.name}, row {number}: damaged: {error}") from None
            if not line:
                return
            left -= max(len(line), MIN_LINE_BYTES)
            if len(line) > MAX_TRACE_LINE_BYTES:
                raise UserError(f"{path.name}, row {number}: longer than {MAX_TRACE_LINE_BYTES >> 20} MiB, so it is no trace")
            if left < 0:
                raise UserError(
                    f"{path.name}, row {number}: more than {MAX_TRACE_BYTES >> 30} GiB, or too many lines; cut the file into parts"
                )
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise UserError(f"{path.name}, row {number}: not text (UTF-8)") from None
            if text:
                yield number, text


def document(path: Path) -> object:
    """Return a file that is one JSON document."""
    with opened(path) as file:
        try:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path.name}: damaged: {error}") from None
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UserError(f"{path.name}: more than {MAX_DOCUMENT_BYTES >> 20} MiB of one JSON document; write it as lines")
    try:
        return json.load(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name}: not valid JSON: {error}") from None
