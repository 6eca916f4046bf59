"""The one kind of table, for a terminal, as text, in Markdown and on a page; sentences that wrap; and results as JSON and CSV."""

import csv
import io
import json
import math
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

PIPE_WIDTH = 120  # width of output that does not go to a terminal, unless $COLUMNS is set

GAP, WIDE_GAP, EDGES = 2, 3, 2
"""Spaces between two columns of a table, between those of a table with an edge, and what its two edges take."""

LINES, FEWEST = 9, 3  # most lines of a list of reasons, and fewest reasons that it has

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


def price_sentence(cluster: Mapping[str, Any], *, given: bool) -> str:
    """Return 'Cost at $2.21 per device-hour (AWS on demand, 2026-08-22; --price, --provider).'"""
    whose = "--price" if given else f"{cluster.get('priced_by') or 'list price'}; --price, --provider"
    return f"Cost at ${cluster['dollars_per_hour']:,.2f} per device-hour ({whose})."


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of cells that spreadsheets compute


def as_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Return one line per row, the columns in the order in which rows first have them."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _no_formula(value) for key, value in row.items()} for row in rows)
    return out.getvalue().rstrip("\n")


def _no_formula(value: object) -> object:
    """Return a cell that a spreadsheet does not compute: names in files of others may begin like a formula, and get an apostrophe."""
    if not isinstance(value, str) or not value.startswith(FORMULA) or value.lstrip("+-").replace(".", "").isdecimal():
        return value
    return f"'{value}"


@dataclass(frozen=True)
class Column(Generic[Shown]):
    """A column of a table."""

    title: str
    cell: Callable[[Shown], str]
    rank: int = 0  # columns of the highest rank are dropped first where a table is too wide; those of rank 0 never are
    text: bool = False  # whether cells are words, which are aligned to the left
    short: Callable[[Shown], str] | None = None  # a shorter cell for narrow tables
    short_title: str = ""  # a shorter title for narrow tables
    key: Callable[[Shown], float | None] | None = None
    """Sort key of the column on a page, if cells do not begin with the number itself."""


