"""Trace: timed requests that can be read as often as needed, cut to a window, sped up, and sent by more users."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from meshwise.catalogue import files
from meshwise.errors import UserError, nearest, quoted
from meshwise.replay.traces import documents, events, logs, tables, text
from meshwise.replay.traces.request import Request, Row, checked, seconds_of, tokens_of

BLOCK_TOKENS = 512  # tokens of a block of a trace that does not state them: Mooncake's
OFFSET_SECONDS = 61.0
"""Seconds by which the requests of further users follow those of the first. A choice: a minute keeps the course of a day."""
SUFFIX = ".csv.gz"  # of traces that are found by name
DOCUMENT_WORDS = ('"input_lens"', '"benchmarks"')  # keys that only whole documents have, although they may stand on one line


@dataclass(frozen=True)
class Trace:
    """Timed requests. Iterating reads them anew, so that a trace may be larger than the memory."""

    name: str
    kind: str  # the format, in words
    source: Callable[[], Iterable[Request]]
    block: int = BLOCK_TOKENS  # tokens of a block of its prompts, where requests state blocks
    speed: float = 1.0
    users: float = 1.0  # users for each one of the trace
    window: tuple[float, float] = (0.0, float("inf"))  # seconds of the trace that are replayed

    def __iter__(self) -> Iterator[Request]:
        begin, end = self.window
        for at, prompt, output, blocks in _scaled(self.source, self.users) if self.users != 1 else self.source():
            if at >= end:
                return
            if at >= begin:
                yield Request((at - begin) / self.speed, prompt, output, blocks)

    @property
    def words(self) -> str:
        """The changes in words; '' where nothing was."""
        begin, end = self.window
        cut = (
            f"from {begin:g} s" + (f" to {end:g} s" if end != float("inf") else "") if self.window != (0.0, float("inf")) else ""
        )
        more = f"{self.users:g} times the users" if self.users != 1 else ""
        fast = f"{self.speed:g} times as fast" if self.speed != 1 else ""
        return ", ".join(filter(None, (cut, more, fast)))


def _scaled(source: Callable[[], Iterable[Request]], users: float) -> Iterator[Request]:
    """Yield the requests of `users` times as many users in order: each further one a little later, with own blocks after the first."""
    whole = int(users)
    numbers = [*range(whole), *([whole] if users > whole else [])]
    streams = [_of_user(source(), i, len(numbers), users - whole if i == whole else 1.0) for i in numbers]
    return heapq.merge(*streams, key=lambda request: request.at)


def _of_user(requests: Iterable[Request], number: int, users: int, share: float) -> Iterator[Request]:
    sent = 0.0
    for at, prompt, output, blocks in requests:
        sent += share
        if sent >= 1 - 1e-9:
            sent -= 1
            own = (*blocks[:1], *(-(block * users + number) - 1 for block in blocks[1:])) if number and blocks else blocks
            yield Request(at + OFFSET_SECONDS * number / users, prompt, output, own)


def open_trace(
    path: str | Path, *, read: str = "", block: int = 0, speed: float = 1.0, users: float = 1.0, window: str = ""
) -> Trace:
    """Return the trace of a file. `read`: the pattern of an access log, or its name; other formats are known by their content."""
    file = find_trace(str(path))
    kind, source = _source(file, read)
    trace = Trace(file.name, kind, source, block or BLOCK_TOKENS, speed, users, window_of(window))
    if next(iter(trace), None) is None:
        raise UserError(f"{file.name} has no requests" + (f" {trace.words}" if trace.words else ""))
    return trace


def find_trace(text: str) -> Path:
    """Find a file by its path, or a trace by its name: built in, or in the user's folder."""
    known = files.files("traces", SUFFIX)
    if text in known:
        return known[text]
    if not Path(text).exists() and not Path(text).suffix:
        raise UserError(f"unknown trace {quoted(text)}{nearest(text, known)}; give a file or one of {', '.join(known)}")
    if Path(text).is_fifo():
        raise UserError(f"{text} is a pipe, and a trace is read more than once; write it to a file")
    return Path(text)


