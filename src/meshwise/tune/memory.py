"""Memory: the probability that each candidate fits, given the memory of measured runs and the runs that were out of it."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from scipy.special import ndtr  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from meshwise.calibrate.train.joint import MEMORY_OFFSET
from meshwise.cost.layout import Floats
from meshwise.tune.observation import Observation
from meshwise.tune.residual import Gaussian, Kernel, Scales
from meshwise.tune.space import Space


def fitting(space: Space, observations: Sequence[Observation]) -> Floats:
    """Return the probability that each candidate's memory suffices.

    ln(measured / predicted bytes) has a common factor, the slopes of the coefficients and what is peculiar to a candidate. A run out of
    memory, or one that ran without a figure of its memory, is a bound: the normal distribution with the same mean and variance as the cut
    one takes its place.
    """
    scales = Scales(
        offset=MEMORY_OFFSET,
        use=0.0,
        doubling=0.0,
        smooth=math.sqrt(max(0.0, space.memory_spread**2 - MEMORY_OFFSET**2) / 2),
        own=math.sqrt(max(1e-6, space.memory_spread**2 - MEMORY_OFFSET**2) / 2),
    )
    kernel = Kernel.of(space, space.memory_physics, scales)
    room = np.log(space.capacity / space.memory)
    rows: list[int] = []
    values: list[float] = []
    noise: list[float] = []
    belief = Gaussian.of(kernel, np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    bounded = [o for o in observations if o.failure == "oom" or o.ran]
    for observation in sorted(bounded, key=lambda o: o.memory is None):
        row = observation.candidate
        if observation.memory is not None and observation.ran:
            value, deviation = math.log(observation.memory / float(space.memory[row])), scales.noise
        else:
            site = _site(
                float(belief.mean[row]), float(belief.variance[row]), float(room[row]), above=observation.failure == "oom"
            )
            if site is None:
                continue
            value, deviation = site
        rows.append(row)
        values.append(value)
        noise.append(deviation)
        belief = Gaussian.of(kernel, np.array(rows), np.array(values), np.array(noise))
    return cast(Floats, ndtr((room - belief.mean) / np.sqrt(belief.variance + scales.noise**2)))


def _site(mean: float, variance: float, bound: float, *, above: bool) -> tuple[float, float] | None:
    """Return the measurement, as a value and its standard deviation, that moves a normal distribution to the mean and variance of its part
    above or below a bound; None where that part is nearly all of it."""
    deviation = math.sqrt(max(variance, 1e-12))
    sign = 1.0 if above else -1.0
    z = sign * (mean - bound) / deviation
    part = 0.5 * math.erfc(-z / math.sqrt(2))
    # far outside, density / part tends to -z
    ratio = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / part if part > 1e-12 else -z
    left = 1 - ratio * (ratio + z)  # share of the variance that is left
    if left > 1 - 1e-6:
        return None
    moved, remaining = mean + sign * deviation * ratio, variance * max(left, 1e-3)
    precision = 1 / remaining - 1 / variance
    return (moved / remaining - mean / variance) / precision, math.sqrt(1 / precision)
