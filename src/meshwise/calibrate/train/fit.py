"""Fit a Calibration to measurements: least squares over the function that predicts, regularized by the prior.

The residual is ln(predicted / measured), so a factor of two counts the same either way; each coefficient is a factor on its prior, and is
pulled back to it according to how much such coefficients vary between machines. One that the rows do not determine stays at its prior.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwise.calibrate.least_squares import bounded_step
from meshwise.calibrate.score import LeaveOut
from meshwise.calibrate.train.modes import find, rows_in
from meshwise.calibrate.train.score import near_best
from meshwise.catalogue.calibrations import Calibration, coefficients
from meshwise.catalogue.chips import fabric_of
from meshwise.catalogue.levels import NONE, Levels, composed, levels
from meshwise.cost.layout import Floats
from meshwise.errors import UserError
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, Prediction

PROBED_WIDTH_FACTOR = 0.35
"""Factor on the width of a coefficient that a probe measured on the machine: training differs from timed kernels."""
FITTED_WIDTH_FACTOR = 0.6
"""Factor on the width of a coefficient that was fitted to other machines or programs of its level: part of what varies is known. Of 1, 0.7,
0.5, 0.35 and 0.25, values from 0.7 to 0.5 predict sources best after a fit to three of their rows."""
NOISE_STD = 0.04  # standard deviation of ln(seconds) between two runs of the same thing
OUTLIER_NOISES = 0.5
"""Residuals beyond this many NOISE_STD count linearly, not squared, so that a run that hung does not distort the fit."""
MAX_ROWS_WEIGHED = 200  # rows beyond this many add no weight to a table: rows of one table share its systematic errors
MAX_FOLDS = 100  # most fits of a leave-one-out; with more groups, several are left out at a time
MIN_STEP_GAIN_SHARE = 1e-5  # a step that is expected to lower the loss by less than this share of it is not taken

MAX_ROUNDS = 10
MIN_ROUND_GAIN_SHARE = 1e-3  # share of the loss that a round with new slopes must remove for another round to follow
DAMPING = 1e-3  # damping of the first step of a refit, as a share of the curvature
SLOPE_STEP = 0.01
"""Change of a coefficient over which slopes are taken: wide enough to pass a kink, where a layer starts to wait for CPU launches."""

_KNOWN = coefficients(Calibration)

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """One least-squares problem over the logarithms of coefficients: those that times, or memory, determine."""

    values: Callable[[Floats], Floats]  # logarithms of the predictions for every case, from those of the coefficients
    measured: Floats  # logarithms of the measurements; NaN where there is none
    weight: Floats  # weight of every case in the sum of squares; 0 for cases that are only predicted
    start: Floats  # logarithms of the prior's coefficients
    width: Floats  # standard deviation of each logarithm between machines
    most: Floats
    slopes: Callable[[Floats, Floats], Floats]
    """The derivative of every predicted logarithm by every coefficient, from the logarithms and the values there."""

    def residuals(self, logs: Floats, values: Floats, weight: Floats) -> Floats:
        """Return residuals in standard deviations: of the rows with a weight, then of the coefficients."""
        rows = weight > 0
        error = (values[rows] - self.measured[rows]) * weight[rows] / NOISE_STD
        return np.concatenate([error, (logs - self.start) / self.width])

    def slopes_of_residuals(self, slopes: Floats, weight: Floats) -> Floats:
        rows = weight > 0
        return np.vstack([slopes[rows] * (weight[rows] / NOISE_STD)[:, None], np.diag(1 / self.width)])


@dataclass(frozen=True)
class CalibrationProblem:
    """The problem of fitting one calibration, and how to read its solution."""

    problem: Problem
    prior: Calibration
    names: tuple[str, ...]
    kind: Literal["seconds", "memory"]

    def calibration(self, logs: Floats, over: Calibration | None = None) -> Calibration:
        """Return `over`, or the prior, with the coefficients of this problem at these logarithms."""
        return with_logs(over or self.prior, self.names, logs)


def with_logs(calibration: Calibration, names: Sequence[str], logs: Floats) -> Calibration:
    """Return a calibration with these coefficients, given by their logarithms."""
    return replace(calibration, **dict(zip(names, map(float, np.exp(logs)), strict=True)))  # pyright: ignore[reportArgumentType]


def problems(cases: Sequence[Case], prior: Calibration, narrow: float = 1.0) -> Iterator[CalibrationProblem]:
    """Yield the problem of times and, where any was measured, that of memory: they share no coefficient. `narrow` scales the prior
    widths. A coefficient that the prior sets to 0, such as the CPU launches of a compiled program, does not exist there. Times of faulty
    runs do not count; they are so far off that the prior tells them from others."""
    batch = Batch.of(cases)
    seconds, memory = np.array([case.seconds for case in cases]), np.array([case.memory for case in cases])
    chosen, measured = fitted_rows(cases, batch.evaluate(prior).seconds), [i for i, case in enumerate(cases) if case.has_memory]
    if chosen:
        yield _problem(cases, prior, widths_of(prior), narrow, (seconds, chosen), lambda c: batch.evaluate(c).seconds, "seconds")
    if measured:
        yield _problem(cases, prior, memory_widths(), narrow, (memory, measured), lambda c: batch.evaluate(c).memory, "memory")


def fitted_rows(cases: Sequence[Case], predicted: Floats) -> list[int]:
    """Return the timed rows that a fit uses: near the best of their group, and not faulty. Where most runs are in a mode, it may be a cost
    that a coefficient can learn, so these stay."""
    faulty = rows_in(found for found in find(cases, predicted) if not found.mode.usual)
    return [i for i in near_best(cases) if i not in faulty]


def _problem(
    cases: Sequence[Case],
    prior: Calibration,
    widths: Mapping[str, float],
    narrow: float,
    measured: tuple[Floats, list[int]],
    predict: Callable[[Calibration], Floats],
    kind: Literal["seconds", "memory"],
) -> CalibrationProblem:
    names = tuple(name for name in widths if getattr(prior, name) > 0)

    def values(logs: Floats) -> Floats:
        return np.log(predict(with_logs(prior, names, logs)))

    problem = Problem(
        values=values,
        measured=np.log(measured[0]),
        weight=_weights(cases, measured[1]),
        start=np.log([getattr(prior, name) for name in names]),
        width=np.array([widths[name] * narrow for name in names]),
        most=np.log([_KNOWN[name].most for name in names]),
        slopes=lambda logs, at: _slopes(values, logs, at),
    )
    return CalibrationProblem(problem, prior, names, kind)


def widths_of(prior: Calibration) -> dict[str, float]:
    """Return prior widths of the coefficients that times determine: narrower where a probe measured them, or other machines did."""
    known = _widths("speed") | (_widths("probed") if {"matmul", "memory"} <= set(prior.measured) else {})
    factors = dict.fromkeys(prior.learned, FITTED_WIDTH_FACTOR) | dict.fromkeys(prior.measured, PROBED_WIDTH_FACTOR)
    return {name: width * factors.get(name, 1.0) for name, width in known.items()}


def memory_widths() -> dict[str, float]:
    """Return prior widths of the coefficients that measured memory determines."""
    return _widths("memory")


def _widths(fitted_to: str) -> dict[str, float]:
    return {
        name: coefficient.width
        for name, coefficient in _KNOWN.items()
        if coefficient.width and coefficient.fitted_to == fitted_to
    }


def _weights(cases: Sequence[Case], rows: list[int]) -> Floats:
    """Return 1 for each of these rows, less where a table has more than MAX_ROWS_WEIGHED of them."""
    size = Counter(cases[i].table for i in rows)
    weight = np.zeros(len(cases))
    weight[rows] = [min(1.0, (MAX_ROWS_WEIGHED / size[cases[i].table]) ** 0.5) for i in rows]
    return weight


def fit(cases: Sequence[Case], prior: Calibration) -> Calibration:
    """Return the coefficients that predict these rows best, without faulty rows and those far slower than the best of their group."""
    calibration = prior
    for posed in problems(cases, prior):
        calibration = posed.calibration(solve(posed.problem).logs, calibration)
    return calibration


def solve(p: Problem, rounds: int = MAX_ROUNDS, gain: float = MIN_ROUND_GAIN_SHARE) -> "Point":
    """Minimize the loss, starting at the prior: steps along slopes, with new slopes until a round gains less than `gain` of it."""
    logs = np.minimum(p.start, p.most)
    at, size = Point(logs, p.values(logs), np.zeros(0)), len(logs)
    for _ in range(rounds):
        before = _loss(p.residuals(at.logs, at.values, p.weight), size)
        at = refit(p, p.weight, Point(at.logs, at.values, p.slopes(at.logs, at.values)))
        after = _loss(p.residuals(at.logs, at.values, p.weight), size)
        if before - after < gain * after:
            break
    return at


@dataclass(frozen=True)
class Point:
    """State of a fit: logarithms of the coefficients, the predictions, their slopes, and the damping of steps."""

    logs: Floats
    values: Floats
    slopes: Floats
    damping: float = DAMPING


@dataclass(frozen=True)
class Fitted:
    """A calibration, its predictions for the rows it was fitted to, and predictions for each row by fits without its group."""

    calibration: Calibration
    inside: Prediction
    left_out: Prediction
    widths: dict[str, float]
    """Remaining uncertainty of each coefficient over that of its prior: 1 where the rows do not determine it."""


def fit_leaving_out(cases: Sequence[Case], prior: Calibration, groups: Sequence[object], narrow: float = 1.0) -> Fitted:
    """Fit all rows, and predict every row by a fit without its group."""
    calibration, folds = prior, _folds(groups)
    plain = Batch.of(cases).evaluate(prior)
    predicted = {"seconds": plain.seconds, "memory": plain.memory}
    widths: dict[str, float] = {}
    for posed in problems(cases, prior, narrow):
        p = posed.problem
        everything = solve(p)
        calibration = posed.calibration(everything.logs, calibration)
        widths |= dict(zip(posed.names, _remaining_widths(p, everything), strict=True))
        out = everything.values.copy()
        for inside in folds:
            if p.weight[inside].any():
                others = np.where(inside, 0.0, p.weight)
                out[inside] = refit(p, others, replace(everything, damping=DAMPING)).values[inside]
        predicted[posed.kind] = np.exp(out)
    return Fitted(calibration, Batch.of(cases).evaluate(calibration), Prediction(**predicted), widths)


def groups_to_leave_out(cases: Sequence[Case], leave_out: LeaveOut) -> list[object]:
    """Return the group of each row: the row itself, or its day and model width (undated: its model and number of devices)."""
    return [(case.table, case.row_id) if leave_out == "row" else (case.table, *case.setting) for case in cases]


def _remaining_widths(p: Problem, at: Point) -> list[float]:
    """Return the posterior width over the prior's by coefficient, for a normal distribution with the loss's curvature."""
    slopes = p.slopes_of_residuals(p.slopes(at.logs, at.values), p.weight)
    share = _outlyingness(p.residuals(at.logs, at.values, p.weight), len(at.logs)) ** -0.25
    tilted = slopes * share[:, None]
    width = np.sqrt(np.diag(np.linalg.inv(tilted.T @ tilted)))
    return list(map(float, width / p.width))


def _folds(groups: Sequence[object]) -> list[Mask]:
    """Return masks of rows to leave out together: one group each, or every hundredth group where there are more."""
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    count = min(len(number), MAX_FOLDS)
    fold = np.array([number[group] % count for group in groups])
    if len(groups) == 1:
        raise UserError("one row is not enough to score a fit: give two runs or more, at another batch, sequence or model")
    if count < 2:
        raise UserError("all rows are in one group, so none is left to fit to: use --leave-out row, or give more rows")
    return [fold == i for i in range(count)]


def _slopes(values: Callable[[Floats], Floats], logs: Floats, at: Floats) -> Floats:
    """Return the derivative of every predicted logarithm by every coefficient. Steps go down: shares cannot exceed 1."""
    columns = [(at - values(logs - SLOPE_STEP * unit)) / SLOPE_STEP for unit in np.eye(len(logs))]
    return np.array(columns).T


def refit(p: Problem, weight: Floats, at: Point) -> Point:
    """Fit the rows that have a `weight`, starting from a nearby point: Gauss-Newton steps along known slopes. The slopes are updated on
    the way (Broyden's rule). Leaving a few rows out moves the coefficients little, so starting from the fit of all rows this finds the
    fit of the others without the fourteen predictions that new slopes take."""
    size = len(at.logs)
    residuals = p.residuals(at.logs, at.values, weight)
    for _ in range(40):
        move, expected = newton_step(p.slopes_of_residuals(at.slopes, weight), residuals, p.most - at.logs, at.damping)
        length = float(np.sum((move / p.width) ** 2))
        if expected < MIN_STEP_GAIN_SHARE * _loss(residuals, size) or not length:  # few rows may already be met exactly
            break
        values = p.values(at.logs + move)
        wrong = values - at.values - at.slopes @ move
        slopes = at.slopes + np.outer(wrong, (move / p.width**2) / length)
        reached = p.residuals(at.logs + move, values, weight)
        if _loss(reached, size) < _loss(residuals, size):
            at, residuals = Point(at.logs + move, values, slopes, at.damping / 3), reached
        else:
            at = replace(at, slopes=slopes, damping=max(5 * at.damping, 1e-2))
    return at


def _outlyingness(residuals: Floats, coefficients: int) -> Floats:
    """Return 1 + the squared residual in units of OUTLIER_NOISES; 1 for the last `coefficients`, which are not measurements."""
    sizes = 1 + (residuals / OUTLIER_NOISES) ** 2
    sizes[-coefficients:] = 1.0
    return sizes


def _loss(residuals: Floats, coefficients: int) -> float:
    """Return half the sum of squares, linear in outliers: a soft L1."""
    rows, priors = residuals[:-coefficients], residuals[-coefficients:]
    return float(np.sum(np.sqrt(1 + (rows / OUTLIER_NOISES) ** 2) - 1) * OUTLIER_NOISES**2 + np.sum(priors**2) / 2)


def newton_step(slope: Floats, residuals: Floats, room: Floats, damping: float) -> tuple[Floats, float]:
    """Return a Levenberg-Marquardt step within `room`, and the expected decrease of the loss. Each row counts as the parabola that
    touches its loss from above, so a step that lowers their sum lowers the loss."""
    share = _outlyingness(residuals, len(room)) ** -0.25
    tilted, aimed = slope * share[:, None], residuals * share
    curvature = tilted.T @ tilted
    damped = curvature + damping * np.diag(np.diag(curvature))
    move = bounded_step(damped, -tilted.T @ aimed, np.full(len(room), -np.inf), room)
    return move, float(np.sum(aimed**2) - np.sum((aimed + tilted @ move) ** 2)) / 2


def prior_for(case: Case, known: Levels | None = None) -> Calibration:
    """Return the prior of a fit: composed of levels, without any fit to this chip and framework. For a table that is shipped, whose rows
    the levels were fitted to, the prior of the architecture alone."""
    if known is None:
        known = NONE if case.table in levels().fitted_on else levels()
    return composed(case.chip, case.work.framework, fabric_of(case.cluster.network), known)
