"""A sweep: short runs of several layouts or batches, each beside its prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from meshwise import units
from meshwise.calibrate.score import spearman
from meshwise.errors import UserError, nearest, quoted
from meshwise.plan.train.choice import Choice
from meshwise.run.train.ask import AXES as LAYOUT_AXES
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import BrokenRules, Launch, prepare
from meshwise.run.train.report.advice import GENERIC_CHIP
from meshwise.runs.run import Run
from meshwise.runs.table import run_of
from meshwise.workers.trainer.contract.settings import RECOMPUTE, SCHEDULES

WORDS = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "compile": ("no", "yes")}
AXES = (*LAYOUT_AXES, "compile", "batch", "seq")
MAX_RUNS = 64  # most runs in one sweep: each starts processes and takes many seconds
Value = int | str


@dataclass(frozen=True)
class Point:
    """One combination of values with the run to start, or with the rule that it breaks."""

    values: dict[str, Value]
    ready: Launch | None
    refusal: str = ""

    @property
    def name(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.values.items())

    @property
    def folder(self) -> str:
        return "-".join(f"{axis}{value}" for axis, value in self.values.items())


@dataclass(frozen=True)
class Outcome:
    """The result of a point that was run."""

    point: Point
    row: dict[str, Any]
    predicted: Choice | None

    @cached_property
    def run(self) -> Run:
        return run_of(self.row)

    @property
    def devices(self) -> int:
        return self.run.whole("devices")

    @property
    def generic(self) -> bool:
        """Whether the prediction is for the generic CPU."""
        return self.point.ready is not None and self.point.ready.question().chip.key == GENERIC_CHIP

    @property
    def ran(self) -> bool:
        return self.row["outcome"] == "ok"

    @property
    def rate(self) -> float:
        """Tokens per second over all devices; 0 if it did not run."""
        return self.run.number("tokens_per_second_per_device") * self.devices if self.ran else 0.0

    @property
    def predicted_rate(self) -> float:
        """Predicted tokens per second; 0 without a prediction."""
        return self.predicted.tokens_per_second if self.predicted else 0.0

    @property
    def fits(self) -> bool:
        """Whether it fits into memory by the prediction."""
        return self.predicted is not None and self.predicted.peak <= self.predicted.capacity


def parse(text: str) -> dict[str, tuple[Value, ...]]:
    """Read 'mbs=1,2,4 tp=1,2': values by axis."""
    axes: dict[str, tuple[Value, ...]] = {}
    for piece in text.split():
        axis, equals, values = piece.partition("=")
        axis = axis.replace("-", "_")
        if axis not in AXES or not equals or not values:
            raise UserError(
                f"--sweep: {quoted(piece)} is not axis=values such as mbs=1,2,4{nearest(axis, AXES) or '; axes: ' + ', '.join(AXES)}"
            )
        if axis in axes:
            raise UserError(f"--sweep: {axis} is given twice; list all its values once: {axis}=1,2")
        axes[axis] = tuple(_value(axis, word, piece) for word in values.split(","))
        if len(set(axes[axis])) < len(axes[axis]):
            raise UserError(f"--sweep: {quoted(piece)} repeats a value")
    if not axes:
        raise UserError("--sweep: expected axis=values, such as 'mbs=1,2,4 tp=1,2'")
    if (runs := int(np.prod([len(values) for values in axes.values()]))) > MAX_RUNS:
        raise UserError(f"--sweep makes {runs} runs; at most {MAX_RUNS} are allowed")
    return axes


def _value(axis: str, word: str, piece: str) -> Value:
    if axis in WORDS:
        if word not in WORDS[axis]:
            raise UserError(f"--sweep: {quoted(piece)}: {axis} is one of {', '.join(WORDS[axis])}{nearest(word, WORDS[axis])}")
        return word
    if axis == "seq":
        return units.whole_length(word)
    if not word.isdecimal() or not int(word[:9]) >= 1 or len(word) > 8:
        raise UserError(f"--sweep: {quoted(piece)}: {axis} is a whole number from 1, such as {axis}=1,2")
    return int(word)


def points(run: TrainRun, axes: dict[str, tuple[Value, ...]]) -> list[Point]:
    """Return every combination, with the rule that it breaks where it cannot run. Refuse a sweep in which nothing can run."""
    given = [axis for axis in axes if axis in run.axes or (axis in ("batch", "seq") and getattr(run, axis))]
    given += ["compile"] if "compile" in axes and run.compile is not None else []
    if given:
        raise UserError(f"--sweep varies {given[0]}: drop --{given[0].replace('_', '-')}")
    combinations = [_point(run, dict(zip(axes, values, strict=True))) for values in product(*axes.values())]
    if not any(point.ready for point in combinations):
        reasons = list(dict.fromkeys(point.refusal for point in combinations))
        raise UserError(
            f"--sweep: nothing can run: {reasons[0]}" + (f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else "")
        )
    return combinations


def _point(run: TrainRun, values: dict[str, Value]) -> Point:
    changes: dict[str, Any] = values | ({"compile": values["compile"] == "yes"} if "compile" in values else {})
    try:
        return Point(values, prepare(replace(run, **changes)))
    except BrokenRules as broken:
        return Point(values, None, "; ".join(broken.rules))
    except UserError as error:
        return Point(values, None, str(error))


def by_devices(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    """Group runs by their number of devices: the planner chooses within such a group."""
    groups: dict[int, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.devices):
        groups.setdefault(outcome.devices, []).append(outcome)
    return groups


def planned_rank(outcome: Outcome, outcomes: Sequence[Outcome]) -> int | None:
    """Return the run's position in the planner's order among runs on as many devices; None without a prediction."""
    if not outcome.predicted:
        return None
    return 1 + sum(other.predicted_rate > outcome.predicted_rate for other in outcomes if other.devices == outcome.devices)


def scale(group: Sequence[Outcome]) -> float:
    """Return the median of measured over predicted seconds on a generic CPU, a factor that does not change the order; else 1."""
    known = [(outcome.run.number("seconds"), outcome.predicted) for outcome in group if outcome.ran and outcome.generic]
    ratios = [seconds / predicted.step for seconds, predicted in known if predicted]
    return float(np.median(ratios)) if ratios else 1.0


@dataclass(frozen=True)
class Ranking:
    """How well the planner ranked several runs on as many devices."""

    devices: int
    runs: int
    correlation: float | None  # spearman's, of the runs that completed; None for too few of them
    best: Outcome | None  # the fastest; None if no run completed
    pick: Outcome  # the fastest by the prediction, of those that fit


def rankings(outcomes: Sequence[Outcome]) -> list[Ranking]:
    """Return how well the planner ranked the runs on each number of devices; without those on which it ranked one run."""
    groups = by_devices([outcome for outcome in outcomes if outcome.predicted])
    return [_ranking(devices, group) for devices, group in groups.items() if len(group) > 1]


def _ranking(devices: int, group: Sequence[Outcome]) -> Ranking:
    done = [outcome for outcome in group if outcome.ran]
    pick = max([outcome for outcome in group if outcome.fits] or group, key=lambda outcome: outcome.predicted_rate)
    predicted, measured = (np.array([getattr(one, name) for one in done]) for name in ("predicted_rate", "rate"))
    correlation = spearman(predicted, measured) if done else None
    return Ranking(devices, len(group), correlation, max(done, key=lambda outcome: outcome.rate, default=None), pick)
