"""Fit a Calibration to measurements: least squares over the same function that predicts, held near the prior.

The residual is ln(predicted / measured), so a factor of two counts the same either way; each coefficient is a factor on its prior and
is pulled back to it by how far such coefficients vary between machines. A table that says little about one leaves it where it was.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from meshwise.calibrate.train.cases import Case
from meshwise.calibrate.train.predict import Batch, Prediction
from meshwise.calibrate.train.score import near
from meshwise.catalogue.calibrations import Calibration, calibrations, coefficients
from meshwise.catalogue.chips import Chip
from meshwise.cost.layout import Floats
from meshwise.errors import UserError

MEASURED = 0.35
"""How far a coefficient that was timed on the machine itself may still go, in widths: training differs from a bench of kernels."""
NOISE = 0.04
"""Standard deviation of ln(seconds) between two runs of the same thing."""
OUTLIER = 0.5
"""Residuals of rows beyond this many NOISE count by their size, not its square: a run that hung must not bend the rest."""
MOST_ROWS = 200
"""Rows of a table beyond this many add no weight: whatever is wrong with a table is wrong with all its rows."""
FOLDS = 100
"""Fits of a leave-one-out at most; with more rows, several are left out at a time."""
CLOSE = 1e-5
"""A step that promises to lower the sum of squares by less than this share of it is not taken."""

ROUNDS = 10
GAIN = 1e-3
"""Share of the loss that a round with fresh slopes must take off it for another to follow."""
CAUTION = 1e-3
"""How much the first step of a refit is held back, as a share of the curvature."""
SLOPE_STEP = 0.01
"""Change of a coefficient over which slopes are taken: wide enough not to stop at a kink, where a layer begins to wait for the host."""

_KNOWN = coefficients(Calibration)

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """What is asked of one set of coefficients: to predict these logarithms of what was seen."""

    predict: Callable[[Calibration], Floats]
    """Logarithms of what is predicted for every case."""
    seen: Floats
    """The same of what was measured; NaN where nothing was."""
    weight: Floats
    """Of every case in the sum of squares; 0 for those that are only predicted."""
    prior: Calibration
    widths: Mapping[str, float]
    kind: Literal["seconds", "memory"]

    def calibration(self, logs: Floats, over: Calibration | None = None) -> Calibration:
        values = dict(zip(self.widths, map(float, np.exp(logs)), strict=True))
        return replace(over or self.prior, **values)  # pyright: ignore[reportArgumentType]

    def logs(self, of: Calibration) -> Floats:
        return np.log([getattr(of, name) for name in self.widths])

    @property
    def width(self) -> Floats:
        return np.array(list(self.widths.values()))

    @property
    def most(self) -> Floats:
        return np.log([_KNOWN[name].most for name in self.widths])

    def values(self, logs: Floats) -> Floats:
        return self.predict(self.calibration(logs))

    def residuals(self, logs: Floats, values: Floats, weight: Floats) -> Floats:
        """In standard deviations: of the rows that count, and of the coefficients."""
        rows = weight > 0
        error = (values[rows] - self.seen[rows]) * weight[rows] / NOISE
        return np.concatenate([error, (logs - self.logs(self.prior)) / self.width])

    def slopes_of_residuals(self, slopes: Floats, weight: Floats) -> Floats:
        rows = weight > 0
        return np.vstack([slopes[rows] * (weight[rows] / NOISE)[:, None], np.diag(1 / self.width)])


def problems(cases: Sequence[Case], prior: Calibration, narrow: float = 1.0) -> Iterator[Problem]:
    """Times, and memory where any was measured: the two share no coefficient. `narrow` is how far to trust the prior beyond its widths."""
    batch, widths = Batch.of(cases), widths_of(prior)
    seconds, memory = np.array([case.seconds for case in cases]), np.array([case.memory for case in cases])
    chosen, weighed = near(cases), [i for i, case in enumerate(cases) if case.weighed]
    if chosen:
        weight = _weights(cases, chosen)
        yield Problem(
            lambda c: np.log(batch.evaluate(c).seconds), np.log(seconds), weight, prior, _scaled(widths, narrow), "seconds"
        )
    if weighed:
        weight = _weights(cases, weighed)
        yield Problem(
            lambda c: np.log(batch.evaluate(c).memory),
            np.log(memory),
            weight,
            prior,
            _scaled(_widths("memory"), narrow),
            "memory",
        )


def widths_of(prior: Calibration) -> dict[str, float]:
    """Prior widths of the coefficients that times determine: narrower where a probe measured them."""
    known = _widths("speed") | (_widths("probed") if {"matmul", "memory"} <= set(prior.measured) else {})
    return {name: width * (MEASURED if name in prior.measured else 1.0) for name, width in known.items()}


def _widths(fitted_to: str) -> dict[str, float]:
    return {name: one.width for name, one in _KNOWN.items() if one.width and one.fitted_to == fitted_to}


def _scaled(widths: Mapping[str, float], by: float) -> dict[str, float]:
    return {name: width * by for name, width in widths.items()}


def _weights(cases: Sequence[Case], rows: list[int]) -> Floats:
    """1 for each of these rows, less where a table has very many of them."""
    size = Counter(cases[i].table for i in rows)
    weight = np.zeros(len(cases))
    weight[rows] = [min(1.0, (MOST_ROWS / size[cases[i].table]) ** 0.5) for i in rows]
    return weight


def fit(cases: Sequence[Case], prior: Calibration) -> Calibration:
    """The coefficients that predict these rows best. Rows far slower than others of their group are not fitted."""
    found = prior
    for problem in problems(cases, prior):
        found = problem.calibration(_solve(problem).logs, found)
    return found


def _solve(p: Problem) -> "Place":
    """From the prior to the best logarithms of the coefficients: steps along slopes, and fresh slopes until they gain next to nothing."""
    logs = np.minimum(p.logs(p.prior), p.most)
    at = Place(logs, p.values(logs), np.zeros(0))
    for _ in range(ROUNDS):
        before = _loss(p.residuals(at.logs, at.values, p.weight), len(p.widths))
        at = _refit(p, p.weight, Place(at.logs, at.values, _slopes(p, at.logs, at.values)))
        after = _loss(p.residuals(at.logs, at.values, p.weight), len(p.widths))
        if before - after < GAIN * after:
            break
    return at


@dataclass(frozen=True)
class Place:
    """Where a fit stands: its coefficients, what they predict, how that changes with them, and how much steps are held back."""

    logs: Floats
    values: Floats
    slopes: Floats
    caution: float = CAUTION


@dataclass(frozen=True)
class Fitted:
    """A calibration, what it predicts for the rows it was fitted to, and what fits that had not seen a row's group predict for it."""

    calibration: Calibration
    inside: Prediction
    left_out: Prediction
    widths: dict[str, float]
    """How uncertain each coefficient is still, over how uncertain its prior was: 1 where the rows say nothing of it."""


