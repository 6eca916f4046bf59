"""Tables of measurements: find one by name or path, read its rows, and the numbers in them."""

import csv
import io
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from meshwise.catalogue import files
from meshwise.catalogue.chips import HERE
from meshwise.errors import UserError, nearest, quoted

Row = Mapping[str, str]
"""One row of a table: texts by column."""
LONGEST_LINE = 1 << 20
"""Bytes of a line of a table, at most."""
Case = TypeVar("Case")
MOST_DIGITS = 300


@dataclass(frozen=True)
class Skipped:
    """A row that is not used, and why."""

    row_id: str
    reason: str


def find_table(text: str) -> Path:
    """Find a CSV or JSONL file by its path, or a table by its name: built in, or in the user's folder."""
    path, known = Path(text), files.files("measurements", ".csv")
    if text in known:
        return known[text]
    if path.suffix in (".csv", ".jsonl") or path.is_file():
        return path
    if text == HERE:
        raise UserError("this machine was not measured yet: run 'meshwise probe' first")
    raise UserError(
        f"unknown table {quoted(text)}{nearest(text, known)}; give a .csv or .jsonl file or one of {', '.join(known)}"
    )


class Text:
    """The lines of a text file. They are read as they are asked for, as often as they are, so that a table may be larger than the
    memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # a pipe can be read once
        self.held = None if path.is_file() else files.bytes_of(path)

    def __iter__(self) -> Iterator[str]:
        opened = files.open_file(self.path) if self.held is None else io.BytesIO(self.held)
        with io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
            for number in itertools.count(1):
                try:
                    line = text.readline(LONGEST_LINE + 1)
                except UnicodeDecodeError:
                    raise UserError(f"{self.path}: not a text file (UTF-8)") from None
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{self.path.name}, line {number}: longer than {LONGEST_LINE >> 20} MiB, so it is no table")
                if not line:
                    return
                yield line


class Lines:
    """The lines of a CSV file below its header: the fields of each, with its line number; false if there are none."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, Text(path)

    def _all(self) -> Iterator[tuple[int, list[str]]]:
        """Yield every line, the header first."""
        reader = csv.reader(self.text, strict=True)
        try:
            for line in reader:
                yield reader.line_num, line
        except csv.Error as error:
            raise UserError(f"{self.path.name}, line {reader.line_num}: not valid CSV: {error}") from None

    def header(self) -> list[str]:
        return [name.strip() for name in next(self._all(), (0, list[str]()))[1]]

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        return ((number, line) for number, line in itertools.islice(self._all(), 1, None) if line)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


def read_lines(path: Path) -> tuple[list[str], Lines]:
    """Return the header of a CSV file, and its lines."""
    lines = Lines(path)
    return lines.header(), lines


def rows(path: Path, columns: Sequence[str], lines: Lines) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield where each row is (file and line) and its texts by column."""
    for number, line in lines:
        where = f"{path.name}, line {number}"
        if len(line) != len(columns):
            raise UserError(f"{where}: {len(line)} fields, where the header has {len(columns)}")
        if any(len(cell) > MOST_DIGITS and cell.strip().isdecimal() for cell in line):
            raise UserError(f"{where}: a number of more than {MOST_DIGITS} digits")
        yield where, dict(zip(columns, map(str.strip, line), strict=True))


def cases(path: Path, rows: Iterable[Row], case: Callable[[Row, str], Case]) -> tuple[list[Case], list[Skipped]]:
    """Turn rows into cases with `case(row, row_id)`; skip those that it refuses. Refuse a table in which every row is skipped."""
    used: list[Case] = []
    skipped: list[Skipped] = []
    reasons: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        row_id = row.get("row_id") or f"{path.stem}-{number}"
        try:
            used.append(case(row, row_id))
        except UserError as error:
            skipped.append(Skipped(row_id, reasons.setdefault(str(error), str(error))))
    if not used:
        reason, times = Counter(skip.reason for skip in skipped).most_common(1)[0] if skipped else ("the table is empty", 0)
        raise UserError(f"{path.name}: none of its {len(skipped)} rows can be evaluated; {times} of them: {reason}")
    return used, skipped


def number(row: Row, *columns: str) -> float:
    """Return the first number that is stated in these columns; NaN where none is."""
    for column in columns:
        text = row.get(column, "")
        if text:
            try:
                value = float(text)
            except ValueError:
                raise UserError(f"{column} is {quoted(text)}, not a number") from None
            if value < 0 or math.isinf(value):
                raise UserError(f"{column} is {quoted(text)}; expected a number of zero or more")
            return value
    return math.nan


def whole(row: Row, *columns: str, default: int | None = None) -> int:
    """Return the first whole number that is stated in these columns, or the default; refuse a row that states none where there is no
    default."""
    value = number(row, *columns)
    if math.isnan(value) and default is not None:
        return default
    if math.isnan(value):
        raise UserError(f"{columns[0]} is not stated")
    if not value < 2**40 or value != int(value):
        raise UserError(f"{columns[0]} is {value:g}, not a whole number")
    return int(value)


def above_zero(row: Row, *columns: str, default: int | None = None) -> int:
    """Return the first whole number that is stated in these columns, or the default; refuse zero, which divides nothing."""
    value = whole(row, *columns, default=default)
    if not value and any(row.get(column) for column in columns):
        raise UserError(f"{columns[0]} is 0; expected a whole number of 1 or more, or an empty field if it is not known")
    return value
