"""The Pareto front of a served model: a table, a plot on a terminal, and an SVG."""

import math
from collections.abc import Callable, Sequence
from html import escape

from rich.console import RenderableType
from rich.text import Text

from meshwise import units
from meshwise.plan.serve.front import Front, FrontPoint
from meshwise.plan.serve.words import length_words, target_words, tokens
from meshwise.ui.views.serve import dollars
from meshwise.ui.views.svg.drawing import COLOURS, GRID, document
from meshwise.ui.views.tables import Column, Table, heading, paragraphs, wrapped

ROWS, WIDEST = 14, 72
SIZE, LEFT, RIGHT, TOP, BOTTOM = (760.0, 440.0), 70.0, 110.0, 60.0, 60.0
BEATEN_COLOUR = "#bbbbbb"
LABEL = (130.0, 14.0)  # width and height of a label, in pixels


def front_view(front: Front, width: int) -> RenderableType:
    """Return the table of the front and its plot."""
    ask = front.ask
    title = f"{ask.model} on {ask.on} with {front.engine}: {length_words(ask)}"
    title += f"; {target_words(ask)}" if target_words(ask) else ""
    columns: list[Column[FrontPoint]] = [
        Column("layout", lambda p: p.name, text=True),
        Column("users", lambda p: f"{p.users:,}"),
        Column("tok/s each", lambda p: tokens(p.per_user)),
        Column("tok/s per device", lambda p: tokens(p.per_device), short_title="per device"),
        Column("TTFT", lambda p: units.show(p.ttft, "seconds", digits=3), rank=2),
        Column(
            "step goes to", lambda p: f"{p.bound} {100 * p.share:.0f}%", text=True, rank=3,
            short=lambda p: f"{p.part} {100 * p.share:.0f}%",
        ),
    ]  # fmt: skip
    if any(point.dollars_per_million_out is not None for point in front.points):
        columns.append(Column("$/1M out", lambda p: dollars(p.dollars_per_million_out), rank=1))
        columns.append(Column("$/1M in", lambda p: dollars(p.dollars_per_million_in), rank=4))
    lines = [Text(line) for line in plot(front, min(width, WIDEST))]
    words = "More users share one read of the weights: a device makes more tokens/s, a user gets fewer, until products or the cache bind."
    return paragraphs(heading([title], width), [Table(columns, front.points).fitted(width)], lines, [wrapped(words, width)])


def plot(front: Front, width: int) -> list[str]:
    """Return a plot: 'o' is on the front, '.' is beaten by a point of it. Both axes are linear from zero."""
    every = [*front.dominated, *front.points]
    across, up = max(point.per_user for point in every), max(point.per_device for point in every)
    cells = [[" "] * (width - 10) for _ in range(ROWS)]
    for mark, points in ((".", front.dominated), ("o", front.points)):
        for point in points:
            column = min(width - 11, int(point.per_user / across * (width - 11)))
            row = ROWS - 1 - min(ROWS - 1, int(point.per_device / up * (ROWS - 1)))
            cells[row][column] = mark
    lines = [f"{tokens(up) if not i else '':>8} |{''.join(row)}".rstrip() for i, row in enumerate(cells)]
    label = f"tokens/s per user, up to {tokens(across)}"
    return ["tokens/s per device", *lines, f"{'0':>8} +{'-' * (width - 10)}", f"{label:>{width}}"]


def svg(front: Front) -> str:
    """Return the front as a drawing: a line through its points, with the layout and users of each, and the points that it beats."""
    every = [*front.dominated, *front.points]
    across, up = (ticks(max(getattr(point, name) for point in every)) for name in ("per_user", "per_device"))
    width, height = SIZE

    def place(each: float, device: float) -> tuple[float, float]:
        return LEFT + each / across[-1] * (width - LEFT - RIGHT), height - BOTTOM - device / up[-1] * (height - TOP - BOTTOM)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(point.per_user, point.per_device) for point in front.points))
    heading_words = f"{front.ask.model} on {front.ask.on} with {front.engine}: {length_words(front.ask)}"
    return document(width, height, [
        f'<text x="{LEFT}" y="24" font-size="15">{escape(heading_words)}</text>',
        *(_tick(place(value, 0.0), (place(value, up[-1])), tokens(value), "across") for value in across),
        *(_tick(place(0.0, value), (place(across[-1], value)), tokens(value), "up") for value in up),
        f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">tokens/s of each user</text>',
        f'<text x="{LEFT}" y="{TOP - 10}">tokens/s of a device</text>',
        *(_dot(place(point.per_user, point.per_device), point, 2.5, BEATEN_COLOUR) for point in front.dominated),
        f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.5"/>',
        *(_dot(place(point.per_user, point.per_device), point, 4.5, COLOURS[0]) for point in front.points),
        *(_label(place(point.per_user, point.per_device), point) for point in _apart(front.points, place)),
    ])  # fmt: skip


def ticks(most: float, about: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `most`, at about as many steps: 0, 200, 400, ..."""
    raw = most / about if most > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def _tick(start: tuple[float, float], end: tuple[float, float], text: str, axis: str) -> str:
    (x, y), (to_x, to_y) = start, end
    line = f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{GRID}"/>'
    left, down, anchor = (0, 18, "middle") if axis == "across" else (8, 4, "end")
    at = f'x="{x - left:.1f}" y="{y + down:.1f}" text-anchor="{anchor}"'
    return f"{line}<text {at}>{text}</text>"


def _dot(at: tuple[float, float], point: FrontPoint, size: float, colour: str) -> str:
    rates = f"{tokens(point.per_user)} each, {tokens(point.per_device)} per device"
    words = f"{point.name}, {point.users} users: {rates}; {point.bound}"
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{size}" fill="{colour}"><title>{escape(words)}</title></circle>'


def _label(at: tuple[float, float], point: FrontPoint) -> str:
    words = f"{point.name} · {point.users:,}"
    return f'<text x="{at[0] + 8:.1f}" y="{at[1] - 6:.1f}" font-size="11">{escape(words)}</text>'


def _apart(points: Sequence[FrontPoint], place: Callable[[float, float], tuple[float, float]]) -> list[FrontPoint]:
    """Return the points whose labels do not overlap."""
    kept: list[tuple[FrontPoint, float, float]] = []
    for point in points:
        x, y = place(point.per_user, point.per_device)
        if all(abs(y - other_y) > LABEL[1] or abs(x - other_x) > LABEL[0] for _, other_x, other_y in kept):
            kept.append((point, x, y))
    return [point for point, _, _ in kept]
