"""Stacked bars: how a step's time or a device's memory divides into parts. With letters and colours."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from meshwise.cost.parts import Part

BLOCKS_BY_EIGHTH = " ▏▎▍▌▋▊▉"
MIN_LEGEND_SHARE = 0.02  # shares below this are left out of a legend
LONGEST, SHORTEST = 40, 10  # characters of a bar on a wide and on a narrow terminal


def room(width: int, *words: str) -> int:
    """Return the length of bars at a width, with the longest of `words` on the same line."""
    return max(SHORTEST, min(LONGEST, width - max(map(len, words), default=0)))


def cells(parts: Sequence[Part], values: Mapping[str, float], full: float, width: int) -> list[tuple[Part, int]]:
    """Return how many of `width` characters each part fills."""
    exact = [width * values.get(part.name, 0.0) / full for part in parts]
    scale = min(1.0, width / total) if (total := sum(exact)) else 1.0
    exact = [cell * scale for cell in exact]
    filled = [int(cell) for cell in exact]
    left = round(sum(exact)) - sum(filled)
    for i in sorted(range(len(parts)), key=lambda i: (filled[i] - exact[i], -exact[i]))[:left]:
        filled[i] += 1
    return list(zip(parts, filled, strict=True))


def bar(parts: Sequence[Part], values: Mapping[str, float], full: float, width: int) -> Text:
    """Return a bar with a letter per part, readable without colours too, and dots up to `full`."""
    text = Text()
    for part, number in cells(parts, values, full, width):
        text.append(part.letter * number, style=part.colour)
    return text.append("." * (width - len(text)), style="dim")


def legend(
    parts: Sequence[Part], values: Mapping[str, float], full: float, width: int, indent: int = 0, bar_width: int = LONGEST
) -> Text:
    """Return 'M matrix products 49%  R recomputing activations 22%', the largest part first: every part that the bar shows or that exceeds
    MIN_LEGEND_SHARE. Lines break between parts."""
    total = sum(values.values())
    drawn = {part.name for part, number in cells(parts, values, full, bar_width) if number}
    shown = [part for part in parts if part.name in drawn or values.get(part.name, 0.0) > MIN_LEGEND_SHARE * total]
    text, used = Text(" " * indent), indent
    for part in sorted(shown, key=lambda part: -values.get(part.name, 0.0)):
        words = f" {part.words} {100 * values[part.name] / total:.0f}%"
        if used > indent and used + 3 + len(words) > width:
            text.append("\n" + " " * indent)
            used = indent
        gap = "  " if used > indent else ""
        text.append(gap).append(part.letter, style=part.colour).append(words)
        used += len(gap) + 1 + len(words)
    return text


def letters(parts: Sequence[Part], several: Sequence[Mapping[str, float]], width: int) -> Text:
    """Return the letters of the parts that matter in any of several bars; lines break between parts."""
    lines = [""]
    for part in parts:
        if any(values.get(part.name, 0.0) > 0.002 * sum(values.values()) for values in several):
            words = f"{part.letter} {part.words}"
            fits = len(lines[-1]) + 2 + len(words) <= width
            lines[-1:] = [f"{lines[-1]}  {words}" if lines[-1] else words] if fits or not lines[-1] else [lines[-1], words]
    return Text("\n".join(lines), style="dim")


def plain(share: float, width: int) -> str:
    """Return a bar of one colour, `share` of `width` characters long, to the eighth of a character."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + (BLOCKS_BY_EIGHTH[eighths % 8] if eighths % 8 else "")
