"""Two layouts side by side: which rows a query selects, and how they differ, part by part and in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwise import units
from meshwise.plan.serve.choice import ServeChoice
from meshwise.plan.serve.words import tokens
from meshwise.plan.train.choice import Choice, differences
from meshwise.plan.train.explain import comparison
from meshwise.ui.web import asking, drawing
from meshwise.ui.web.asking import Pairs
from meshwise.units import GIB


@dataclass(frozen=True)
class Line:
    """One part of both layouts, and the difference."""

    piece: drawing.Piece | None  # the part's colour; None for a sum
    words: str
    mine: str
    other: str
    difference: str
    gained: float  # percent of the largest difference: positive where the other layout has more


@dataclass(frozen=True)
class Comparison:
    """A and B."""

    names: tuple[str, str]
    sentences: list[str]
    times: tuple[drawing.Bar, drawing.Bar]
    memories: tuple[drawing.Bar, drawing.Bar] | None
    lines: list[Line]
    unit: str


def selected(query: Pairs, rows: int) -> tuple[int, int] | None:
    """Return the numbers of the rows A and B, from 0; None unless both are given."""
    a, b = (asking.number(query, name, 1, rows) for name in ("a", "b"))
    return (a - 1, b - 1) if a and b else None


def toggled(query: Pairs, row: int) -> tuple[str, str]:
    """Return the mark of a row (A, B or '') and the query string of a click on it: the first click marks A, the second B; a click on a
    marked row takes its mark away, and a third row replaces B."""
    number = str(row + 1)
    a, b = asking.one(query, "a"), asking.one(query, "b")
    if number == a:
        return "A", asking.changed(query, a=b, b="")
    if number == b:
        return "B", asking.changed(query, b="")
    return "", asking.changed(query, b=number) if a else asking.changed(query, a=number)


def _seconds(value: float) -> str:
    return units.show(value, "seconds", digits=3)


def compare_trained(mine: Choice, other: Choice) -> Comparison:
    """Compare two layouts of a training plan."""
    slowest = max(mine.step, other.step)
    times = tuple(drawing.bar("tt", c.time, slowest, _seconds, c.name, f"{c.step:.4g} s") for c in (mine, other))
    memories = tuple(
        drawing.bar("tm", c.memory, c.capacity, _gib, c.name, f"{c.peak / GIB:.1f} of {c.capacity / GIB:.0f} GiB")
        for c in (mine, other)
    )
    sentences = [line.strip() for line in comparison(mine, other, tuple(differences(mine, other)))]
    return Comparison(
        (mine.name, other.name), sentences, (times[0], times[1]), (memories[0], memories[1]),
        _lines("tt", mine.time, other.time), "s",
    )  # fmt: skip


def compare_served(mine: ServeChoice, other: ServeChoice) -> Comparison:
    """Compare two layouts of a serving plan by their decode step."""
    slowest = max(sum(c.time.values()) for c in (mine, other))
    times = tuple(drawing.bar("st", c.time, slowest, _seconds, c.name) for c in (mine, other))
    percent = 100 * (other.per_user / mine.per_user - 1)
    sentences = [
        f"{mine.name} gives {tokens(mine.per_user)} tokens/s per request, {other.name} {tokens(other.per_user)} ({percent:+.1f}%).",
        f"Time to first token: {_seconds(mine.ttft.p50)} against {_seconds(other.ttft.p50)}; "
        f"free on the fullest device: {_gib(mine.spare)} against {_gib(other.spare)}; "
        f"most concurrent requests: {mine.most_users:,} against {other.most_users:,}.",
    ]
    return Comparison((mine.name, other.name), sentences, (times[0], times[1]), None, _lines("st", mine.time, other.time), "s")


def _gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB"


def _lines(scale: str, mine: Mapping[str, float], other: Mapping[str, float]) -> list[Line]:
    """Return one line per part that either layout has, the largest difference first, and the sum."""
    pieces = {
        piece.part.name: piece for values in (mine, other) for piece in drawing.bar(scale, values, 1.0, _seconds, "").pieces
    }
    gains = {name: other.get(name, 0.0) - mine.get(name, 0.0) for name in pieces}
    most = max((abs(gain) for gain in gains.values()), default=0.0) or 1.0
    lines = [
        Line(piece, piece.part.words, *_texts(mine.get(name, 0.0), other.get(name, 0.0)), round(100 * gains[name] / most, 2))
        for name, piece in sorted(pieces.items(), key=lambda pair: -abs(gains[pair[0]]))
    ]
    return [*lines, Line(None, "together", *_texts(sum(mine.values()), sum(other.values())), 0.0)]


def _texts(mine: float, other: float) -> tuple[str, str, str]:
    if abs(other - mine) < 1e-6 * max(mine, other):
        return _seconds(mine), _seconds(other), "0"
    return _seconds(mine), _seconds(other), f"{'+' if other > mine else '−'}{_seconds(abs(other - mine))}"