def fit_leaving_out(cases: Sequence[Case], prior: Calibration, groups: Sequence[object], narrow: float = 1.0) -> Fitted:
    """The fit of all rows, and what is predicted for every row when its group is left out."""
    found, folds = prior, _folds(groups)
    plain = Batch.of(cases).evaluate(prior)
    predicted = {"seconds": plain.seconds, "memory": plain.memory}
    widths: dict[str, float] = {}
    for p in problems(cases, prior, narrow):
        everything = _solve(p)
        found = p.calibration(everything.logs, found)
        widths |= _left_open(p, everything)
        out = everything.values.copy()
        for inside in folds:
            if p.weight[inside].any():
                others = np.where(inside, 0.0, p.weight)
                out[inside] = _refit(p, others, replace(everything, caution=CAUTION)).values[inside]
        predicted[p.kind] = np.exp(out)
    return Fitted(found, Batch.of(cases).evaluate(found), Prediction(**predicted), widths)


def _left_open(p: Problem, at: Place) -> dict[str, float]:
    """Width of the posterior over that of the prior, by coefficient: of a normal distribution with the curvature of the loss."""
    slopes = p.slopes_of_residuals(_slopes(p, at.logs, at.values), p.weight)
    share = _outlying(p.residuals(at.logs, at.values, p.weight), len(p.widths)) ** -0.25
    tilted = slopes * share[:, None]
    width = np.sqrt(np.diag(np.linalg.inv(tilted.T @ tilted)))
    return dict(zip(p.widths, map(float, width / p.width), strict=True))


