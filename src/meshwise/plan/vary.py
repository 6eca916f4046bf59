"""One question at many points: parse 'nodes=8..512', build the questions of a grid, and hold their answers."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Generic, TypeVar

from meshwise.catalogue import records
from meshwise.errors import DoesNotFit, UserError, nearest, quoted
from meshwise.models.count import flat
from meshwise.output import Drawn
from meshwise.plan.fields import Ask

Asked = TypeVar("Asked")
Chosen = TypeVar("Chosen")
Question = TypeVar("Question", bound=Ask)
Value = int | float | str
MAX_AXES = 2
MAX_POINTS = 256


@dataclass(frozen=True)
class Axis(Generic[Asked]):
    """A part of a question that can be varied."""

    name: str
    example: str  # values as a user might type them after the '='
    read: Callable[[str, Asked], Value]  # parse one value; UserError where it is invalid
    show: Callable[[Value, Asked], str]
    change: Callable[[Asked, Value], Asked]  # return the question with another value
    ordered: bool = True  # whether values are numbers, which a range can list
    settles: str = ""  # quantity that it sets, in words. Two axes of one quantity are refused.
    whole: bool = True  # whether values are whole numbers
    step: float = 0.0  # the default step of a range; 0 doubles


@dataclass(frozen=True)
class Varied(Generic[Asked]):
    """An axis with the values it takes."""

    axis: Axis[Asked]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Variant(Generic[Asked]):
    """One point of the grid: its values by axis, their labels, and the question there."""

    values: dict[str, Value]
    labels: tuple[str, ...]
    ask: Asked | None
    refusal: str = ""  # why the question cannot be asked at this point, in a few words


def parse(texts: Sequence[str], axes: Mapping[str, Axis[Asked]], ask: Asked) -> tuple[Varied[Asked], ...]:
    """Parse every `--vary` of a command. `axes` has each axis under its name and its aliases."""
    if len(texts) > MAX_AXES:
        raise UserError(f"--vary is given {len(texts)} times; a table has at most {MAX_AXES} axes")
    varied = tuple(_parse_axis(text, axes, ask) for text in texts)
    for i, later in enumerate(varied):
        for earlier in varied[:i]:
            if earlier.axis is later.axis:
                raise UserError(f"--vary {later.axis.name} is given twice; give all its values in one: {later.axis.name}=a,b,c")
            if later.axis.settles and earlier.axis.settles == later.axis.settles:
                raise UserError(
                    f"--vary {earlier.axis.name} and --vary {later.axis.name} both set {later.axis.settles}; give only one"
                )
    points = math.prod(len(along.values) for along in varied)
    if points > MAX_POINTS:
        raise UserError(f"--vary makes {points:,} points; at most {MAX_POINTS} are allowed")
    return varied


def axis_of(text: str, axes: Mapping[str, Axis[Asked]]) -> Axis[Asked]:
    """Return the axis that 'axis=values' names. UserError where there is none."""
    name, equals, _ = text.partition("=")
    known = dict.fromkeys(axis.name for axis in axes.values())
    axis = axes.get(name.strip().lower())
    if axis is None:
        close = nearest(name.strip(), axes) or f"; axes: {', '.join(known)}"
        raise UserError(f"--vary {quoted(text)}: there is no axis {quoted(name.strip())}{close}")
    if not equals:
        raise UserError(f"--vary {quoted(text)}: expected values, such as {axis.name}={axis.example}")
    return axis


def _parse_axis(text: str, axes: Mapping[str, Axis[Asked]], ask: Asked) -> Varied[Asked]:
    axis = axis_of(text, axes)
    pieces = [piece.strip() for piece in text.partition("=")[2].split(",")]
    if not all(pieces):
        raise UserError(f"--vary {quoted(text)}: a value is missing, expected something like {axis.name}={axis.example}")
    values: list[Value] = []
    for piece in pieces:
        values += _range(piece, text, axis, ask) if ".." in piece else [axis.read(piece, ask)]
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"--vary {quoted(text)}: {axis.show(value, ask)} is given twice")
    return Varied(axis, tuple(values))


def _range(piece: str, text: str, axis: Axis[Asked], ask: Asked) -> list[Value]:
    """Parse '8..512' by doubling or the axis's own step, '8..64:8' by steps of 8, '8..512:x4' by factors of 4; both ends are included."""
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
    values = [low]
    while (following := values[-1] * factor + addend) < high * (1 - 1e-9):
        values.append(float(round(following)) if axis.whole else following)
        if len(values) > MAX_POINTS or values[-1] == values[-2]:
            raise UserError(f"--vary {quoted(text)}: the step is too small, it makes more than {MAX_POINTS} points")
    values += [high] if high > low else []
    return [int(value) if axis.whole else value for value in values]


