"""Several figures over the same time as an SVG picture: one panel each, below each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from meshwise.ui.views.svg.drawing import COLOURS, GRID, INK, document

WIDTH, PANEL = 760, 84
LEFT, RIGHT, TOP, BOTTOM, GAP = 110, 70, 40, 30, 16
HOURS = 3600.0


@dataclass(frozen=True)
class Course:
    """A figure over time: its title, its value in each window, and how a value is printed."""

    title: str
    values: Sequence[float]
    show: Callable[[float], str]


def courses(title: str, drawn: Sequence[Course], seconds: float) -> str:
    """Return a picture with a panel for each figure; the level of each is its largest value."""
    height = TOP + len(drawn) * (PANEL + GAP) + BOTTOM
    lines = [f'<text x="14" y="22" font-weight="600" font-size="12">{escape(title)}</text>']
    for i, course in enumerate(drawn):
        lines += _panel(course, TOP + i * (PANEL + GAP), COLOURS[i % len(COLOURS)])
    hours = seconds >= HOURS
    for i in range(5):
        x = LEFT + (WIDTH - LEFT - RIGHT) * i / 4
        at = seconds * i / 4 / (HOURS if hours else 60)
        lines.append(
            f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" font-size="11">{at:.3g} {"h" if hours else "min"}</text>'
        )
    return document(WIDTH, height, lines)


def _panel(course: Course, top: float, colour: str) -> list[str]:
    """Return one figure as steps over a base line."""
    most, bottom = max(course.values, default=0.0) or 1.0, top + PANEL
    each = (WIDTH - LEFT - RIGHT) / max(1, len(course.values))
    points = [f"M{LEFT} {bottom:.1f}"]
    for i, value in enumerate(course.values):
        y = bottom - (PANEL - 8) * value / most
        points.append(f"V{y:.1f}H{LEFT + (i + 1) * each:.1f}")
    points.append(f"V{bottom:.1f}Z")
    return [
        f'<path d="M{LEFT} {top + 8:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>',
        f'<path d="{"".join(points)}" fill="{colour}" fill-opacity="0.25" stroke="{colour}" stroke-width="1.2"/>',
        f'<path d="M{LEFT} {bottom:.1f}H{WIDTH - RIGHT}" stroke="{INK}"/>',
        f'<text x="{LEFT - 8}" y="{top + PANEL / 2 + 4:.1f}" text-anchor="end" font-size="12">{escape(course.title)}</text>',
        f'<text x="{WIDTH - RIGHT + 6}" y="{top + 12:.1f}" font-size="11">{escape(course.show(most))}</text>',
    ]
