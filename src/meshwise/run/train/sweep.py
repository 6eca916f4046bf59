"""A sweep: short runs of several layouts or batches, each beside its prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from meshwise import units
from meshwise.calibrate.score import FEWEST, spearman
from meshwise.errors import UserError, nearest, quoted
from meshwise.plan.train.choice import Choice
from meshwise.run.train.advice import GENERIC
from meshwise.run.train.ask import AXES as LAYOUT_AXES
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import BrokenRules, Launch, prepare
from meshwise.run.train.sections import Section, Table
from meshwise.units import GIB
from meshwise.workers.trainer.settings import RECOMPUTE, SCHEDULES

WORDS = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "compile": ("no", "yes")}
AXES = (*LAYOUT_AXES, "compile", "batch", "seq")
MOST = 64
"""Runs in one sweep, at most: each starts processes and takes many seconds."""
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

    @property
    def devices(self) -> int:
        return int(self.row["n_gpus"])

    @property
    def generic(self) -> bool:
        """Whether the prediction is for the generic CPU."""
        return self.row["gpu"] == GENERIC

    @property
    def ran(self) -> bool:
        return self.row["outcome"] == "ok"

    @property
    def rate(self) -> float:
        """Tokens per second over all devices; 0 if it did not run."""
        return float(self.row["tokens_per_sec_per_gpu"]) * self.devices if self.ran else 0.0

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
    found: dict[str, tuple[Value, ...]] = {}
    for piece in text.split():
        axis, equals, values = piece.partition("=")
        axis = axis.replace("-", "_")
        if axis not in AXES or not equals or not values:
            raise UserError(
                f"--sweep: {quoted(piece)} is not axis=values such as mbs=1,2,4{nearest(axis, AXES) or '; axes: ' + ', '.join(AXES)}"
            )
        if axis in found:
            raise UserError(f"--sweep: {axis} is given twice; list all its values once: {axis}=1,2")
        found[axis] = tuple(_value(axis, word, piece) for word in values.split(","))
        if len(set(found[axis])) < len(found[axis]):
            raise UserError(f"--sweep: {quoted(piece)} repeats a value")
    if not found:
        raise UserError("--sweep: expected axis=values, such as 'mbs=1,2,4 tp=1,2'")
    if (runs := int(np.prod([len(values) for values in found.values()]))) > MOST:
        raise UserError(f"--sweep makes {runs} runs; at most {MOST} are allowed")
    return found


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
    found = [_point(run, dict(zip(axes, values, strict=True))) for values in product(*axes.values())]
    if not any(point.ready for point in found):
        reasons = list(dict.fromkeys(point.refusal for point in found))
        raise UserError(
            f"--sweep: nothing can run: {reasons[0]}" + (f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else "")
        )
    return found


def _point(run: TrainRun, values: dict[str, Value]) -> Point:
    changes: dict[str, Any] = values | ({"compile": values["compile"] == "yes"} if "compile" in values else {})
    try:
        return Point(values, prepare(replace(run, **changes)))
    except BrokenRules as broken:
        return Point(values, None, "; ".join(broken.rules))
    except UserError as error:
        return Point(values, None, str(error))


def table(outcomes: Sequence[Outcome], refused: Sequence[Point]) -> list[Section]:
    """Return the runs, the fastest first, with their predictions, and how well the planner ranked them."""
    scales = {devices: _scale(some) for devices, some in by_devices(outcomes).items()}
    header = ("", "devices", "tokens/s", "s/step", "predicted s", "GiB", "predicted GiB", "order")
    ranked = sorted(outcomes, key=lambda one: -one.rate)
    rows = tuple(_cells(one, scales[one.devices], _order(one, outcomes)) for one in ranked)
    broken = [f"not run, {point.name}: {point.refusal}" for point in refused]
    return [
        Section("measured, fastest first", Table(header, rows).without_empty_columns(), (*_verdicts(outcomes, scales), *broken))
    ]


def by_devices(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    """Group runs by their number of devices: a planner chooses among these."""
    found: dict[int, list[Outcome]] = {}
    for one in sorted(outcomes, key=lambda one: one.devices):
        found.setdefault(one.devices, []).append(one)
    return found


def _cells(one: Outcome, scale: float, order: str) -> tuple[str, ...]:
    step, memory = (f"{one.predicted.step * scale:.4f}", f"{one.predicted.peak / GIB:.2f}") if one.predicted else ("", "")
    if not one.ran:
        return (one.point.name, str(one.devices), str(one.row["outcome"]), "", step, "", memory, order)
    seconds, gib = f"{float(one.row['sec_per_iter']):.4f}", f"{float(one.row['mem_gb']):.2f}"
    return (one.point.name, str(one.devices), f"{one.rate:,.0f}", seconds, step, gib, memory, order)


def _order(one: Outcome, outcomes: Sequence[Outcome]) -> str:
    """Its rank in the planner's order among runs on as many devices."""
    return (
        str(1 + sum(other.predicted_rate > one.predicted_rate for other in outcomes if other.devices == one.devices))
        if one.predicted
        else ""
    )


def _scale(some: Sequence[Outcome]) -> float:
    """Return the median of measured over predicted seconds on a generic CPU, a factor that does not change the order; else 1."""
    ratios = [float(one.row["sec_per_iter"]) / one.predicted.step for one in some if one.ran and one.generic and one.predicted]
    return float(np.median(ratios)) if ratios else 1.0


def _verdicts(outcomes: Sequence[Outcome], scales: dict[int, float]) -> list[str]:
    """Return how well the planner ranked the runs on each number of devices."""
    groups = by_devices([one for one in outcomes if one.predicted])
    lines = [
        f"{len(some)} runs on {devices} device{'s' * (devices > 1)}: {_verdict(some)}"
        for devices, some in groups.items()
        if len(some) > 1
    ]
    if any(one.generic for some in groups.values() for one in some):
        factors = ", ".join(f"{scale:.3g} on {devices} device{'s' * (devices > 1)}" for devices, scale in scales.items())
        lines.append(f"predicted seconds are for a generic CPU, times the median of measured over predicted: {factors}")
    return lines


def _verdict(some: Sequence[Outcome]) -> str:
    """Return the rank correlation of the runs that succeeded, and the result of the planner's pick."""
    done = [one for one in some if one.ran]
    if not done:
        return "none completed"
    best, pick = (
        max(done, key=lambda one: one.rate),
        max([one for one in some if one.fits] or some, key=lambda one: one.predicted_rate),
    )
    found = spearman(np.array([one.predicted_rate for one in done]), np.array([one.rate for one in done]))
    ranked = (
        f"rank correlation (Spearman) {found:.2f}" if found is not None else f"no rank correlation of fewer than {FEWEST} runs"
    )
    slower = f"is {1 - pick.rate / best.rate:.1%} slower than the fastest, {best.point.name}"
    ended = slower if pick.ran else f"failed ({pick.row['outcome']})"
    return f"{ranked}; the planner's pick, {pick.point.name}, {'is the fastest measured' if pick is best else ended}"
