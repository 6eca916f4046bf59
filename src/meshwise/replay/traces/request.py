"""Request: one row of a trace, and the bounds that every row must keep."""

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from meshwise.errors import UserError, quoted

MAX_REQUESTS = 20_000_000
MAX_REQUEST_TOKENS = 2**24  # tokens of a prompt or an output, at most: 16 times the longest context of any model in use
MAX_GAP_SECONDS = 7 * 86400.0  # seconds between two requests, at most: a longer gap is a wrong unit or a damaged row
MAX_SECONDS = 366 * 86400.0  # seconds from the first request to the last, at most: every minute of them is counted


class Request(NamedTuple):
    """One request of a trace."""

    at: float  # seconds since the first request
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()  # ids of the blocks of its prompt; requests with equal first ids have equal first tokens


class Row(NamedTuple):
    """A row as a reader found it: its number in the file, the time in seconds, and the tokens."""

    number: int
    seconds: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


def seconds_of(cell: object, where: str, scale: float = 1.0) -> float:
    """Return the time of a cell: a number times `scale`, or a date and time."""
    number = isinstance(cell, int | float) and not isinstance(cell, bool)
    try:
        value = float(cell if number else str(cell).strip()) * scale  # pyright: ignore[reportArgumentType]
    except OverflowError:
        value = math.inf
    except ValueError:
        value = _moment(str(cell).strip(), where)
    if not math.isfinite(value):
        raise UserError(f"{where}: time {quoted(cell)}; expected seconds or a date and time")
    return value


def _moment(text: str, where: str) -> float:
    """Return seconds since 1970 of '2023-11-16 18:15:46.6805900'; without a zone it is UTC."""
    head, dot, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    fraction, zone = rest[:digits], rest[digits:]
    try:
        found = datetime.fromisoformat(head + (f".{fraction[:6]}" if dot and fraction else "") + zone.strip())
    except ValueError:
        raise UserError(f"{where}: time {quoted(text)}; expected seconds or a date and time") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def tokens_of(cell: object, what: str, where: str) -> int:
    """Return the tokens of a cell: a whole number from 0 to MAX_REQUEST_TOKENS."""
    try:
        value = float(cell) if isinstance(cell, int | float | str) and not isinstance(cell, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if cell in (None, ""):
        raise UserError(f"{where}: no {what} tokens")
    if not (value == value and value == math.floor(value) if math.isfinite(value) else False):
        raise UserError(f"{where}: {what} {quoted(cell)}; expected a whole number of tokens")
    if not 0 <= value <= MAX_REQUEST_TOKENS:
        raise UserError(f"{where}: {value:,.0f} {what} tokens; expected 0 to {MAX_REQUEST_TOKENS:,}")
    return int(value)


def checked(rows: Iterable[Row], name: str) -> Iterator[Request]:
    """Yield the rows of a trace as requests from time 0; UserError, with the row, for disorder, gaps and too many rows."""
    first, before = None, 0.0
    for count, (number, seconds, prompt, output, blocks) in enumerate(rows, 1):
        if first is None:
            first = before = seconds
        if seconds < before:
            raise UserError(
                f"{name}, row {number}: it is {before - seconds:,.3f} s earlier than the row before; expected rows in order of time"
            )
        if seconds - before > MAX_GAP_SECONDS:
            raise UserError(
                f"{name}, row {number}: {(seconds - before) / 86400:,.0f} days after the row before; is the unit of its time right?"
            )
        if count > MAX_REQUESTS or seconds - first > MAX_SECONDS:
            raise UserError(f"{name}, row {number}: more than {MAX_REQUESTS:,} requests, or than a year; cut the file")
        before = seconds
        yield Request(seconds - first, max(1, prompt), max(1, output), blocks)
