"""One question asked many times over: 'nodes=8..512' and what it makes of a question. Knows nothing of what the question is about."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from meshwise.errors import DoesNotFit, UserError, nearest, quoted

Asked = TypeVar("Asked")
Value = int | float | str
MOST_AXES = 2
MOST_POINTS = 256


@dataclass(frozen=True)
class Axis(Generic[Asked]):
    """Something of a question that can be varied."""

    name: str
    example: str
    """What a user might type behind the '='."""
    read: Callable[[str, Asked], Value]
    """One value from its words; UserError where it is none."""
    show: Callable[[Value, Asked], str]
    change: Callable[[Asked, Value], Asked]
    """The same question with another value."""
    ordered: bool = True
    """Whether values are numbers, so that a range means something."""
    settles: str = ""
    """What else it decides, in words: two axes that decide the same contradict each other."""
    whole: bool = True
    """Whether values are whole numbers."""
    step: float = 0.0
    """What a range adds from one value to the next where it does not say; 0 doubles."""


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
    """Every `--vary` of a command. `axes` is by name and by other names."""
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
    """The axis that an 'axis=values' names."""
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
    """Every point of the grid, the last axis fastest. Changes are made in the order of `axes`, whatever order they were given in."""
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
