"""One question at many points: read 'nodes=8..512', make the questions of a grid, and hold their answers.

Knows nothing of training or serving: `axes.py` has the axes, `train/vary.py` and `serve/vary.py` answer the points.
"""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from meshwise.catalogue import records
from meshwise.errors import DoesNotFit, UserError, nearest, quoted
from meshwise.models.count import flat
from meshwise.plan.fields import Ask
from meshwise.plan.plan import frame

Asked = TypeVar("Asked")
Question = TypeVar("Question", bound=Ask)
Value = int | float | str
MOST_AXES = 2
MOST_POINTS = 256


@dataclass(frozen=True)
class Axis(Generic[Asked]):
    """One thing that can be varied in a question."""

    name: str
    example: str
    """Values as a user might type them after the '='."""
    read: Callable[[str, Asked], Value]
    """Read one value; UserError where it is not valid."""
    show: Callable[[Value, Asked], str]
    change: Callable[[Asked, Value], Asked]
    """The question with another value."""
    ordered: bool = True
    """Whether values are numbers, so that a range means something."""
    settles: str = ""
    """What it decides, in words: two axes that decide the same thing contradict each other."""
    whole: bool = True
    """Whether values are whole numbers."""
    step: float = 0.0
    """The default step of a range; 0 doubles."""


@dataclass(frozen=True)
class Varied(Generic[Asked]):
    """An axis with the values it takes."""

    axis: Axis[Asked]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Variant(Generic[Asked]):
    """One point: the values that make it, by axis, and the question there."""

    values: dict[str, Value]
    labels: tuple[str, ...]
    ask: Asked | None
    refusal: str = ""
    """Why there is no such question, in a few words."""


def parse(texts: Sequence[str], axes: Mapping[str, Axis[Asked]], ask: Asked) -> tuple[Varied[Asked], ...]:
    """Return every `--vary` of a command. `axes` is by name and by other names."""
    if len(texts) > MOST_AXES:
        raise UserError(f"--vary is given {len(texts)} times; a table has room for {MOST_AXES}")
    found = tuple(_one(text, axes, ask) for text in texts)
    for i, later in enumerate(found):
        for earlier in found[:i]:
            if earlier.axis is later.axis:
                raise UserError(f"--vary {later.axis.name} is given twice; give all its values in one: {later.axis.name}=a,b,c")
            if later.axis.settles and earlier.axis.settles == later.axis.settles:
                raise UserError(
                    f"--vary {earlier.axis.name} and --vary {later.axis.name} both say {later.axis.settles}; give one of them"
                )
    points = math.prod(len(one.values) for one in found)
    if points > MOST_POINTS:
        raise UserError(f"--vary makes {points:,} points; at most {MOST_POINTS} are asked in one call")
    return found


def axis_of(text: str, axes: Mapping[str, Axis[Asked]]) -> Axis[Asked]:
    """Return the axis that an 'axis=values' names."""
    name, equals, _ = text.partition("=")
    known = dict.fromkeys(axis.name for axis in axes.values())
    axis = axes.get(name.strip().lower())
    if axis is None:
        close = nearest(name.strip(), axes) or f"; axes: {', '.join(known)}"
        raise UserError(f"--vary {quoted(text)}: there is no axis {quoted(name.strip())}{close}")
    if not equals:
        raise UserError(f"--vary {quoted(text)}: expected values, such as {axis.name}={axis.example}")
    return axis


def _one(text: str, axes: Mapping[str, Axis[Asked]], ask: Asked) -> Varied[Asked]:
    axis = axis_of(text, axes)
    pieces = [piece.strip() for piece in text.partition("=")[2].split(",")]
    if not all(pieces):
        raise UserError(f"--vary {quoted(text)}: a value is missing, expected something like {axis.name}={axis.example}")
    values: list[Value] = []
    for piece in pieces:
        values += _range(piece, text, axis, ask) if ".." in piece else [axis.read(piece, ask)]
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"--vary {quoted(text)}: {axis.show(value, ask)} is there twice")
    return Varied(axis, tuple(values))


