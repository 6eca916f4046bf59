"""A sweep: several layouts or batches, each run for a few steps and laid beside its prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from meshwise import units
from meshwise.errors import UserError, nearest, quoted
from meshwise.launch import Launch, Wish, prepare
from meshwise.plan import Choice
from meshwise.run_report import cut_of
from meshwise.score import FEWEST, spearman
from meshwise.sections import Section, Table
from meshwise.trainer.settings import RECOMPUTE, SCHEDULES

NUMBERS = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "mbs", "vpp", "zero")
WORDS = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "compile": ("no", "yes")}
AXES = (*NUMBERS, *WORDS, "batch", "seq")
MOST = 64
"""Runs of one sweep: each starts processes and takes many seconds."""
Value = int | str


@dataclass(frozen=True)
class Point:
    """One combination: its values, and the run that can start, or the rule it breaks."""

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
    """What became of a point that was run."""

    point: Point
    row: dict[str, Any]
    predicted: Choice | None

    @property
    def ran(self) -> bool:
        return self.row["outcome"] == "ok"

    @property
    def rate(self) -> float:
        """Tokens a second in all; 0 where it gave none."""
        return float(self.row["tokens_per_sec_per_gpu"]) * int(self.row["n_gpus"]) if self.ran else 0.0

    @property
    def foreseen(self) -> float:
        return self.predicted.tokens_per_second if self.predicted else 0.0


def parse(text: str) -> dict[str, tuple[Value, ...]]:
    """'mbs=1,2,4 tp=1,2' as values by axis."""
    found: dict[str, tuple[Value, ...]] = {}
    for piece in text.split():
        axis, equals, values = piece.partition("=")
        axis = axis.replace("-", "_")
        if axis not in AXES or not equals or not values:
            raise UserError(
                f"--sweep: {quoted(piece)} is not axis=values such as mbs=1,2,4{nearest(axis, AXES) or '; axes: ' + ', '.join(AXES)}"
            )
        if axis in found:
            raise UserError(f"--sweep: {axis} is given twice; give all its values in one: {axis}=1,2")
        found[axis] = tuple(_value(axis, word, piece) for word in values.split(","))
        if len(set(found[axis])) < len(found[axis]):
            raise UserError(f"--sweep: {quoted(piece)} has a value twice")
    if not found:
        raise UserError("--sweep: expected axis=values, such as 'mbs=1,2,4 tp=1,2'")
    if (runs := int(np.prod([len(values) for values in found.values()]))) > MOST:
        raise UserError(f"--sweep makes {runs} runs; at most {MOST} are run in one call")
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


def points(wish: Wish, axes: dict[str, tuple[Value, ...]]) -> list[Point]:
    """Every combination, those that break a rule with the rule. Nothing left to run is one line."""
    found = [_point(wish, dict(zip(axes, values, strict=True))) for values in product(*axes.values())]
    if not any(point.ready for point in found):
        reasons = list(dict.fromkeys(point.refusal for point in found))
        raise UserError(
            f"--sweep: nothing can run: {reasons[0]}" + (f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else "")
        )
    return found


def _point(wish: Wish, values: dict[str, Value]) -> Point:
    try:
        return Point(values, prepare(changed(wish, values)))
    except UserError as error:
        return Point(values, None, str(error).removeprefix("the layout cannot run: "))


def changed(wish: Wish, values: dict[str, Value]) -> Wish:
    """The same wish with other values."""
    layout = {axis: value for axis, value in values.items() if axis in (*NUMBERS, "schedule", "recompute")}
    options = {"compile": values["compile"] == "yes"} if "compile" in values else {}
    return replace(
        wish,
        axes=wish.axes | layout,
        batch=int(values.get("batch", wish.batch)),
        seq=int(values.get("seq", wish.seq)),
        options=wish.options | options,
    )


def table(outcomes: Sequence[Outcome], refused: Sequence[Point]) -> list[Section]:
    """The fastest first, predicted beside measured, and how well the planner ranked them."""
    ranked = sorted(outcomes, key=lambda one: -one.rate)
    scale = _scale([one for one in outcomes if one.ran and one.predicted])
    told = scale is not None
    header = (
        "",
        "devices",
        "tokens/s",
        "s/step",
        *(("predicted s",) if told else ()),
        "GiB",
        *(("predicted GiB",) if told else ()),
        "order",
    )
    rows = [_cells(one, scale or 1.0, _order(one, outcomes), told) for one in ranked]
    broken = [f"not run, {point.name}: {point.refusal}" for point in refused]
    return [Section("measured, fastest first", Table(header, tuple(rows)), (*_verdict(outcomes, scale), *broken))]


def _cells(one: Outcome, scale: float, order: str, told: bool) -> tuple[str, ...]:
    seconds = [f"{float(one.row['sec_per_iter']):.4f}"] if one.ran else [str(one.row["outcome"])]
    memory = [f"{float(one.row['mem_gb']):.2f}"] if one.ran else [""]
    if told:
        seconds.append(f"{one.predicted.seconds * scale:.4f}" if one.predicted else "")
        memory.append(f"{one.predicted.memory / 2**30:.2f}" if one.predicted else "")
    return (one.point.name, str(one.row["n_gpus"]), f"{one.rate:,.0f}" if one.ran else "", *seconds, *memory, order)


def _order(one: Outcome, outcomes: Sequence[Outcome]) -> str:
    """Its place in the planner's order."""
    if not one.predicted:
        return ""
    return str(1 + sum(other.foreseen > one.foreseen for other in outcomes))


def _scale(done: Sequence[Outcome]) -> float | None:
    """Measured over predicted seconds, the median: one factor, which leaves the order as it is."""
    ratios = [float(one.row["sec_per_iter"]) / one.predicted.seconds for one in done if one.predicted]
    return float(np.median(ratios)) if ratios else None


def _verdict(outcomes: Sequence[Outcome], scale: float | None) -> list[str]:
    done = [one for one in outcomes if one.ran and one.predicted]
    if scale is None or len(done) < 2:
        return []
    lines = [
        f"predicted seconds are times {scale:.3g}, the median of measured over predicted; order is the planner's, by tokens/s"
    ]
    best, pick = max(done, key=lambda one: one.rate), max(done, key=lambda one: one.foreseen)
    found = spearman(np.array([one.foreseen for one in done]), np.array([one.rate for one in done]))
    lines.append(f"rank correlation of predicted and measured (Spearman): {found:.2f} over {len(done)} runs" if found is not None
                 else f"no rank correlation: it needs {FEWEST} runs that differ")  # fmt: skip
    if pick is best:
        return [*lines, f"the planner's pick, {pick.point.name}, is the fastest measured"]
    return [
        *lines,
        f"the planner's pick, {pick.point.name} ({cut_of(pick.row)}), is {1 - pick.rate / best.rate:.1%} slower than the fastest",
    ]
