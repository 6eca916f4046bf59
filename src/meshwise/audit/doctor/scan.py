"""Read the events of a Chrome trace one by one from plain or gzipped JSON, in bounded memory: what is before and after them is kept too."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError

READ_BYTES = 1 << 20
MAX_EVENT_CHARS = 1 << 22
"""Characters of one event, and of what stands before or after the events; a file with more is not a trace."""
MAX_EVENTS = 30_000_000
BETWEEN = re.compile(r"[\s,]*")
GZIP, SQLITE = b"\x1f\x8b", b"SQLite format 3\x00"
HEAD_BYTES = 1 << 16  # bytes at the beginning of a file that tell what it is
_scan_once = cast(Any, json.JSONDecoder(strict=False)).scan_once  # names may hold line ends


class Trace:
    """A trace file: iterate over its events first; `facts` then has the keys beside the list of events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.cut_off = False
        """Whether the file ends before its last event does."""
        self._held, self._place, self._ended = "", 0, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        opened = files.open_file(self.path)
        try:
            with opened:
                gzipped = opened.peek(2)[:2] == GZIP if hasattr(opened, "peek") else False
                yield from self._events(cast(BufferedIOBase, gzip.GzipFile(fileobj=opened)) if gzipped else opened)
        except (zlib.error, EOFError, gzip.BadGzipFile):
            self.cut_off = True
        except OSError as error:
            raise files.unreadable(self.path, error) from None

    def _more(self, stream: BufferedIOBase, decoder: codecs.IncrementalDecoder) -> bool:
        """Read on, dropping what was parsed; return False at the end of the file."""
        try:
            read = b"" if self._ended else stream.read1(READ_BYTES)
        except (zlib.error, EOFError, gzip.BadGzipFile):
            read = b""
        self._ended = not read
        if read:
            self._held, self._place = self._held[self._place :] + decoder.decode(read), 0
        return bool(read)

    def _events(self, stream: BufferedIOBase) -> Iterator[dict[str, Any]]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._begin(stream, decoder)
        count = 0
        skip, scan = BETWEEN.match, _scan_once
        while True:
            place = cast(Any, skip(self._held, self._place)).end()
            if self._held.startswith("]", place):
                self._place = place + 1
                self._end(stream, decoder)
                return
            try:
                event, self._place = scan(self._held, place)
            except (StopIteration, ValueError, RecursionError):
                self._place = place
                if len(self._held) - place > MAX_EVENT_CHARS:
                    raise UserError(f"{self.path.name}: damaged: no whole event near event {count + 1:,}") from None
                if not self._more(stream, decoder):
                    self.cut_off = True
                    return
                continue
            count += 1
            if count > MAX_EVENTS:
                raise UserError(f"{self.path.name}: more than {MAX_EVENTS:,} events; trace fewer steps")
            if type(event) is dict:
                yield cast(dict[str, Any], event)

    def _begin(self, stream: BufferedIOBase, decoder: codecs.IncrementalDecoder) -> None:
        """Read up to the first event, keeping the keys before it."""
        if self._more(stream, decoder) and self._held.lstrip("\ufeff \r\n\t").startswith("["):
            self._place = self._held.index("[") + 1
            return
        while (match := re.search(r'"traceEvents"\s*:\s*\[', self._held)) is None:
            if len(self._held) > MAX_EVENT_CHARS or not self._more(stream, decoder):
                raise UserError(f"{self.path.name}: not a trace of torch's profiler: it has no 'traceEvents'")
        self._keep(f"{self._held[: match.start()].rstrip().rstrip(',')}}}")
        self._place = match.end()

    def _end(self, stream: BufferedIOBase, decoder: codecs.IncrementalDecoder) -> None:
        """Keep the keys after the last event."""
        while len(self._held) - self._place < MAX_EVENT_CHARS and self._more(stream, decoder):
            pass
        self._keep("{" + self._held[self._place :].lstrip(" \r\n\t,"))

    def _keep(self, text: str) -> None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return
        self.facts |= found if isinstance(found, dict) else {}


def is_trace(path: Path) -> bool:
    """Return whether a file is a profiler's trace or an SQLite export, by its first bytes."""
    if not path.is_file():
        return False
    with files.open_file(path) as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error:
            return False
    return head.startswith(SQLITE) or b'"traceEvents"' in head
