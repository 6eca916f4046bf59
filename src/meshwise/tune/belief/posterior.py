"""Posterior: what measured runs say about every candidate of a space, in closed form.

ln(seconds) is the cost model's prediction, plus its slopes times unknown coefficients, plus a residual over the axes of the layout
(`residual.py`): all normal, so that the mean and variance of every candidate follow from the runs by one small linear system. Three kinds
of run are no normal measurement:

- A run far slower than its neighbours (a slow mode: a bad route, a straggler) is taken out of that system where this explains it better
  than the system does, and counts against what it has in common with others ('pp across nodes').
- A run out of memory is a bound on its memory, whose posterior is a system of the same kind.
- A run that crashed or hung counts against what it has in common with others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from meshwise.cost.layout import Floats, Ints
from meshwise.tune.belief.hypotheses import FREEDOM, mixture
from meshwise.tune.belief.memory import fitting
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.residual import SCALES, Gaussian, Kernel, Scales
from meshwise.tune.belief.risk import BROKEN, SLOW, risk
from meshwise.tune.belief.space import Mask, Space

SLOWDOWN = 0.9
"""Mean of ln(seconds / expected seconds) of a run in a slow mode, which is distributed exponentially (nanotron on H100: 0.9 and 0.95)."""
UNKNOWN = 2.0
"""Standard deviation of the common factor of all runs, once there is one that shows it."""
SLOWER = 0.2
"""Least ln(seconds / expected seconds) of such a run."""


@dataclass(frozen=True)
class Posterior:
    """Mean and standard deviation of ln(seconds) of every candidate, and the probabilities that it runs and that it is slow."""

    space: Space
    belief: Gaussian
    mean: Floats
    std: Floats
    runs: Floats
    """Probability that a run of it neither fails nor exceeds the memory."""
    slow: Floats
    """Probability that a run of it is in a slow mode."""
    effects: dict[str, float]
    """Probability that a trait has an effect of its own that the cost model does not know; '' that none has."""
    outliers: tuple[int, ...]
    """Measured candidates whose runs were in a slow mode."""
    measured: dict[int, float]
    """Fastest ln(seconds) of each candidate that ran."""
    tried: frozenset[int]
    """Candidates of all observations."""

    @staticmethod
    def of(space: Space, observations: Sequence[Observation], scales: Scales = SCALES) -> "Posterior":
        """Return the posterior after these observations."""
        ran = [o for o in observations if o.ran]
        # the first run sets the machine's common factor, whatever the calibration expected of it
        kernel = Kernel.of(space, space.physics, replace(scales, offset=UNKNOWN) if ran else scales)
        failed = [o for o in observations if o.failure]
        rows = np.array([o.candidate for o in ran], dtype=np.int64)
        seconds = np.log([o.seconds or math.nan for o in ran])
        predicted = np.log(space.seconds)
        values = seconds - predicted[rows]
        usual = _usual(kernel, rows, values, risk(space.traits, SLOW, [], [])[rows])
        mixed = mixture(kernel, space.traits, rows[usual], values[usual])
        mean, std = predicted + mixed.mean, np.sqrt(mixed.variance + scales.noise**2)
        outliers = tuple(dict.fromkeys(rows[~usual].tolist()))
        slow = risk(space.traits, SLOW, rows[~usual].tolist(), rows[usual].tolist())
        broken = risk(space.traits, BROKEN, [o.candidate for o in failed if o.failure != "oom"], rows.tolist())
        runs = fitting(space, observations) * (1 - broken)
        measured: dict[int, float] = {}
        for row, value in zip(rows.tolist(), seconds.tolist(), strict=True):
            measured[row] = min(value, measured.get(row, math.inf))
        for row, value in measured.items():  # what a candidate did itself counts, whatever its neighbours do
            mean[row], std[row], slow[row], runs[row] = value, min(std[row], scales.noise), 0.0, 1.0
        for observation in failed:
            if observation.candidate not in measured:
                runs[observation.candidate] = 0.0
        return Posterior(
            space,
            mixed.belief,
            mean,
            std,
            runs,
            slow,
            mixed.weights,
            outliers,
            measured,
            frozenset(o.candidate for o in observations),
        )

    @cached_property
    def expected(self) -> Floats:
        """Expected ln(seconds), slow modes included."""
        return self.mean + self.slow * SLOWDOWN

    @property
    def incumbent(self) -> float | None:
        """ln(seconds) of the fastest run so far; None where nothing has run."""
        return min(self.measured.values(), default=None)

    def best(self) -> int:
        """Return the fastest candidate that ran; the most promising one where none has."""
        if self.measured:
            return min(self.measured, key=lambda row: (self.measured[row], row))
        return int(np.argmin(self.expected - np.log(np.maximum(self.runs, 1e-9))))

    def interval(self, row: int, level: float = 0.9) -> tuple[float, float]:
        """Return the seconds between which a run of this candidate lies with this probability, slow modes aside."""
        half = NormalDist().inv_cdf((1 + level) / 2) * float(self.std[row])
        return math.exp(float(self.mean[row]) - half), math.exp(float(self.mean[row]) + half)


def _student(value: Floats, square: Floats, freedom: float) -> Floats:
    """Return the logarithm of the density of Student's distribution, with this square of its scale."""
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return constant - 0.5 * np.log(square) - (freedom + 1) / 2 * np.log1p(value**2 / (freedom * square))


def _usual(kernel: Kernel, rows: Ints, values: Floats, slow: Floats) -> Mask:
    """Return which runs are normal measurements. The run that a slow mode explains best is taken out first, until none is left that the
    others do not explain better."""
    usual = np.ones(len(rows), dtype=bool)
    if not len(rows):
        return usual
    shared = kernel.among(rows) + kernel.noise**2 * np.eye(len(rows))
    while usual.sum() > 1:  # of a single run, nobody knows whether it was slow or the machine is
        inside = np.flatnonzero(usual)
        inverse = np.linalg.inv(shared[np.ix_(inside, inside)])
        variance = 1 / np.diag(inverse)
        beyond = variance * (inverse @ values[inside])  # by how much each run exceeds what the other runs predict for it
        freedom = FREEDOM + len(inside) - 2
        others = float(values[inside] @ inverse @ values[inside]) - beyond**2 / variance
        normal = _student(beyond, variance * (FREEDOM + others) / freedom, freedom)
        in_mode = np.log(slow[inside] / (1 - slow[inside])) - np.log(SLOWDOWN) - (beyond - SLOWER) / SLOWDOWN
        odds = np.where(beyond > SLOWER, in_mode - normal, -np.inf)
        worst = int(np.argmax(odds))
        if odds[worst] <= 0:
            break
        usual[inside[worst]] = False
    return usual
