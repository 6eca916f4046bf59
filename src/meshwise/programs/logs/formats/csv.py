"""CSV with any delimiter: the columns of meshwise's own tables, vTrain's, or any names that `columns` knows."""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from meshwise.programs.logs.lines import Line
from meshwise.runs.reading import Reading, run_of
from meshwise.runs.table import Header, decimal_mark

name = "csv"
order = 30
DELIMITERS = ",;\t|"
LINES_AHEAD = 200  # lines from which the decimal mark of a file is determined


def matches(head: str) -> bool:
    """Return whether enough of the columns in the first line are known."""
    rows = [line for line in head.splitlines()[:20] if line.strip()]
    if len(rows) < 2 or rows[0].lstrip().startswith(("{", "[", "|", "#!")):
        return False
    header = split(rows[0], delimiter(rows[0]))
    known = sum(column is not None for column in Header(header).columns)
    return len(header) >= 2 and known >= max(2, len(header) // 4)


def delimiter(line: str) -> str:
    return max(DELIMITERS, key=line.count)


def split(line: str, by: str) -> list[str]:
    """Split a line into cells; return no cells if its quotes do not close."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=by, strict=True), list[str]())]
    except csv.Error:
        return []


def records(lines: Iterable[Line]) -> Iterator[Line]:
    """Join lines where a quoted cell contains a line break, up to a hundred of them."""
    held: Line | None = None
    joined = 0
    for line in lines:
        held = Line(held.number, f"{held.text}\n{line.text}", line.cut) if held else line
        if held.text.count('"') % 2 and joined < 100:
            joined += 1
            continue
        yield held
        held, joined = None, 0
    if held:
        yield held


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    rows = records(lines)
    first = next((line for line in rows if line.text.strip()), None)
    if first is None:
        return reading
    by = delimiter(first.text)
    header = Header(split(first.text, by))
    waiting = list(islice(rows, LINES_AHEAD))
    decimal = decimal_mark([cell for line in waiting for cell in header.number_cells(split(line.text, by))])
    for line in chain(waiting, rows):
        cells = split(line.text, by)
        if not line.text.strip():
            continue
        if len(cells) != len(header.names):
            reason = "a row cut off" if line.cut else f"{_counted(len(cells))} in a row under a header of {len(header.names)}"
            reading.skipped.add(reason, f"line {line.number}")
            continue
        run = run_of(header, cells, f"line {line.number}", decimal, reading.skipped)
        if run is None:
            reading.skipped.add("a row without a measurement", f"line {line.number}")
        else:
            reading.add_run(run)
    return reading


def _counted(cells: int) -> str:
    return f"{cells} cell{'s' * (cells != 1)}"
