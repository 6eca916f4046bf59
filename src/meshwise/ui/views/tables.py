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
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
"""Columns of output that is no terminal, unless $COLUMNS says otherwise."""

GAP = 2
"""Columns of a terminal between two columns of a table."""

LINES, FEWEST = 9, 3
"""Lines that a list of reasons may take, and how many reasons it has at least."""

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
    """Return one line per row, the columns in the order in which rows first have them."""
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
    """Return the table with all columns, or else with short cells, or else with as many columns as fit into `width`.

    Text of rank 0 may take half of the width before other columns are dropped; longer text wraps. Numbers are never cut."""
    ranks = sorted({column.rank for column in columns if column.rank}, reverse=True)
    fewer = [[column for column in columns if column.rank < rank] for rank in ranks]
    tried = [(columns, False), (columns, True), *((some, True) for some in fewer)]
    chosen, short = next((one for one in tried if _width(*one, rows, width // 2) <= width), tried[-1])
    return table(chosen, rows, short=short)


def _width(columns: Sequence[Column[Shown]], short: bool, rows: Sequence[Shown], most: int) -> int:
    """Return the width of a table whose text of rank 0 takes at most `most` characters."""
    natural = [max(cell_len(cell) for cell in (_title(one, short), *(_cell(one, row, short) for row in rows))) for one in columns]
    texts = sum(width for one, width in zip(columns, natural, strict=True) if one.text and not one.rank)
    return sum(natural) - texts + min(texts, most) + GAP * (len(columns) - 1)


def _title(column: Column[Any], short: bool) -> str:
    return column.short_title if short and column.short_title else column.title


def _cell(column: Column[Shown], row: Shown, short: bool) -> str:
    return (column.short or column.cell)(row) if short else column.cell(row)


def table(columns: Sequence[Column[Shown]], rows: Sequence[Shown], *, short: bool = False) -> Table:
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        side = "left" if column.text else "right"
        found.add_column(_title(column, short), justify=side, no_wrap=not column.text, overflow="fold")
    for row in rows:
        found.add_row(*(_cell(column, row, short) for column in columns))
    return found


def wrapped(line: str, width: int, head: str = "", indent: str = "", style: str = "") -> Text:
    """Return a sentence at a width: `head` before its first line, `indent` before the others."""
    lines = textwrap.wrap(
        line, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines or [head]), style=style)


def heading(lines: Sequence[str], width: int) -> list[Text]:
    """Return the first line in bold, the others plain."""
    return [wrapped(line, width, style="" if i else "bold") for i, line in enumerate(lines)]


def bullets(sentences: Iterable[str], width: int) -> list[Text]:
    """Return the first sentences as a list: as many as fit into LINES, and at least FEWEST. An indented one belongs to the one before
    it."""
    found: list[Text] = []
    lines = items = 0
    for sentence in sentences:
        inner = sentence.startswith(" ")
        made = wrapped(sentence.strip(), width, "    " if inner else "- ", "      " if inner else "  ")
        lines += made.plain.count("\n") + 1
        if lines > LINES and items >= FEWEST and not inner:
            break
        found.append(made)
        items += not inner
    return found


def calibration_line(about: Mapping[str, str], chip: object, remedy: str, *, verbose: bool) -> str:
    """Return which calibration the numbers rest on; where it was not fitted on this chip, how to measure one."""
    date = f", {about['date']}" if about["date"] else ""
    fitted_on = f" (fitted on {about['fitted_on']}{date})" if verbose else ""
    if about["own_chip"]:
        return f"calibration: {about['name']}{fitted_on}"
    return f"not calibrated for {chip}: using '{about['name']}'{fitted_on}; {remedy}"