def _folds(groups: Sequence[object]) -> list[Mask]:
    """Which rows to leave out together: each group by itself, or, where there are very many, every hundredth."""
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    count = min(len(number), FOLDS)
    fold = np.array([number[group] % count for group in groups])
    if len(groups) == 1:
        raise UserError("one row cannot tell how far off others are: give two runs or more, at another batch, sequence or model")
    if count < 2:
        raise UserError(
            "all rows are of one group: nothing is left to fit to when it is left out (--leave-out row, or more rows)"
        )
    return [fold == i for i in range(count)]


def _slopes(p: Problem, logs: Floats, values: Floats) -> Floats:
    """How every predicted logarithm changes with every coefficient. Steps go down: shares cannot go above 1."""
    columns = [(values - p.values(logs - SLOPE_STEP * unit)) / SLOPE_STEP for unit in np.eye(len(logs))]
    return np.array(columns).T


def _refit(p: Problem, weight: Floats, at: Place) -> Place:
    """The fit of the rows that have a `weight`, starting from a place near it: Gauss-Newton steps along known slopes.

    The slopes are mended on the way (Broyden's rule). Leaving a few rows out moves the coefficients little, so from the fit of all rows
    this finds what a fresh fit to the others would, without the fourteen predictions that fresh slopes take.
    """
    residuals = p.residuals(at.logs, at.values, weight)
    for _ in range(40):
        move, promised = _step(p.slopes_of_residuals(at.slopes, weight), residuals, p.most - at.logs, at.caution)
        if promised < CLOSE * _loss(residuals, len(p.widths)):
            break
        values = p.values(at.logs + move)
        wrong = values - at.values - at.slopes @ move
        slopes = at.slopes + np.outer(wrong, (move / p.width**2) / np.sum((move / p.width) ** 2))
        reached = p.residuals(at.logs + move, values, weight)
        if _loss(reached, len(p.widths)) < _loss(residuals, len(p.widths)):
            at, residuals = Place(at.logs + move, values, slopes, at.caution / 3), reached
        else:
            at = replace(at, slopes=slopes, caution=max(5 * at.caution, 1e-2))
    return at


def _outlying(residuals: Floats, coefficients: int) -> Floats:
    """1 + the squared residual in units of OUTLIER; 1 for the last `coefficients`, which are no measurements and never outliers."""
    found = 1 + (residuals / OUTLIER) ** 2
    found[-coefficients:] = 1.0
    return found


def _loss(residuals: Floats, coefficients: int) -> float:
    """Half the sum of squares, but of outlying rows only the size: a soft L1."""
    rows, priors = residuals[:-coefficients], residuals[-coefficients:]
    return float(np.sum(np.sqrt(1 + (rows / OUTLIER) ** 2) - 1) * OUTLIER**2 + np.sum(priors**2) / 2)


def _step(slope: Floats, residuals: Floats, room: Floats, caution: float) -> tuple[Floats, float]:
    """A Levenberg-Marquardt step that keeps within `room`, and by how much it promises to lower the loss.

    Each row counts as the parabola that touches its loss and lies above it, so what lowers their sum lowers the loss.
    """
    share = _outlying(residuals, len(room)) ** -0.25
    tilted, aimed = slope * share[:, None], residuals * share
    held = np.diag(np.sqrt(caution * np.sum(tilted**2, axis=0)))
    solved = cast(Any, lsq_linear)(np.vstack([tilted, held]), np.append(-aimed, np.zeros(len(room))), (-np.inf, room), "bvls")
    move = np.minimum(solved.x, room)
    return move, float(np.sum(aimed**2) - np.sum((aimed + tilted @ move) ** 2)) / 2


def prior_for(chip: Chip) -> Calibration:
    """Where a fit starts: what kernels of the chip's architecture do, or the default. Never a fit of training runs: that has seen them."""
    for found in calibrations():
        if chip.architecture in found.architectures and not (found.chips or found.frameworks):
            return found
    return Calibration()
