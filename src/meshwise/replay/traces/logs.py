"""Access logs by a pattern: `nginx`, or a regular expression with the groups time, prompt, output, and perhaps took."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from meshwise.errors import UserError, quoted
from meshwise.replay.traces import text
from meshwise.replay.traces.request import Row, seconds_of, tokens_of

NGINX = (
    r"^(?>.*?\[(?P<time>[^\[\]]+)\])(?>.*?\b(?:prompt|input)_tokens[=:]\s*\"?(?P<prompt>\d+))"
    r"(?>.*?\b(?:completion|output)_tokens[=:]\s*\"?(?P<output>\d+))(?>.*?\b(?:request_time|rt)[=:]\s*\"?(?P<took>[\d.]+))?"
)
"""In time linear in the line: the combined format with prompt_tokens=, completion_tokens= and, if logged, request_time= after it."""
PATTERNS = {"nginx": NGINX}
LOG_TIME = "%d/%b/%Y:%H:%M:%S %z"
NEEDED = ("time", "prompt", "output")


def pattern_of(words: str) -> "re.Pattern[str]":
    """Return the pattern that `--read` names or is."""
    try:
        found = re.compile(PATTERNS.get(words, words))
    except re.error as error:
        raise UserError(f"--read {quoted(words)}: not a pattern: {error}") from None
    missing = [name for name in NEEDED if name not in found.groupindex]
    if missing:
        known = ", ".join(PATTERNS)
        raise UserError(
            f"--read {quoted(words)}: no group (?P<{missing[0]}>...); expected time, prompt and output, or one of {known}"
        )
    return found


def rows(path: Path, pattern: "re.Pattern[str]") -> list[Row]:
    """Return the requests of a log by their start (the end less what `took` says); a log without any match is refused."""
    found = sorted(_rows(path, pattern), key=lambda row: row.seconds)
    if not found:
        first = next(text.lines(path), (0, ""))[1]
        raise UserError(f"{path.name}, row 1: no line matches --read; the first is {quoted(first, 100)}")
    return _spread(found)


def _rows(path: Path, pattern: "re.Pattern[str]") -> Iterator[Row]:
    for number, line in text.lines(path):
        match = pattern.search(line)
        if match is None:
            continue
        where = f"{path.name}, row {number}"
        took = match.groupdict().get("took")
        end = _time(match["time"], where)
        yield Row(
            number, end - (seconds_of(took, where) if took else 0.0), tokens_of(match["prompt"], "prompt", where),
            tokens_of(match["output"], "output", where),
        )  # fmt: skip


def _time(cell: str, where: str) -> float:
    try:
        return datetime.strptime(cell, LOG_TIME).timestamp()
    except ValueError:
        return seconds_of(cell, where)


def _spread(rows: list[Row]) -> list[Row]:
    """Return rows whose times are whole seconds spread evenly over their second: a log states no more."""
    if any(row.seconds != int(row.seconds) for row in rows):
        return rows
    spread: list[Row] = []
    begin = 0
    while begin < len(rows):
        end = begin
        while end < len(rows) and rows[end].seconds == rows[begin].seconds:
            end += 1
        spread += [row._replace(seconds=row.seconds + i / (end - begin)) for i, row in enumerate(rows[begin:end])]
        begin = end
    return spread
