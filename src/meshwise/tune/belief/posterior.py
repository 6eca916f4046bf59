"""Posterior: what measured runs say about every candidate of a space, in closed form.

ln(seconds) is the cost model's prediction, plus its slopes times unknown coefficients, plus a residual over the axes of the layout
(`residual.py`): all normal, so that the mean and variance of every candidate follow from the runs by one small linear system. Four kinds
of run are no normal measurement:

- A run far slower than its neighbours may have been in a slow mode (`hypotheses.py`). As far as that is probable, it is left out of that
  system, and counts against what it has in common with others ('pp across nodes').
- A run in a known mode of its calibration (`meshwise.cost.modes`) is left out, counts the same way, and may be repeated.
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
from meshwise.tune.belief.hypotheses import MEAN_LOG_SLOWDOWN, Evidence, Hypothesis, spread
from meshwise.tune.belief.memory import fitting
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.residual import SCALES, Gaussian, Kernel, Scales
from meshwise.tune.belief.risk import BROKEN_RUN, SLOW_MODE, risk
from meshwise.tune.belief.space import Space

COMMON_FACTOR_STD = 2.0  # standard deviation of the common factor of all runs, once there is one that shows it


@dataclass(frozen=True)
class Part:
    """The distribution of every candidate under one hypothesis."""

    weight: float
    mean: Floats
    std: Floats
    slow: Floats


@dataclass(frozen=True)
class Posterior:
    """Mean and standard deviation of ln(seconds) of every candidate, and the probabilities that it runs and that it is slow."""

    space: Space
    parts: tuple[Part, ...]  # the hypotheses that explain the runs, whose mean is `mean`
    belief: Gaussian  # the distribution under the most probable hypothesis
    mean: Floats
    std: Floats
    runs: Floats  # probability that a run of it neither fails nor exceeds the memory
    slow: Floats  # probability that a run of it is in a slow mode
    effects: dict[str, float]
    """Probability that a trait has an effect of its own that the cost model does not know; '' that none has."""
    outliers: tuple[int, ...]  # measured candidates whose runs were probably in a slow mode
    measured: dict[int, float]  # fastest ln(seconds) of each candidate that ran
    tried: frozenset[int]  # candidates of all observations

    @staticmethod
    def of(space: Space, observations: Sequence[Observation], scales: Scales = SCALES) -> "Posterior":
        """Return the posterior after these observations."""
        ran = [o for o in observations if o.ran and not o.faulty]
        faulty = [o.candidate for o in observations if o.faulty]
        # the first run sets the machine's common factor, whatever the calibration expected of it
        kernel = Kernel.of(space, space.physics, replace(scales, offset=COMMON_FACTOR_STD) if ran else scales)
        failed = [o for o in observations if o.failure]
        rows = np.array([o.candidate for o in ran], dtype=np.int64)
        seconds = np.log([o.seconds or math.nan for o in ran])
        predicted = np.log(space.seconds)
        evidence = Evidence(kernel, space.traits, rows, seconds - predicted[rows], risk(space.traits, SLOW_MODE, [], [])[rows])
        hypotheses = evidence.hypotheses()
        beliefs = [evidence.belief(each) for each in hypotheses]
        parts = tuple(
            _part(space, rows, predicted, each, belief, scales, faulty) for each, belief in zip(hypotheses, beliefs, strict=True)
        )
        mean, std, slow = _mixed(parts)
        suspected = [sum(each.weight for each in hypotheses if run in each.slow) for run in range(len(rows))]
        broken = risk(space.traits, BROKEN_RUN, [o.candidate for o in failed if o.failure != "oom"], rows.tolist())
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
            space, parts, beliefs[0], mean, std, runs, slow, _effects(hypotheses),
            tuple(dict.fromkeys(row for row, chance in zip(rows.tolist(), suspected, strict=True) if chance > 0.5)), measured,
            frozenset(o.candidate for o in observations if not o.faulty),
        )  # fmt: skip

    @cached_property
    def expected(self) -> Floats:
        """Expected ln(seconds), slow modes included."""
        return self.mean + self.slow * MEAN_LOG_SLOWDOWN

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


def _part(
    space: Space, rows: Ints, predicted: Floats, hypothesis: Hypothesis, belief: Gaussian, scales: Scales, faulty: Sequence[int]
) -> Part:
    """Return the distribution of every candidate under a hypothesis about the runs of some rows, and after runs that were `faulty`."""
    usual = [row for run, row in enumerate(rows.tolist()) if run not in hypothesis.slow]
    variance = spread(belief.misfit, len(usual)) * belief.variance + scales.noise**2
    slow = risk(space.traits, SLOW_MODE, [*rows[list(hypothesis.slow)].tolist(), *faulty], usual)
    return Part(hypothesis.weight, predicted + belief.mean, np.sqrt(variance), slow)


def _effects(hypotheses: Sequence[Hypothesis]) -> dict[str, float]:
    """Return the probability of each effect of a trait."""
    found: dict[str, float] = {}
    for each in hypotheses:
        found[each.trait] = found.get(each.trait, 0.0) + each.weight
    return found


def _mixed(parts: Sequence[Part]) -> tuple[Floats, Floats, Floats]:
    """Return mean, standard deviation and probability to be slow over all hypotheses."""
    mean = sum((part.weight * part.mean for part in parts), np.zeros(1))
    square = sum((part.weight * (part.std**2 + (part.mean - mean) ** 2) for part in parts), np.zeros(1))
    return mean, np.sqrt(square), sum((part.weight * part.slow for part in parts), np.zeros(1))