@dataclass(frozen=True)
class Table(Generic[Shown]):
    """Rows, and the columns that show them. It is drawn on a terminal (`fitted`), as text (`lines`) and in Markdown (`markdown`); the
    macro `table` of ui/web/templates draws it on a page."""

    columns: Sequence[Column[Shown]]
    rows: Sequence[Shown]
    edged: bool = False  # whether blank lines and wider gaps set it apart from other text on a terminal
    summed: bool = False  # whether the last row is the sum of the others, below a line on a terminal
    style: Callable[[Shown], str] = lambda row: ""  # the style of a row on a terminal

    def without_empty_columns(self) -> "Table[Shown]":
        """Return the table without columns that are empty in every row."""
        return replace(self, columns=[column for column in self.columns if any(column.cell(row) for row in self.rows)])

    def cells(self, *, short: bool = False) -> list[list[str]]:
        """Return the texts of every row."""
        return [[_cell(column, row, short) for column in self.columns] for row in self.rows]

    def fitted(self, width: int) -> Grid:
        """Return the table for a terminal: with all columns, or else with short cells, or else with as many columns as fit into `width`.
        Text of rank 0 may take half of the width before other columns are dropped; longer text wraps. Numbers are never cut."""
        ranks = sorted({column.rank for column in self.columns if column.rank}, reverse=True)
        fewer = [replace(self, columns=[column for column in self.columns if column.rank < rank]) for rank in ranks]
        tried = [(self, False), (self, True), *((remaining, True) for remaining in fewer)]
        chosen, short = next((trial for trial in tried if trial[0].width(trial[1], width // 2) <= width), tried[-1])
        return chosen.whole(short=short)

    def width(self, short: bool = False, most_text: int = 10_000) -> int:
        """Return the width on a terminal where text of rank 0 takes at most `most_text` characters."""
        titles = [_title(column, short) for column in self.columns]
        natural = [max(map(_longest_line, texts)) for texts in zip(titles, *self.cells(short=short), strict=True)]
        texts = sum(width for column, width in zip(self.columns, natural, strict=True) if column.text and not column.rank)
        gaps = (WIDE_GAP if self.edged else GAP) * (len(natural) - 1) + EDGES * self.edged
        return sum(natural) - texts + min(texts, most_text) + gaps

    def whole(self, *, short: bool = False) -> Grid:
        """Return the table for a terminal with all of its columns; `short` takes short titles and cells."""
        padding = (0, 1) if self.edged else (0, 1, 0, 0)
        made = Grid(box=box.SIMPLE_HEAD, show_edge=self.edged, pad_edge=False, padding=padding, header_style="bold")
        for column in self.columns:
            side = "left" if column.text else "right"
            made.add_column(_title(column, short), justify=side, no_wrap=not column.text, overflow="fold")
        for number, (row, cells) in enumerate(zip(self.rows, self.cells(short=short), strict=True), 2):
            made.add_row(*cells, style=self.style(row), end_section=self.summed and number == len(self.rows))
        return made

    def lines(self) -> list[str]:
        """Return the table as lines of text, its titles in the first."""
        every = [[column.title for column in self.columns], *self.cells()]
        widths = [max(map(len, texts)) for texts in zip(*every, strict=True)]
        return ["  ".join(map(_aligned, self.columns, row, widths)) for row in every]

    def markdown(self) -> str:
        """Return the table as Markdown. Leading blanks of a cell, which mark a part of the row above, do not break."""
        rule = ["---" if column.text else "---:" for column in self.columns]
        return "\n".join(map(_markdown_row, [[column.title for column in self.columns], rule, *self.cells()]))


def grid(
    titles: Sequence[str], rows: Sequence[Sequence[str]], words: Iterable[int] = (0,), *, edged: bool = False,
    style: Callable[[Sequence[str]], str] = lambda row: "",
) -> Table[Sequence[str]]:  # fmt: skip
    """Return the table of texts that are there already. `words`: numbers of the columns that are aligned to the left."""
    left = set(words)
    columns = [Column[Sequence[str]](title, itemgetter(i), text=i in left) for i, title in enumerate(titles)]
    return Table(columns, rows, edged, style=style)


def _longest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _title(column: Column[Any], short: bool) -> str:
    return column.short_title if short and column.short_title else column.title


def _cell(column: Column[Shown], row: Shown, short: bool) -> str:
    return (column.short or column.cell)(row) if short else column.cell(row)


def _aligned(column: Column[Any], text: str, width: int) -> str:
    return text.ljust(width) if column.text else text.rjust(width)


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return "| " + " | ".join("&nbsp;" * (len(cell) - len(cell.lstrip())) + cell.lstrip() for cell in escaped) + " |"


def wrapped(line: str, width: int, head: str = "", indent: str = "", style: str = "") -> Text:
    """Return a sentence wrapped to a width, with `head` before its first line and `indent` before the others."""
    lines = textwrap.wrap(
        line, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines or [head]), style=style)


def heading(lines: Sequence[str], width: int) -> list[Text]:
    """Return the first line in bold, the others plain."""
    return [wrapped(line, width, style="" if i else "bold") for i, line in enumerate(lines)]


def paragraphs(*parts: Iterable[RenderableType]) -> Group:
    """Return the parts with an empty line between each two."""
    return Group(*(line for i, part in enumerate(parts) for line in ([Text()] * (i > 0) + [*part])))


def sentences_view(sentences: Sequence[str], width: int) -> Group:
    """Return every sentence wrapped; one that is indented stays so."""
    indents = ["  " if sentence.startswith(" ") else "" for sentence in sentences]
    return Group(*(wrapped(line.strip(), width, indent, f"{indent}  ") for line, indent in zip(sentences, indents, strict=True)))


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
