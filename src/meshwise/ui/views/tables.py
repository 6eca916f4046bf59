"""Tables for a terminal, and results as JSON and CSV. A table shows as many of its columns as fit, and never cuts a number."""

import csv
import io
import json
import math
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
"""Width of output that does not go to a terminal, unless $COLUMNS is set."""

GAP = 2
"""Spaces between two columns of a table."""

LINES, FEWEST = 9, 3
"""Most lines of a list of reasons, and fewest reasons that it has."""

Shown = TypeVar("Shown")


def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output or standard error. Names come from files, so '[/x]' is text and not rich's markup."""
    terminal = Console(markup=False, emoji=False, highlight=False, stderr=stderr)
    if terminal.is_terminal:
        return terminal
    given = os.environ.get("COLUMNS", "")
    width = int(given) if given.isdecimal() and int(given[:5]) >= 20 else PIPE_WIDTH
    return Console(markup=False, emoji=False, highlight=False, stderr=stderr, width=width)


def as_json(value: Any) -> str:
    """Return indented JSON. It has no NaN and no infinity: such a number, the score of an absurd measurement, is null."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(list[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def at_path(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path such as 'parameters/total' in nested dicts; None where it is missing."""
    value: Any = row
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return value  # pyright: ignore[reportUnknownVariableType]


def whole_at(path: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats the whole number at a path with commas; '' where it is missing or 0."""
    return lambda row: f"{value:,}" if (value := at_path(row, path)) else ""


def price_sentence(rate: float | str, *, given: bool) -> str:
    """Return 'Cost at $2.21 per device-hour (list price; --price changes it).'"""
    return f"Cost at ${rate:,.2f} per device-hour ({'--price' if given else 'list price; --price changes it'})."


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
    """A column of a table, on a terminal and in a notebook."""

    title: str
    cell: Callable[[Shown], str]
    rank: int = 0
    """Columns of the highest rank are dropped first where a table is too wide; those of rank 0 never are."""
    text: bool = False
    """Whether cells are words, which are aligned to the left."""
    short: Callable[[Shown], str] | None = None
    """A shorter cell for narrow tables."""
    short_title: str = ""
    """A shorter title for narrow tables."""
    key: Callable[[Shown], float | None] | None = None
    """Sort key of the column on a page, if cells do not begin with the number itself."""


def fitted(columns: Sequence[Column[Shown]], rows: Sequence[Shown], width: int) -> Table:
    """Return the table with all columns, or else with short cells, or else with as many columns as fit into `width`.

    Text of rank 0 may take half of the width before other columns are dropped; longer text wraps. Numbers are never cut."""
    ranks = sorted({column.rank for column in columns if column.rank}, reverse=True)
    fewer = [[column for column in columns if column.rank < rank] for rank in ranks]
    tried = [(columns, False), (columns, True), *((remaining, True) for remaining in fewer)]
    chosen, short = next((trial for trial in tried if _width(*trial, rows, width // 2) <= width), tried[-1])
    return table(chosen, rows, short=short)


def _width(columns: Sequence[Column[Shown]], short: bool, rows: Sequence[Shown], most: int) -> int:
    """Return the width of a table whose text of rank 0 takes at most `most` characters."""
    cells = [[_title(column, short), *(_cell(column, row, short) for row in rows)] for column in columns]
    natural = [max(map(cell_len, column)) for column in cells]
    texts = sum(width for column, width in zip(columns, natural, strict=True) if column.text and not column.rank)
    return sum(natural) - texts + min(texts, most) + GAP * (len(columns) - 1)


def _title(column: Column[Any], short: bool) -> str:
    return column.short_title if short and column.short_title else column.title


def _cell(column: Column[Shown], row: Shown, short: bool) -> str:
    return (column.short or column.cell)(row) if short else column.cell(row)


def table(columns: Sequence[Column[Shown]], rows: Sequence[Shown], *, short: bool = False) -> Table:
    """Return a table with all of these columns; `short` takes short titles and cells."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        side = "left" if column.text else "right"
        made.add_column(_title(column, short), justify=side, no_wrap=not column.text, overflow="fold")
    for row in rows:
        made.add_row(*(_cell(column, row, short) for column in columns))
    return made


def wrapped(line: str, width: int, head: str = "", indent: str = "", style: str = "") -> Text:
    """Return a sentence wrapped to a width, with `head` before its first line and `indent` before the others."""
    lines = textwrap.wrap(
        line, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines or [head]), style=style)


def heading(lines: Sequence[str], width: int) -> list[Text]:
    """Return the first line in bold, the others plain."""
    return [wrapped(line, width, style="" if i else "bold") for i, line in enumerate(lines)]


def bullets(sentences: Iterable[str], width: int) -> list[Text]:
    """Return the first sentences as a list: as many as fit into LINES, and at least FEWEST. An indented sentence belongs to the
    one before it."""
    listed: list[Text] = []
    lines = items = 0
    for sentence in sentences:
        inner = sentence.startswith(" ")
        made = wrapped(sentence.strip(), width, "    " if inner else "- ", "      " if inner else "  ")
        lines += made.plain.count("\n") + 1
        if lines > LINES and items >= FEWEST and not inner:
            break
        listed.append(made)
        items += not inner
    return listed


def calibration_line(about: Mapping[str, str], chip: object, remedy: str, *, verbose: bool) -> str:
    """Return the name of the calibration in use; where it was not fitted on this chip, also how to measure one."""
    date = f", {about['date']}" if about["date"] else ""
    fitted_on = f" (fitted on {about['fitted_on']}{date})" if verbose else ""
    if about["own_chip"]:
        return f"calibration: {about['name']}{fitted_on}"
    return f"not calibrated for {chip}: using '{about['name']}'{fitted_on}; {remedy}"
