"""Prediction intervals of a training step, from its calibration: wider where devices wait for more of the step."""

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.layout import Floats, Ints
from meshwise.cost.parts import COMPUTING, TRAIN_PARTS

COVERAGE = 0.9  # share of measurements that should lie in an interval
SPREAD_PER_DOUBLING = 0.03
"""Half-width that an interval gains, in quadrature, per doubling of devices beyond those of the fit. An assumption."""
COVERAGE_STDS = 1.6449  # LEVEL of a normal distribution lies within this many standard deviations of its mean


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


def fits(needs: Floats, capacity: float, spread: float) -> Floats:
    """Return the probability that a device of this capacity holds what is predicted to need so many bytes. `spread`: standard deviation of
    ln(measured / predicted) of memory."""
    return _normal(np.log(capacity / np.maximum(needs, 1.0)) / max(spread, 1e-6))


def _normal(x: Floats) -> Floats:
    """Return the distribution function of the standard normal (Abramowitz and Stegun 26.2.17, to 8e-8)."""
    t = 1 / (1 + 0.2316419 * np.abs(x))
    tail = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above: Floats = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * tail
    return np.where(x >= 0, 1 - above, above)


def step(c: Calibration, parts: dict[str, float], devices: int, mixed: bool) -> tuple[float, float]:
    """Return the two factors for one step, given its seconds by part."""
    total = sum(parts.values())
    shares = np.array([[parts[name] / total for name in TRAIN_PARTS]])
    low, high = factors(c, waiting(shares), np.array([float(devices)]), mixed)
    return float(low[0]), float(high[0])