def _range(piece: str, text: str, axis: Axis[Asked], ask: Asked) -> list[Value]:
    """'8..512' by doubling or the axis's own step, '8..64:8' by steps of 8, '8..512:x4' by factors of 4; both ends are in it."""
    ends, colon, step = piece.partition(":")
    least, _, most = ends.partition("..")
    if not axis.ordered:
        raise UserError(f"--vary {quoted(text)}: {axis.name} has no ranges; list its values: {axis.name}={axis.example}")
    if not least.strip() or not most.strip():
        raise UserError(f"--vary {quoted(text)}: a range has two ends, such as {axis.name}={axis.example}")
    low, high = (float(axis.read(end.strip(), ask)) for end in (least, most))
    if low > high:
        raise UserError(f"--vary {quoted(text)}: an empty range, {least.strip()} is more than {most.strip()}")
    factor, addend = (1.0, axis.step) if axis.step else (2.0, 0.0)
    if colon and step.strip().lower().startswith("x"):
        factor = _factor(step.strip()[1:], text)
    elif colon:
        factor, addend = 1.0, float(axis.read(step.strip(), ask))
    found = [low]
    while (following := found[-1] * factor + addend) < high * (1 - 1e-9):
        found.append(float(round(following)) if axis.whole else following)
        if len(found) > MOST_POINTS or found[-1] == found[-2]:
            raise UserError(f"--vary {quoted(text)}: too fine a step, it makes more than {MOST_POINTS} points")
    found += [high] if high > low else []
    return [int(value) if axis.whole else value for value in found]


def _factor(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < math.inf:
        raise UserError(f"--vary {quoted(whole)}: {quoted('x' + text)} is no factor above 1, such as x2 or x1.5")
    return value


def variants(ask: Asked, varied: Sequence[Varied[Asked]], axes: Mapping[str, Axis[Asked]]) -> list[Variant[Asked]]:
    """Return every point of the grid, the last axis fastest. Changes are made in the order of `axes`, whatever order they were given in."""
    order = list(dict.fromkeys(axis.name for axis in axes.values()))
    found: list[Variant[Asked]] = []
    for values in product(*(one.values for one in varied)):
        pairs = sorted(zip(varied, values, strict=True), key=lambda pair: order.index(pair[0].axis.name))
        labels = tuple(one.axis.show(value, ask) for one, value in zip(varied, values, strict=True))
        named = {one.axis.name: value for one, value in zip(varied, values, strict=True)}
        here = ask
        try:
            for one, value in pairs:
                here = one.axis.change(here, value)
            found.append(Variant(named, labels, here))
        except DoesNotFit as error:
            found.append(Variant(named, labels, None, str(error)))
    return found


def first_values(texts: Sequence[str], axes: Mapping[str, Axis[Any]]) -> dict[str, str]:
    """By axis, the first value that `--vary` gives it: the cluster, batch or cache type to start from where none is given."""
    return {axis_of(text, axes).name: text.partition("=")[2].split(",")[0].partition("..")[0].strip() for text in texts}


# The answers.


class Point(Protocol):
    """The answer at one point."""

    @property
    def values(self) -> dict[str, Value]: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def choice(self) -> Any: ...

    @property
    def refusal(self) -> str: ...

    def row(self) -> dict[str, Any]:
        """Return the point as plain data, its layout under 'choice'."""
        ...


Answered = TypeVar("Answered", bound=Point)


class Points(Generic[Question, Answered]):
    """The answers at every point of a `--vary`, in the order of its values."""

    format: ClassVar[int] = 1
    kind: ClassVar[str] = ""
    hidden: ClassVar[tuple[str, ...]] = ()
    """Keys of a layout that a flat row leaves out."""
    ask: Question
    vary: tuple[str, ...]
    axes: tuple[str, ...]
    """Names of the axes that are varied."""
    points: tuple[Answered, ...]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Answered]:
        return iter(self.points)

    @property
    def command(self) -> str:
        return " ".join([self.ask.command(), *(f"--vary {shlex.quote(text)}" for text in self.vary)])

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per point, with the columns of `--csv`."""
        return [flat(self._flat(point.row())) for point in self.points]

    def _flat(self, row: dict[str, Any]) -> dict[str, Any]:
        inner: dict[str, Any] = row.pop("choice") or {}
        return row | {key: value for key, value in inner.items() if key not in self.hidden}

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        kind = {"kind": self.kind} if self.kind else {}
        points = [point.row() for point in self.points]
        return {"format": self.format, **kind, "ask": records.plain(self.ask), "vary": list(self.vary), "points": points}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} points: {self.command}>"


def refuse_all(points: Sequence[Point]) -> None:
    """DoesNotFit where no point has an answer, with the first reasons."""
    if not any(point.choice for point in points):
        why = list(dict.fromkeys(f"{' '.join(point.labels)}: {point.refusal}" for point in points))
        raise DoesNotFit(f"none of {len(points)} points works; " + ", ".join(why[:3]) + (", ..." if len(why) > 3 else ""))
