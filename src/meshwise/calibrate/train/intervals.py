"""Prediction intervals from the errors of rows left out of a fit, wider where more of a step is waiting.

Split conformal prediction (Vovk et al. 2005) with two changes. Errors grow with the share of a step that is waiting (for other devices, the
CPU, the pipeline), where runs are often far slower than predicted, so rows are binned by that share. And rows of one group have similar
errors, so a group's own rows never count in the interval that they are checked against.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from meshwise.calibrate.score import quantile
from meshwise.calibrate.train.modes import Found, merged, rows_in, sizes_of
from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.interval import COVERAGE, COVERAGE_STDS, factors, waiting
from meshwise.cost.layout import Floats
from meshwise.cost.modes import upper_end
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Prediction

MIN_ROWS_PER_BIN = 60  # least rows per bin of waiting shares; with fewer rows there is a single bin
MAX_BINS = 5
MIN_ROWS_FOR_TWO_SIDES = 40  # with fewer rows an interval is symmetric: both sides are the same quantile of absolute errors

SOURCE_OFFSET_STD = 0.18  # standard deviation of the offset of a source
SOURCE_MEMORY_OFFSET_STD = 0.05
"""Standard deviation between sources for memory, which depends on less that no formula knows: how it was read, and fragmentation."""


def fitted(cases: Sequence[Case], predicted: Prediction, shares: Floats, faulty: Collection[int] = ()) -> dict[str, Any]:
    """Return the fields of a Calibration that describe its errors, from fits without the predicted row; `faulty` times do not count."""
    timed = [i for i, case in enumerate(cases) if case.timed and i not in faulty]
    measured = [i for i, case in enumerate(cases) if case.has_memory]
    values: dict[str, Any] = {"devices": float(max(case.cluster.devices for case in cases))}
    if timed:
        observed = np.array([cases[i].seconds for i in timed])
        edges, low, high = bins(np.log(observed / predicted.seconds[timed]), waiting(shares)[timed])
        values |= {"waiting": edges, "low": low, "high": high}
    if measured:
        errors = np.log(predicted.memory[measured] / [cases[i].memory for i in measured])
        values["memory_spread"] = quantile(np.abs(errors), COVERAGE) / COVERAGE_STDS
    return values


def bins(errors: Floats, waits: Floats) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the edges of bins of the waiting share with equal numbers of rows, and in each bin the low and high bound of
    ln(measured / predicted), which include zero."""
    count = max(1, min(MAX_BINS, len(errors) // MIN_ROWS_PER_BIN))
    edges = np.unique(np.quantile(waits, np.linspace(0, 1, count + 1))[1:-1])
    which = np.searchsorted(edges, waits, side="right")
    sides = [_bounds(errors[which == i]) if np.any(which == i) else _bounds(errors) for i in range(len(edges) + 1)]
    return tuple(map(float, edges)), tuple(max(0.0, -low) for low, _ in sides), tuple(max(0.0, high) for _, high in sides)


def _bounds(errors: Floats) -> tuple[float, float]:
    if len(errors) < MIN_ROWS_FOR_TWO_SIDES:
        size = quantile(np.abs(errors), COVERAGE)
        return -size, size
    side = (1 + COVERAGE) / 2
    return -quantile(-errors, side), quantile(errors, side)


def left_out(
    cases: Sequence[Case], predicted: Prediction, shares: Floats, groups: Sequence[object], found: Sequence[Found]
) -> tuple[Floats, Floats]:
    """Return the interval of every row in seconds, from the errors of the other groups and the modes found in all of them."""
    faulty = rows_in(found)
    low, high = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    which = np.array([number[group] for group in groups])
    for i in range(len(number)):
        inside = which == i
        others = [k for k, case in enumerate(cases) if case.timed and not inside[k] and k not in faulty]
        if not others:
            continue
        others_predicted = Prediction(predicted.seconds[others], predicted.memory[others], predicted.needed[others])
        fields = fitted([cases[k] for k in others], others_predicted, shares[others])
        bounds = Calibration(waiting=fields["waiting"], low=fields["low"], high=fields["high"])
        down, up = factors(bounds, waiting(shares[inside]), np.ones(int(np.sum(inside))))
        low[inside], high[inside] = predicted.seconds[inside] * down, predicted.seconds[inside] * up
    return low, upper_end(merged(found), high, predicted.seconds, sizes_of(cases))


def coverage(cases: Sequence[Case], low: Floats, high: Floats, faulty: Collection[int] = ()) -> float | None:
    """Return the share of timed rows whose seconds lie in their interval, `faulty` ones left out."""
    rows = [i for i, case in enumerate(cases) if case.timed and math.isfinite(low[i]) and i not in faulty]
    observed = np.array([cases[i].seconds for i in rows])
    return float(np.mean((observed >= low[rows]) & (observed <= high[rows]))) if rows else None