def _source(path: Path, read: str) -> tuple[str, Callable[[], Iterable[Request]]]:
    """Return the format of a file in words, and what reads its requests."""
    if read:
        found = logs.rows(path, logs.pattern_of(read))
        return f"access log ({read})" if read in logs.PATTERNS else "access log", _held(found, path.name)
    head = next(text.lines(path), (0, ""))[1]
    if not head:
        raise UserError(f"{path.name} has no requests")
    if tables.looks_like(head):
        return tables.kind_of(head), partial(_stream, tables.rows, path)
    if events.looks_like(head) and not any(word in head for word in DOCUMENT_WORDS):
        if events.sorted_by_start(head):
            return events.kind_of(head), _held(sorted(events.rows(path), key=lambda row: row.seconds), path.name)
        return events.kind_of(head), partial(_stream, events.rows, path)
    if head[0] in "[{":
        whole = text.document(path)
        return documents.kind_of(whole), _held(documents.rows(whole, path.name), path.name)
    raise UserError(
        f"{path.name}, row 1: {quoted(head)}; expected a header such as 'seconds,prompt,output', JSON lines such as "
        '{"timestamp": 0, "input_length": 512, "output_length": 64}, or an access log with --read'
    )


def _stream(rows: Callable[[Path], Iterable[Row]], path: Path) -> Iterator[Request]:
    return checked(rows(path), path.name)


def _held(rows: list[Row], name: str) -> Callable[[], Iterable[Request]]:
    """Return what gives requests that are held, checked once."""
    requests = list(checked(rows, name))
    return lambda: requests


def of_requests(
    requests: Iterable[Sequence[Any]], name: str = "requests", kind: str = "requests", block: int = BLOCK_TOKENS
) -> Trace:
    """Return a trace of rows that are at hand: seconds, prompt, output and perhaps blocks, in order of time."""
    held = list(checked((_row(number, one, name) for number, one in enumerate(requests, 1)), name))
    return Trace(name, kind, lambda: held, block)


def _row(number: int, one: Sequence[Any], name: str) -> Row:
    where = f"{name}, row {number}"
    if not 3 <= len(one) <= 4:
        raise UserError(f"{where}: {quoted(one)}; expected seconds, prompt, output and perhaps blocks")
    blocks = tuple(map(int, one[3])) if len(one) == 4 else ()
    return Row(number, seconds_of(one[0], where), tokens_of(one[1], "prompt", where), tokens_of(one[2], "output", where), blocks)


def adjusted(trace: Trace, *, speed: float = 1.0, users: float = 1.0, window: str = "") -> Trace:
    """Return a trace with another speed, more users, or cut to a window."""
    return replace(trace, speed=speed, users=users, window=window_of(window))


def as_csv(trace: Trace) -> Iterator[str]:
    """Yield the lines of a trace as CSV, which `open_trace` reads."""
    blocks = False
    for number, request in enumerate(trace):
        if not number:
            blocks = bool(request.blocks)
            yield "seconds,prompt,output" + (",blocks" if blocks else "")
        ids = "," + " ".join(map(str, request.blocks)) if blocks else ""
        yield f"{request.at:.6f},{request.prompt},{request.output}{ids}"


def window_of(words: str) -> tuple[float, float]:
    """Read '10min..40min', '2h..' or '..1h'."""
    if not words:
        return 0.0, float("inf")
    from meshwise import units

    begin, dots, end = words.partition("..")
    if not dots:
        raise UserError(f"--window {quoted(words)}: expected a begin and an end, such as 10min..40min")
    low = units.parse(begin, "seconds") if begin.strip() else 0.0
    high = units.parse(end, "seconds") if end.strip() else float("inf")
    if not 0 <= low < high:
        raise UserError(f"--window {quoted(words)}: expected a begin before its end")
    return low, high
