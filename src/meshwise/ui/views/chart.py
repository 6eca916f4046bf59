"""A bar chart on a terminal: one bar per point and figure; the longest bar of each column is the largest value."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from meshwise.ui.views import bars

LONGEST, SHORTEST = 16, 3  # characters of a bar on a wide and on a narrow terminal
COLOURS = ("green", "yellow", "cyan")
COLUMN_GAP = 2

Choice = TypeVar("Choice")
Panel = tuple[str, Callable[[Choice], float | None], Callable[[Choice], str]]
"""A figure: its title, its value, and the text after the bar."""
Point = tuple[Sequence[str], Choice | None, str]  # the labels of a point, its layout if it has one, and a mark after its bars


def chart(titles: Sequence[str], points: Sequence[Point[Choice]], panels: Sequence[Panel[Choice]], width: int) -> Table:
    """Return a row per point: its labels, a bar for each panel, its mark."""
    done = [choice for _, choice, _ in points if choice is not None]
    labels = [max(len(text) for text in (title, *(row[i] for row, _, _ in points))) for i, title in enumerate(titles)]
    numbers = [max(len(title) - LONGEST - 1, *(len(show(c)) for c in done), 0) for title, _, show in panels]
    mark = max(len(mark) for _, _, mark in points)
    free = width - sum(labels) - COLUMN_GAP * len(labels) - mark
    shown = next(n for n in range(len(panels), 0, -1) if n == 1 or _bar_width(free, numbers[:n]) >= SHORTEST)
    bar_width = max(SHORTEST, min(LONGEST, _bar_width(free, numbers[:shown])))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, COLUMN_GAP, 0, 0))
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for (title, _, _), colour in zip(panels[:shown], COLOURS, strict=False):
        table.add_column(title, style=colour, no_wrap=True)
    table.add_column("", no_wrap=True)
    most = [max((value(c) or 0.0 for c in done), default=0.0) for _, value, _ in panels[:shown]]
    for names, choice, point_mark in points:
        cells = ["-"] + [""] * (shown - 1)
        if choice is not None:
            shares = [(value(choice) or 0.0) / top if top else 0.0 for (_, value, _), top in zip(panels, most, strict=False)]
            cells = [
                f"{bars.plain(share, bar_width)} {show(choice)}" for share, (_, _, show) in zip(shares, panels, strict=False)
            ]
        table.add_row(*map(Text, names), *cells, point_mark)
    return table


def _bar_width(free: int, numbers: Sequence[int]) -> int:
    """Return the length of bars where `free` characters hold all bars, their numbers and the gaps."""
    return free // len(numbers) - max(numbers) - 1 - COLUMN_GAP
