"""Between what a prediction's measurement should lie: quantiles of the errors on rows left out, wider where less of a step is computing.

Split conformal prediction (Vovk et al. 2005) with two turns. Errors are not of one size: where most of a step is waiting (for other
devices, the host, the pipeline), runs are often far slower than predicted, so rows are told apart by that share. And rows of one group
err alike, so a group's own rows never count in the interval by which they are judged.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwise.calibrate.train.cases import Case
from meshwise.calibrate.train.predict import Prediction
from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.interval import LEVEL, NORMAL, factors, waiting
from meshwise.cost.layout import Floats

BIN = 60
"""Rows that a range of waiting shares should have at least; with fewer there is one range for all."""
BINS = 5
FEW = 40
"""With fewer rows, both sides of an interval are one quantile of the size of the errors."""


def quantile(values: Floats, level: float) -> float:
    """What `level` of draws like these do not exceed: the ceil((n + 1) level)-th of n, as conformal prediction has it."""
    ordered = np.sort(values)
    return float(ordered[min(len(ordered), math.ceil((len(ordered) + 1) * level)) - 1])


def fitted(cases: Sequence[Case], predicted: Prediction, shares: Floats) -> dict[str, Any]:
    """The fields of a Calibration that say how far off it is, from predictions that had not seen their rows."""
    timed, weighed = [i for i, case in enumerate(cases) if case.timed], [i for i, case in enumerate(cases) if case.weighed]
    found: dict[str, Any] = {"devices": float(max(case.cluster.devices for case in cases))}
    if timed:
        seen = np.array([cases[i].seconds for i in timed])
        edges, low, high = bins(np.log(seen / predicted.seconds[timed]), waiting(shares)[timed])
        found |= {"waiting": edges, "low": low, "high": high}
    if weighed:
        errors = np.log(predicted.memory[weighed] / [cases[i].memory for i in weighed])
        found["memory_spread"] = quantile(np.abs(errors), LEVEL) / NORMAL
    return found


def bins(errors: Floats, waits: Floats) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Ranges of the waiting share with as many rows each, and in each the bounds of ln(measured / predicted), zero between them."""
    count = max(1, min(BINS, len(errors) // BIN))
    edges = np.unique(np.quantile(waits, np.linspace(0, 1, count + 1))[1:-1])
    which = np.searchsorted(edges, waits, side="right")
    sides = [_bounds(errors[which == i]) if np.any(which == i) else _bounds(errors) for i in range(len(edges) + 1)]
    return tuple(map(float, edges)), tuple(max(0.0, -low) for low, _ in sides), tuple(max(0.0, high) for _, high in sides)


def _bounds(errors: Floats) -> tuple[float, float]:
    if len(errors) < FEW:
        size = quantile(np.abs(errors), LEVEL)
        return -size, size
    side = (1 + LEVEL) / 2
    return -quantile(-errors, side), quantile(errors, side)


def left_out(cases: Sequence[Case], predicted: Prediction, shares: Floats, groups: Sequence[object]) -> tuple[Floats, Floats]:
    """Ends of the interval of every row in seconds, by the errors of the other groups alone."""
    low, high = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    number = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    which = np.array([number[group] for group in groups])
    for i in range(len(number)):
        inside = which == i
        others = [k for k, case in enumerate(cases) if case.timed and not inside[k]]
        if not others:
            continue
        some = Prediction(predicted.seconds[others], predicted.memory[others])
        fields = fitted([cases[k] for k in others], some, shares[others])
        own = Calibration(waiting=fields["waiting"], low=fields["low"], high=fields["high"])
        down, up = factors(own, waiting(shares[inside]), np.ones(int(np.sum(inside))))
        low[inside], high[inside] = predicted.seconds[inside] * down, predicted.seconds[inside] * up
    return low, high


def coverage(cases: Sequence[Case], low: Floats, high: Floats) -> float | None:
    """The share of timed rows whose seconds lie in their interval."""
    rows = [i for i, case in enumerate(cases) if case.timed and math.isfinite(low[i])]
    seen = np.array([cases[i].seconds for i in rows])
    return float(np.mean((seen >= low[rows]) & (seen <= high[rows]))) if rows else None