def _factor(text: str, option: str) -> float:
    """Parse the factor of a range, such as 1.5; `option` is the whole text for the error."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < math.inf:
        raise UserError(f"--vary {quoted(option)}: {quoted('x' + text)} is not a factor above 1, such as x2 or x1.5")
    return value


def variants(ask: Asked, varied: Sequence[Varied[Asked]], axes: Mapping[str, Axis[Asked]]) -> list[Variant[Asked]]:
    """Return every point of the grid, the last axis varying fastest. Values are applied in the order of `axes`, not in that of `varied`."""
    order = list(dict.fromkeys(axis.name for axis in axes.values()))
    points: list[Variant[Asked]] = []
    for values in product(*(along.values for along in varied)):
        pairs = [(along.axis, value) for along, value in zip(varied, values, strict=True)]
        labels = tuple(axis.show(value, ask) for axis, value in pairs)
        by_name = {axis.name: value for axis, value in pairs}
        changed = ask
        try:
            for axis, value in sorted(pairs, key=lambda pair: order.index(pair[0].name)):
                changed = axis.change(changed, value)
            points.append(Variant(by_name, labels, changed))
        except DoesNotFit as error:
            points.append(Variant(by_name, labels, None, str(error)))
    return points


def first_values(texts: Sequence[str], axes: Mapping[str, Axis[Any]]) -> dict[str, str]:
    """Return the first value of each varied axis: the cluster, batch or cache type to start from where the question has none."""
    return {axis_of(text, axes).name: text.partition("=")[2].split(",")[0].partition("..")[0].strip() for text in texts}


# The answers.


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[Asked, Chosen]):
    """The best layout at one point, or why there is none."""

    values: dict[str, Value]
    labels: tuple[str, ...]
    ask: Asked | None
    refusal: str = ""  # why there is no layout, in a few words
    choice: Chosen | None = None

    def row(self) -> dict[str, Any]:
        """Return the point as plain data, with its layout under 'choice'."""
        row = {**self.values, "cluster": getattr(self.ask, "on", None), "fits": self.choice is not None, "refusal": self.refusal}
        return row | self.more() | {"choice": records.plain(self.choice) if self.choice else None}

    def more(self) -> dict[str, Any]:
        """Return what else a row tells."""
        return {}


Answered = TypeVar("Answered", bound=Answer[Any, Any])


@dataclass(frozen=True, kw_only=True, repr=False)
class Points(Drawn, Generic[Question, Answered]):
    """The answers at every point of a grid, in the order of its values."""

    format: ClassVar[int] = 1
    kind: ClassVar[str] = ""
    hidden: ClassVar[tuple[str, ...]] = ()  # keys of a layout that a flat row leaves out
    ask: Question
    vary: tuple[str, ...]
    axes: tuple[str, ...]  # names of the varied axes
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
        return [flat(self._flat(point.row())) | self._name(point) for point in self.points]

    def _flat(self, row: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = row.pop("choice") or {}
        return row | {key: value for key, value in choice.items() if key not in self.hidden}

    @staticmethod
    def _name(point: Answered) -> dict[str, str]:
        """Return the name of the layout at a point, '' where there is none."""
        return {"name": point.choice.name if point.choice else ""}

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return records.frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        kind = {"kind": self.kind} if self.kind else {}
        points = [point.row() for point in self.points]
        return {"format": self.format, **kind, "ask": records.plain(self.ask), "vary": list(self.vary), "points": points}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} points: {self.command}>"


def check_any_fits(points: Sequence[Answer[Any, Any]]) -> None:
    """Raise DoesNotFit, with the first reasons, where no point has an answer."""
    if not any(point.choice for point in points):
        reasons = list(dict.fromkeys(f"{' '.join(point.labels)}: {point.refusal}" for point in points))
        raise DoesNotFit(f"none of {len(points)} points fits; " + ", ".join(reasons[:3]) + (", ..." if len(reasons) > 3 else ""))
