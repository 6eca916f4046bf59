"""Statistics that the scores of training and serving share. Errors are fractions of the measured value."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from meshwise.cost.layout import Floats

MIN_ROWS_TO_RANK = 3  # rows from which a rank correlation, or a choice among them, means anything

Score = dict[str, Any]  # the scores of one table, under the keys of `validate --json`. None: the table has no rows for it.
LeaveOut = Literal["row", "group"]  # the unit that a fit leaves out: one row, or a group of similar rows


def mean(values: Sequence[float] | Floats) -> float | None:
    """Return the mean; None where there are no values."""
    return float(np.mean(values)) if len(values) else None


def spearman(a: Floats, b: Floats) -> float | None:
    """Return the rank correlation, ties at their mean rank. None where either side is constant, or there are fewer than 3 values."""
    if len(a) < MIN_ROWS_TO_RANK or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[which]


def quantile(values: Floats, level: float) -> float:
    """Return the value that `level` of new draws do not exceed: the ceil((n + 1) level)-th of n, as in conformal prediction."""
    ordered = np.sort(values)
    return float(ordered[min(len(ordered), math.ceil((len(ordered) + 1) * level)) - 1])
