"""Colours and the outer frame that all SVG pictures share."""

from collections.abc import Iterable

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#000000", "#7a3db8", "#b00020", "#4d7c0f")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, and a few more."""
INK, GRID = "#1a1a1a", "#dddddd"


def document(width: float, height: float, lines: Iterable[str]) -> str:
    """Return a whole SVG file with a white background."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
            f'font-size="13" fill="{INK}">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *lines,
            "</svg>",
            "",
        ]
    )
