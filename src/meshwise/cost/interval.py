"""Prediction intervals of a training step, from its calibration: wider where devices wait for more of the step."""

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.layout import Floats, Ints
from meshwise.cost.parts import COMPUTING, TRAIN_PARTS

COVERAGE = 0.9
"""Share of measurements that should lie in an interval."""
SPREAD_PER_DOUBLING = 0.03
"""Half-width that an interval gains, in quadrature, per doubling of devices beyond those of the fit. An assumption."""
COVERAGE_STDS = 1.6449
"""LEVEL of a normal distribution lies within this many standard deviations of its mean."""


def waiting(shares: Floats) -> Floats:
    """Return the share of each step in which devices do not compute; `shares` has a row per step and a column for each of TRAIN_PARTS."""
    return 1 - np.sum(shares[:, [TRAIN_PARTS.index(name) for name in COMPUTING]], axis=1)


def factors(c: Calibration, waits: Floats, devices: Floats, mixed: Floats | bool = False) -> tuple[Floats, Floats]:
    """Return the factors on predicted seconds that give the low and the high end of the interval. `mixed`: whether the model has experts.
    Independent sources of error add in quadrature: the rows left out of the fit, more devices than in the fit, differences between
    machines where the calibration is of others, and experts."""
    which: Ints = np.searchsorted(np.array(c.waiting), waits, side="right")
    beyond = SPREAD_PER_DOUBLING * np.log2(np.maximum(1.0, devices / c.devices)) if c.devices else np.zeros(len(waits))
    more = np.hypot(np.hypot(beyond, COVERAGE_STDS * c.between), COVERAGE_STDS * c.expert_spread * np.asarray(mixed))
    low, high = (np.hypot(np.array(side)[which], more) for side in (c.low, c.high))
    return np.exp(-low), np.exp(high)


def step(c: Calibration, parts: dict[str, float], devices: int, mixed: bool) -> tuple[float, float]:
    """Return the two factors for one step, given its seconds by part."""
    total = sum(parts.values())
    shares = np.array([[parts[name] / total for name in TRAIN_PARTS]])
    low, high = factors(c, waiting(shares), np.array([float(devices)]), mixed)
    return float(low[0]), float(high[0])
