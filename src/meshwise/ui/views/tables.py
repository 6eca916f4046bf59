"""Tables for a terminal, and results as JSON and CSV. A table shows as many of its columns as fit, and never cuts a number."""

import csv
import io
import json
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
"""Columns of output that is no terminal, unless $COLUMNS says otherwise."""

Shown = TypeVar("Shown")


def console(*, stderr: bool = False) -> Console:
    """Standard output. Names and notes come from files: '[/x]' in one is text, not rich's markup."""
    found = Console(markup=False, emoji=False, highlight=False, stderr=stderr)
    if found.is_terminal:
        return found
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isdecimal() and int(given[:5]) >= 20 else PIPE_WIDTH
    return Console(markup=False, emoji=False, highlight=False, stderr=stderr, width=width)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def as_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """One line per row, the columns in the order in which rows first have them."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


@dataclass(frozen=True)
class Column(Generic[Shown]):
    """A column of a table of choices: the same on a terminal and in a notebook."""

    title: str
    cell: Callable[[Shown], str]
    rank: int = 0
    """Columns of the highest rank are dropped first where a table is too wide; those of rank 0 never are."""
    text: bool = False
    """Whether cells are words, which stand on the left."""
    short: Callable[[Shown], str] | None = None
    """A shorter cell for narrow tables,"""
    short_title: str = ""
    """and a shorter title."""


def fitted(columns: Sequence[Column[Shown]], rows: Sequence[Shown], width: int) -> Table:
    """The table with all columns, or else with short cells, or else with as many columns as fit into `width`."""
    ranks = sorted({column.rank for column in columns if column.rank}, reverse=True)
    fewer = [[column for column in columns if column.rank < rank] for rank in ranks]
    tried = [(columns, False), (columns, True), *((some, True) for some in fewer)]
    made = [table(some, rows, short=short) for some, short in tried]
    measure = Console(width=1000)
    return next((one for one in made if Measurement.get(measure, measure.options, one).maximum <= width), made[-1])


def table(columns: Sequence[Column[Shown]], rows: Sequence[Shown], *, short: bool = False) -> Table:
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        title = column.short_title if short and column.short_title else column.title
        found.add_column(title, justify="left" if column.text else "right", no_wrap=True)
    for row in rows:
        found.add_row(*((column.short or column.cell)(row) if short else column.cell(row) for column in columns))
    return found


def wrapped(line: str, width: int, head: str = "", indent: str = "") -> Text:
    """A sentence at a width: `head` before its first line, `indent` before the others."""
    return Text(
        "\n".join(textwrap.wrap(line, width, initial_indent=head, subsequent_indent=indent, break_long_words=False) or [head])
    )


def bullets(lines: Iterable[str], width: int) -> list[Text]:
    """Sentences as a list; a line that is indented already belongs to the one before it."""
    return [
        wrapped(line.strip(), width, "    ", "    ") if line.startswith(" ") else wrapped(line, width, "- ", "  ")
        for line in lines
    ]


def calibration_line(about: Mapping[str, str], chip: object, remedy: str, *, verbose: bool) -> Text:
    """Which calibration the numbers rest on; where it was not fitted on this chip, how to measure one."""
    date = f", {about['date']}" if about["date"] else ""
    fitted_on = f" (fitted on {about['fitted_on']}{date})" if verbose else ""
    if about["own_chip"]:
        return Text(f"calibration: {about['name']}{fitted_on}", style="dim")
    return Text(f"not calibrated for {chip}: using '{about['name']}'{fitted_on}; {remedy}", style="dim")
