"""Sources: predict the runs of each source by levels that were fitted without it, and derive from the errors how far predictions for
machines and programs that were never measured may be off."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from joint import JointFit, predict_with
from meshwise.calibrate.train.fit import Point, Problem, fitted_rows
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.levels import Levels, composed, fabric_of
from meshwise.cost.interval import COVERAGE, COVERAGE_STDS, factors, waiting
from meshwise.cost.layout import Floats
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, predict

MOST_ROWS = 60
"""Rows of a source that take part in a joint fit, spread evenly over it."""
EDGES = (0.25,)
"""Boundaries between ranges of the share of a step in which devices wait."""
LEAST = 0.18
"""Least half-width of an interval where nothing was fitted: the tables at hand are few, and of well-run machines."""
LEAST_BETWEEN = 0.05
"""Least standard deviation between sources that is assumed."""

Source = tuple[str, str, str, str]


@dataclass(frozen=True)
class LeftOut:
    """One source, predicted by levels that were fitted without it."""

    source: Source
    cases: list[Case]
    levels: Levels
    seconds: Floats
    memory: Floats
    waits: Floats
    """Share of each predicted step in which devices wait."""

    @cached_property
    def timed(self) -> list[int]:
        """Rows that count: within a factor of 2 of the best of their group, and not faulty."""
        return fitted_rows(self.cases, self.seconds)

    @property
    def errors(self) -> Floats:
        """ln(measured / predicted) of the timed rows."""
        return np.log([self.cases[i].seconds / self.seconds[i] for i in self.timed])

    @property
    def error(self) -> float:
        """Mean error of time, as a share of the measured time."""
        return float(np.mean(np.abs(np.exp(-self.errors) - 1)))

    @property
    def memory_errors(self) -> Floats:
        rows = [i for i, case in enumerate(self.cases) if case.has_memory]
        return np.log([self.cases[i].memory / self.memory[i] for i in rows])

    @property
    def refused(self) -> int:
        """Runs that ran, and would have been refused."""
        return sum(case.ran and self.memory[i] > case.limit for i, case in enumerate(self.cases))

    @property
    def mixed(self) -> bool:
        """Whether most of its models have experts."""
        return sum(any(op.expert for op in case.model.ops) for case in self.cases) * 2 > len(self.cases)

    def coverage(self, spread: dict[str, object]) -> float:
        """Return the share of timed rows inside their interval."""
        rows = self.timed
        c = replace(Calibration(), **(spread | {"between": 0.0}))  # pyright: ignore[reportArgumentType]
        mixed = np.array([any(op.expert for op in self.cases[i].model.ops) for i in rows])
        low, high = factors(c, self.waits[rows], np.ones(len(rows)), mixed)
        ratio = np.exp(self.errors)
        return float(np.mean((ratio >= low) & (ratio <= high)))


def sampled(cases: Sequence[Case]) -> list[Case]:
    """Return not more than MOST_ROWS rows of each source, spread evenly."""
    rows: dict[object, list[Case]] = {}
    for case in cases:
        rows.setdefault(case.source, []).append(case)
    return [case for group in rows.values() for case in group[:: -(-len(group) // MOST_ROWS)]]


@dataclass(frozen=True)
class Fits:
    """Joint fits of time and of memory to all sources."""

    speed: JointFit
    memory: JointFit

    @staticmethod
    def of(cases: Sequence[Case]) -> "Fits":
        near = set(fitted_rows(cases, predict(cases).seconds))
        timed = [case for i, case in enumerate(cases) if i in near]
        return Fits(JointFit(sampled(timed), "speed"), JointFit([c for c in cases if c.has_memory], "memory"))

    @cached_property
    def solved(self) -> "list[tuple[JointFit, Problem, Point]]":
        """Each fit with its problem and its solution; minutes of work."""
        return [(fit, *fit.solve()) for fit in (self.speed, self.memory)]

    @property
    def levels(self) -> Levels:
        """The levels that are fitted to all rows."""
        return _joined(*(fit.levels(at.logs) for fit, _, at in self.solved))

    def leave_out(self, cases: Sequence[Case], groups: Sequence[object]) -> list[LeftOut]:
        """Return each source, predicted without the group that it belongs to; other rows of the fit stay in. `groups` names the group of
        each case: a source, or a table with all of its sources."""
        solved = self.solved
        group_of = {(case.table, case.row_id): group for case, group in zip(cases, groups, strict=True)}
        left: list[LeftOut] = []
        for group in dict.fromkeys(groups):
            rows = [case for case, of in zip(cases, groups, strict=True) if of == group]
            levels = _joined(
                *(fit.leaving_out(p, at, lambda c, g=group: group_of.get((c.table, c.row_id)) == g) for fit, p, at in solved)
            )
            of_source: dict[Source, list[Case]] = {}
            for case in rows:
                of_source.setdefault(case.source, []).append(case)
            left += [_left_out(part, levels) for part in of_source.values()]
        return left


def _joined(speed: Levels, memory: Levels) -> Levels:
    """Return levels with the coefficients of both."""
    merged: dict[str, dict[str, dict[str, float]]] = {
        level: {
            key: {**getattr(speed, level).get(key, {}), **getattr(memory, level).get(key, {})}
            for key in {**getattr(speed, level), **getattr(memory, level)}
        }
        for level in ("chip", "framework", "fabric")
    }
    return Levels(chip=merged["chip"], framework=merged["framework"], fabric=merged["fabric"])


def _left_out(cases: list[Case], known: Levels) -> LeftOut:
    batch = Batch.of(cases)
    predicted = predict_with(known, batch)
    shares = batch.shares(lambda q: composed(q.chip, q.work.framework, fabric_of(q.cluster.network), known))
    return LeftOut(cases[0].source, cases, known, predicted.seconds, predicted.memory, waiting(shares))


def spread(left: Sequence[LeftOut]) -> dict[str, object]:
    """Return the fields of a Calibration that describe its errors, from sources left out: every source counts the same, whatever its
    number of rows, since a new machine is a new source."""
    dense = [source for source in left if len(source.timed) and not source.mixed]
    mixed = [source for source in left if len(source.timed) and source.mixed]
    low, high = zip(*(_bounds(dense, i) for i in range(len(EDGES) + 1)), strict=True)
    half = (_bounds(mixed)[0] + _bounds(mixed)[1]) / 2 if mixed else 0.0
    usual = (_bounds(dense)[0] + _bounds(dense)[1]) / 2
    medians = [float(np.median(source.errors)) for source in left if len(source.timed)]
    memory = [source for source in left if len(source.memory_errors)]
    return {
        "waiting": EDGES,
        "low": low,
        "high": high,
        "between": max(LEAST_BETWEEN, float(np.std(medians))),
        "expert_spread": float(np.sqrt(max(0.0, half**2 - usual**2))) / COVERAGE_STDS,
        "memory_spread": float(np.mean([np.quantile(np.abs(source.memory_errors), COVERAGE) for source in memory]))
        / COVERAGE_STDS,
    }


def _bounds(sources: Sequence[LeftOut], bin_: int | None = None) -> tuple[float, float]:
    """Return the sizes of ln(predicted / measured) and ln(measured / predicted) that 95% of the rows stay below, sources weighted
    equally; in one range of waiting shares, or in all."""
    errors: list[float] = []
    weights: list[float] = []
    for source in sources:
        rows = source.errors
        if bin_ is not None:
            inside = np.searchsorted(np.array(EDGES), source.waits[source.timed], side="right") == bin_
            rows = rows[inside]
        errors += rows.tolist()
        weights += [1 / max(1, len(rows))] * len(rows)
    if not errors:
        return _bounds(sources)
    order = np.argsort(errors)
    position = np.cumsum(np.array(weights)[order]) / np.sum(weights)
    side = (1 - COVERAGE) / 2
    values = np.array(errors)[order]
    low = values[min(len(values) - 1, int(np.searchsorted(position, side)))]
    high = values[min(len(values) - 1, int(np.searchsorted(position, 1 - side)))]
    return max(LEAST, -float(low)), max(LEAST, float(high))
