"""Records that templates draw: bars cut into parts, intervals, cells and tables. Widths are in percent of the drawing."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from meshwise.cost.parts import REPLAY_TIME, SERVE_MEMORY, SERVE_TIME, TRAIN_MEMORY, TRAIN_TIME, Part, on_chip
from meshwise.ui.views.tables import Column, Table

Shown = TypeVar("Shown")
SCALES = {"tt": TRAIN_TIME, "tm": TRAIN_MEMORY, "st": SERVE_TIME, "sm": SERVE_MEMORY, "rt": REPLAY_TIME}
"""Parts by the prefix of their CSS classes: time and memory of training and of serving, and the time of replayed requests."""
MIN_PIECE_PERCENT = 0.02  # percent below which a piece of a bar cannot be seen, and is not drawn
MIN_LETTER_PERCENT = 2.6  # percent from which a piece of a wide bar has room for its letter
INTERVAL = re.compile(r"(.+?) \((\S+?)-(\S+?)\)")
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Piece:
    """One part of a bar."""

    part: Part
    style: str  # its CSS class
    x: float
    width: float
    share: float  # percent of the whole bar's value
    text: str  # its value with a unit

    @property
    def lettered(self) -> bool:
        return self.width >= MIN_LETTER_PERCENT


@dataclass(frozen=True)
class Bar:
    """A bar cut into parts; the room up to 100% is empty."""

    label: str
    total: str
    pieces: tuple[Piece, ...]

    @property
    def words(self) -> str:
        """The bar in words, for people who do not see it."""
        parts = ", ".join(f"{piece.part.words} {piece.share:.0f}%" for piece in self.largest if piece.share >= 1)
        return f"{self.label} {self.total}: {parts}"

    @property
    def largest(self) -> list[Piece]:
        """The parts, the largest first, without those that nobody would miss."""
        return sorted((piece for piece in self.pieces if piece.share >= 0.05), key=lambda piece: -piece.share)

    @property
    def key(self) -> list[Piece]:
        """The parts, each once, in the order of the bar."""
        return list({piece.style: piece for piece in self.pieces}.values())


def bar(
    scale: str, values: Mapping[str, float], full: float, show: Callable[[float], str], label: str, total: str = "",
    kind: object = "gpu",
) -> Bar:  # fmt: skip
    """Return the bar of some values by part; a value of `full` is as wide as the drawing. `kind` of chip: only GPUs have CUDA."""
    pieces, x, whole = list[Piece](), 0.0, sum(values.values())
    for part in on_chip(SCALES[scale], kind):
        value = values.get(part.name, 0.0)
        width = 100 * value / full if full else 0.0
        if width > MIN_PIECE_PERCENT:
            share = 100 * value / whole if whole else 0.0
            pieces.append(Piece(part, f"{scale}-{part.name}", round(x, 3), round(width, 3), share, show(value)))
            x += width
    return Bar(label, total or show(whole), tuple(pieces))


def styles() -> str:
    """Return the CSS of all parts: one colour per part, and black or white for its letter, whichever contrasts more."""
    lines: list[str] = []
    for scale, parts in SCALES.items():
        for part in parts:
            ink = "#000" if luminance(part.colour) > 0.2 else "#fff"
            lines.append(f".{scale}-{part.name}{{fill:{part.colour};--part:{part.colour};--ink:{ink}}}")
    return "\n".join(lines) + "\n"


def luminance(colour: str) -> float:
    """Return the relative luminance of '#rrggbb' (WCAG 2.2)."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@dataclass(frozen=True)
class Whisker:
    """An interval on a common scale, in percent."""

    low: float
    middle: float
    high: float


def whiskers(values: Sequence[tuple[float, float, float]]) -> list[Whisker]:
    """Return intervals (low, middle, high) on the scale from the lowest to the highest of them."""
    least, most = min((low for low, _, _ in values), default=0.0), max((high for _, _, high in values), default=1.0)
    room = (most - least) or 1.0
    return [Whisker(*(round(4 + 92 * (value - least) / room, 2) for value in each)) for each in values]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and the interval in it."""

    text: str
    low: str = ""
    high: str = ""
    words: bool = False  # whether it is text, aligned to the left


@dataclass(frozen=True)
class Head:
    """The head of a column: its title, and the value of `sort` that a click on it asks for."""

    title: str
    words: bool
    slug: str
    sorted: str = ""  # ascending, descending, or ''


@dataclass(frozen=True)
class Row:
    """A row of a table of layouts: its rank, cells, and pictures."""

    number: int
    cells: tuple[Cell, ...]
    mark: str = ""  # a or B where it is compared
    warning: str = ""
    bar: Bar | None = None
    whisker: Whisker | None = None
    link: str = ""  # the query string of a click on it


@dataclass(frozen=True)
class Layouts:
    """A table of layouts as a page draws it: heads that sort, rows with bars and intervals."""

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]


def cell(column: Column[Shown], row: Shown) -> Cell:
    """Return the cell of a column; '112.4 (106-124)' becomes a value and an interval."""
    text = column.cell(row)
    match = None if column.text else INTERVAL.fullmatch(text)
    return Cell(match[1], match[2], match[3]) if match else Cell(text, words=column.text)


def sort_key(column: Column[Shown], row: Shown) -> tuple[bool, float, str]:
    """Return the key that sorts a column: its number, or its text; rows without a value come last."""
    if column.key is not None:
        value = column.key(row)
        return value is None, value or 0.0, ""
    text = column.cell(row)
    match = None if column.text else NUMBER.search(text)
    return not text, float(match[0].replace(",", "")) if match else 0.0, text if match is None else ""


def slug(title: str) -> str:
    """Return a column's title as a word for the query string: 's/step (90%)' is 's-step'."""
    return re.sub(r"[^a-z0-9]+", "-", title.partition(" (")[0].lower()).strip("-")


def heads(columns: Sequence[Column[Any]], asked: str) -> tuple[Head, ...]:
    """Return the heads of a table that is sorted by `asked`: a slug, with '-' before it for descending order."""
    shown: list[Head] = []
    for column in columns:
        name = slug(column.title)
        order = "descending" if asked == f"-{name}" else "ascending" if asked == name else ""
        following = {"": f"-{name}", "descending": name, "ascending": ""}[order]
        shown.append(Head(column.title.replace(" (90%)", ""), column.text, following, order))
    return tuple(shown)


def ordered(table: Table[Shown], asked: str) -> list[int]:
    """Return the numbers of the rows in the asked order; as they are where no column is asked for."""
    column = next((column for column in table.columns if slug(column.title) == asked.removeprefix("-")), None)
    numbers = list(range(len(table.rows)))
    if column is None:
        return numbers
    keys = [sort_key(column, row) for row in table.rows]
    present = [i for i in numbers if not keys[i][0]]
    present.sort(key=lambda i: keys[i][1:], reverse=asked.startswith("-"))
    return [*present, *(i for i in numbers if keys[i][0])]
