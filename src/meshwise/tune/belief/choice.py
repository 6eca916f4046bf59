"""Choice: the next runs, by expected improvement over all candidates.

The gain of a run is the expected share of the best time so far that it saves: in closed form for a normal ln(seconds), times the
probability that it runs and is not in a slow mode. Among candidates with nearly the same gain, the one that tells most about the other
promising ones is run. Several runs at once are chosen one after another, each as if those before it had taken their expected time.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.tune.belief.normal import below
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Part, Posterior
from meshwise.tune.belief.residual import SCALES, Scales
from meshwise.tune.belief.space import Space

FIRST_TIME_FACTOR = 1.2
"""Before anything has run, a run is compared with one that takes this many times the fastest predicted seconds: what a second choice may
cost, so that a risk of failing weighs as much as some percent of time."""
TIE_SHARE = 0.01
"""Candidates whose gain is less than this share below the largest are nearly as good: the cost model is not more precise."""
PROMISING_CANDIDATES = 16  # candidates with the largest gains, about which a run should tell


@dataclass(frozen=True)
class Pick:
    """A candidate to run next."""

    row: int
    gain: float  # expected share of the best time so far that its run saves
    why: str


def gains(posterior: Posterior) -> Floats:
    """Return the expected gain of a run of each candidate; 0 for those that were tried."""
    best = posterior.incumbent
    if best is None:
        mean, fine = posterior.mean, posterior.runs * (1 - posterior.slow)
        fine[list(posterior.tried)] = 0.0
        least = np.min(mean[fine >= 0.5 * np.max(fine)])  # of those that are likely to run: what does not fit is no measure
        gain = np.maximum(0.0, 1 - np.exp(np.minimum(mean - least, 50.0)) / FIRST_TIME_FACTOR) * fine
    else:
        gain = posterior.runs * sum((part.weight * _saved(part, best) for part in posterior.parts), np.zeros(1))
    gain[list(posterior.tried)] = 0.0
    return gain


def _saved(part: Part, best: float) -> Floats:
    """Return the expected share of the best time that a run of each candidate saves under one hypothesis."""
    std = np.maximum(part.std, 1e-9)
    z = (best - part.mean) / std
    saved = below(z) - np.exp(np.minimum(part.mean - best + std**2 / 2, 50.0)) * below(z - std)
    return np.maximum(0.0, saved) * (1 - part.slow)


def gain_left(posterior: Posterior) -> float:
    """Return the expected relative improvement of one more run."""
    return float(np.max(gains(posterior), initial=0.0))


def next_runs(
    space: Space, posterior: Posterior, observations: Sequence[Observation], count: int = 1, taken: Collection[int] = (),
    scales: Scales = SCALES,
) -> list[Pick]:  # fmt: skip
    """Choose up to `count` runs among candidates that may run and were neither tried nor `taken` (running now, or refused)."""
    picks: list[Pick] = []
    believed = [Observation(row, seconds=math.exp(float(posterior.mean[row]))) for row in taken if posterior.runs[row] > 0]
    if believed:
        posterior = Posterior.of(space, [*observations, *believed], scales)
    while len(picks) < count:
        gain = gains(posterior)
        gain[list(taken)] = 0.0
        row = _most_telling(posterior, gain, scales, taken)
        if row is None:
            break
        picks.append(Pick(row, float(gain[row]), _why(posterior, row, float(gain[row]))))
        believed.append(Observation(row, seconds=math.exp(float(posterior.mean[row]))))
        if len(picks) < count:
            posterior = Posterior.of(space, [*observations, *believed], scales)
    return picks


def _most_telling(posterior: Posterior, gain: Floats, scales: Scales, taken: Collection[int]) -> int | None:
    """Return the candidate with the largest gain; among near ties, the one whose run lowers the variance of the promising ones most. Where
    no gain is above zero, the candidate with the least expected time that may run; None where there is none."""
    largest = float(np.max(gain, initial=0.0))
    if largest <= 0.0:
        possible = posterior.runs > 0
        possible[[*taken, *posterior.tried]] = False
        return int(np.argmin(np.where(possible, posterior.expected, np.inf))) if possible.any() else None
    ties = np.flatnonzero(gain >= (1 - TIE_SHARE) * largest)
    if len(ties) == 1:
        return int(ties[0])
    promising = np.argsort(-gain, kind="stable")[:PROMISING_CANDIDATES]
    shared = posterior.belief.covariance(promising)[ties]
    told = np.sum(shared**2, axis=1) / (posterior.belief.variance[ties] + scales.noise**2)
    return int(ties[int(np.argmax(cast(Floats, np.round(told, 12))))])


def _why(posterior: Posterior, row: int, gain: float) -> str:
    best = posterior.incumbent
    if best is None:
        return "the least expected time of all candidates"
    faster = float(below((best - posterior.mean[row]) / posterior.std[row])) * float(
        posterior.runs[row] * (1 - posterior.slow[row])
    )
    return f"faster than the best so far with a probability of {faster:.0%}; expected gain {gain:.2%}"
