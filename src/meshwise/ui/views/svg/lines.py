"""A figure over the steps of a run as an SVG picture: one line, and a dashed one for its prediction."""

import math
from collections.abc import Sequence
from html import escape

from meshwise.ui.views.svg.drawing import COLOURS, GRID, INK, document

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 34, 30
TICKS = 4


def lines(title: str, values: Sequence[float], predicted: float | None = None) -> str:
    """Return the picture of a figure by step; `predicted` is drawn as a level. Values that are not finite are left out."""
    known = [(i, value) for i, value in enumerate(values) if math.isfinite(value)]
    levels = [value for _, value in known] + ([predicted] if predicted else [])
    low, high = (min(levels), max(levels)) if levels else (0.0, 1.0)
    room = (high - low) or abs(high) or 1.0
    low, high = (low - 0.06 * room if low < 0 else max(0.0, low - 0.06 * room)), high + 0.06 * room
    last = max(1, len(values) - 1)

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    drawn = [f'<text x="{LEFT}" y="20" font-weight="600">{escape(title)}</text>']
    for i in range(TICKS + 1):
        value = low + (high - low) * i / TICKS
        drawn.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end" font-size="11">{value:.4g}</text>')
    if predicted:
        drawn.append(
            f'<path d="M{LEFT} {y(predicted):.1f}H{WIDTH - RIGHT}" stroke="{COLOURS[1]}" stroke-dasharray="6 4" stroke-width="1.5"/>'
        )
        drawn.append(
            f'<text x="{WIDTH - RIGHT}" y="{y(predicted) - 5:.1f}" text-anchor="end" font-size="11" fill="{COLOURS[1]}">predicted</text>'
        )
    path = "L".join(f"{x(i):.1f} {y(value):.1f}" for i, value in known)
    drawn.append(f'<path d="M{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.8"/>' if known else "")
    drawn.append(f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="{INK}"/>')
    drawn.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end" font-size="11">step {len(values)}</text>')
    return document(WIDTH, HEIGHT, drawn)
