"""Memory: the probability that each candidate fits, given the memory of measured runs and the runs that were out of it."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from meshwise.calibrate.train.intervals import SOURCE_MEMORY_OFFSET_STD
from meshwise.cost.layout import Floats
from meshwise.tune.belief.normal import below
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.residual import Gaussian, Kernel, Scales
from meshwise.tune.belief.space import Space


def fitting(space: Space, observations: Sequence[Observation]) -> Floats:
    """Return the probability that each candidate's memory suffices. ln(measured / predicted bytes) has a common factor, the slopes of the
    coefficients and what is peculiar to a candidate. A run out of memory, or one that ran without a figure of its memory, is a bound: the
    normal distribution with the same mean and variance as the cut one takes its place."""
    scales = Scales(
        offset=SOURCE_MEMORY_OFFSET_STD, use=0.0, doubling=0.0,
        smooth=math.sqrt(max(0.0, space.memory_spread**2 - SOURCE_MEMORY_OFFSET_STD**2) / 2),
        own=math.sqrt(max(1e-6, space.memory_spread**2 - SOURCE_MEMORY_OFFSET_STD**2) / 2),
    )  # fmt: skip
    kernel = Kernel.of(space, space.memory_physics, scales)
    bounded = [o for o in observations if o.failure == "oom" or o.ran]
    rows = np.array([o.candidate for o in bounded], dtype=np.int64)
    values, noise = _measured(space, bounded, kernel.among(rows), scales.noise)
    told = np.isfinite(noise)
    belief = Gaussian.of(kernel, rows[told], values[told], noise[told])
    return below((_room(space) - belief.mean) / np.sqrt(belief.variance + scales.noise**2))


def _room(space: Space) -> Floats:
    """Return ln(capacity / predicted bytes)."""
    return np.log(space.capacity / space.memory)


def _measured(space: Space, bounded: Sequence[Observation], shared: Floats, precise: float) -> tuple[Floats, Floats]:
    """Return ln(measured / predicted bytes) of each observation, and its standard deviation: infinite for a bound that says nothing. Bounds
    take their place one after another, after what was measured. `shared`: the prior covariance between the observations."""
    room = _room(space)
    values, noise = np.zeros(len(bounded)), np.full(len(bounded), np.inf)
    for i, observation in enumerate(bounded):
        if observation.memory is not None and observation.ran:
            values[i], noise[i] = math.log(observation.memory / float(space.memory[observation.candidate])), precise
    for i, observation in enumerate(bounded):
        if math.isfinite(noise[i]):
            continue
        known = np.flatnonzero(np.isfinite(noise))
        inside = shared[np.ix_(known, known)] + np.diag(noise[known] ** 2)
        weights = cast(Floats, np.linalg.solve(inside, shared[known, i]))
        mean, variance = float(weights @ values[known]), float(shared[i, i] - weights @ shared[known, i])
        site = _site(mean, variance, float(room[observation.candidate]), above=observation.failure == "oom")
        if site is not None:
            values[i], noise[i] = site
    return values, noise


def _site(mean: float, variance: float, bound: float, *, above: bool) -> tuple[float, float] | None:
    """Return the value and deviation of a measurement that cuts a normal distribution at a bound; None where it cuts nearly nothing."""
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
