"""The Pareto front of a served model: a table, a plot on a terminal, and an SVG."""

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.plan.serve.front import Front, FrontPoint
from meshwise.plan.serve.words import length_words, tokens
from meshwise.ui.views.svg.drawing import document
from meshwise.ui.views.tables import Column, fitted, heading, wrapped

ROWS, WIDEST = 14, 72
SIZE, LEFT, TOP = (720.0, 420.0), 80.0, 50.0


def front_view(front: Front, width: int) -> RenderableType:
    """Return the table of the front and its plot."""
    ask = front.ask
    title = f"{ask.model} on {ask.on} with {front.engine}: {length_words(ask)}"
    columns: list[Column[FrontPoint]] = [
        Column("layout", lambda p: p.name, text=True),
        Column("users", lambda p: f"{p.users:,}"),
        Column("tok/s each", lambda p: tokens(p.per_user)),
        Column("tok/s per device", lambda p: tokens(p.per_device), short_title="per device"),
        Column("TTFT", lambda p: units.show(p.ttft, "seconds", digits=3), rank=2),
        Column("step goes to", lambda p: f"{p.bound} {100 * p.share:.0f}%", text=True, rank=3),
    ]
    if any(point.dollars_per_million is not None for point in front.points):
        columns.append(Column("$/1M out", lambda p: f"{p.dollars_per_million or 0.0:,.2f}", rank=1))
    lines = [Text(line) for line in plot(front, min(width, WIDEST))]
    words = "More users share one read of the weights: a device makes more tokens/s, a user gets fewer, until products or the cache bind."
    return Group(
        *heading([title], width), Text(), fitted(columns, front.points, width), Text(), *lines, Text(), wrapped(words, width)
    )


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
    """Return the front as a drawing: a line through its points, and the points that it beats."""
    width, height = SIZE
    every = [*front.dominated, *front.points]
    across, up = max(point.per_user for point in every), max(point.per_device for point in every)

    def place(point: FrontPoint) -> tuple[float, float]:
        x = LEFT + point.per_user / across * (width - LEFT - 30)
        return x, height - 50 - point.per_device / up * (height - TOP - 50)

    def title(point: FrontPoint) -> str:
        words = f"{point.name}, {point.users} users: {tokens(point.per_user)} each, {tokens(point.per_device)} per device"
        return f"<title>{words.replace('&', '&amp;').replace('<', '&lt;')}</title>"

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, front.points))
    dots = [
        f'<circle cx="{place(point)[0]:.1f}" cy="{place(point)[1]:.1f}" r="{size}" fill="{colour}">{title(point)}</circle>'
        for size, colour, points in ((2.5, "#bbbbbb", front.dominated), (4.5, "#1f77b4", front.points))
        for point in points
    ]
    return document(
        width,
        height,
        [
            f'<text x="{LEFT}" y="24" font-size="15">{front.ask.model} on {front.ask.on}, {front.engine}</text>',
            f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>',
            *dots,
            f'<line x1="{LEFT}" y1="{height - 50}" x2="{width - 30}" y2="{height - 50}" stroke="#333"/>',
            f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{height - 50}" stroke="#333"/>',
            f'<text x="{width / 2}" y="{height - 15}" font-size="12" text-anchor="middle">tokens/s per user, up to {tokens(across)}</text>',
            f'<text x="10" y="{TOP - 8}" font-size="12">tokens/s per device, up to {tokens(up)}</text>',
        ],
    )
