"""Hypotheses: what explains the measured runs of a machine, beside the residual that every machine has.

- One trait of a layout ('pp across nodes', 'compile yes') has an effect of its own, which may be large. So an effect that no formula knows
  is believed as soon as two runs with a trait and two without it agree on it better than chance.
- Some runs were in a slow mode (a bad route, a straggler), and say nothing about their neighbours' times.

Under each hypothesis, the distribution of all candidates is known in closed form, and so is the probability of the measured runs. What is
believed is the mean over hypotheses, weighted by that probability.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshwise.cost.layout import Floats, Ints
from meshwise.tune.belief.residual import Gaussian, Kernel
from meshwise.tune.belief.space import Mask

UNKNOWN_EFFECT_PROBABILITY = 0.1
"""Probability, before any run, that a machine or program has a large effect that the cost model does not know."""
EFFECT_STD = 0.3  # standard deviation of ln(seconds) of such an effect
PRIOR_RUNS = 3.0
"""Runs that the prior of the variance of residuals counts as: between groups of the built-in tables, it differs by a factor of 5 either
way."""
MIN_RUNS_PER_TRAIT = 2  # runs with a trait, and without it, that tell its effect from what is peculiar to one run
NEGLIGIBLE_WEIGHT_SHARE = 0.01  # a hypothesis with less than this share of the largest weight is left out of the mean
MEAN_LOG_SLOWDOWN = 0.9
"""Mean of ln(seconds / expected seconds) of a run in a slow mode, which is distributed exponentially (nanotron on H100: 0.9 and 0.95)."""
MIN_LOG_SLOWDOWN = 0.2  # least ln(seconds / expected seconds) of such a run
MAX_HYPOTHESES = 8  # hypotheses whose mean is taken: the most probable ones
BEAM_SIZE = 4  # sets of slow runs, the most probable ones of each size, to which one more run is added


@dataclass(frozen=True)
class Hypothesis:
    """One explanation of the measured runs, with its probability."""

    slow: frozenset[int]  # runs in a slow mode, by their position among the measured ones
    trait: str  # the trait that has an effect of its own; '' for none
    weight: float


@dataclass
class Evidence:
    """The probability of measured runs, given as ln(measured / predicted) of some rows, under each hypothesis."""

    kernel: Kernel
    traits: Mapping[str, Mask]
    rows: Ints
    values: Floats
    risk: Floats  # probability of each run, before it is measured, to be in a slow mode
    shared: Floats = field(init=False)  # covariance of the runs where no trait has an effect

    def __post_init__(self) -> None:
        self.shared = self.kernel.among(self.rows) + self.kernel.noise**2 * np.eye(len(self.rows))

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Return the hypotheses that are not negligible, the most probable one first. Sets of slow runs grow by one run at a time; of a
        single run, nobody knows whether it was slow or the machine is."""
        found: dict[frozenset[int], dict[str, float]] = {frozenset(): self._logs(frozenset())}
        sizes = [frozenset[int]()]
        while sizes and len(sizes[0]) < len(self.rows) - 1:
            more = {grown for slow in sizes for grown in self._grown(slow)}
            logs = {slow: self._logs(slow) for slow in more}
            found |= logs
            sizes = sorted(logs, key=lambda slow: -max(logs[slow].values()))[:BEAM_SIZE]
        flat = [(value, slow, trait) for slow, by_trait in found.items() for trait, value in by_trait.items()]
        most = max(value for value, _, _ in flat)
        kept = [
            (math.exp(value - most), slow, trait)
            for value, slow, trait in flat
            if value - most >= math.log(NEGLIGIBLE_WEIGHT_SHARE)
        ]
        kept = sorted(kept, key=lambda each: -each[0])[:MAX_HYPOTHESES]
        total = sum(weight for weight, _, _ in kept)
        return tuple(Hypothesis(slow, trait, weight / total) for weight, slow, trait in kept)

    def _grown(self, slow: frozenset[int]) -> list[frozenset[int]]:
        """Return a set of slow runs with one more each: those that are slower than the others predict."""
        inside = self._usual(slow)
        inverse = np.linalg.inv(self.shared[np.ix_(inside, inside)])
        beyond = inverse @ self.values[inside] / np.diag(inverse)
        return [slow | {int(run)} for run in inside[beyond > MIN_LOG_SLOWDOWN]]

    def _usual(self, slow: frozenset[int]) -> Ints:
        return np.array([run for run in range(len(self.rows)) if run not in slow], dtype=np.int64)

    def _logs(self, slow: frozenset[int]) -> dict[str, float]:
        """Return the log probability that these runs are slow, and of all measurements, by trait that may have an effect."""
        inside = self._usual(slow)
        columns: dict[str, Floats] = {"": np.zeros(len(self.rows))}
        for name, mask in self.traits.items():
            if MIN_RUNS_PER_TRAIT <= np.sum(mask[self.rows[inside]]) <= len(inside) - MIN_RUNS_PER_TRAIT:
                columns[name] = EFFECT_STD * mask[self.rows]
        prior = np.sum(np.log1p(-self.risk[inside])) + sum(math.log(self.risk[run]) for run in slow)
        each = {
            name: UNKNOWN_EFFECT_PROBABILITY / (len(columns) - 1) if name else 1 - UNKNOWN_EFFECT_PROBABILITY for name in columns
        }
        return {
            name: float(prior)
            + math.log(each[name])
            + self._log(inside, np.array(sorted(slow), dtype=np.int64), self.shared + np.outer(column, column))
            for name, column in columns.items()
        }

    def _log(self, inside: Ints, slow: Ints, shared: Floats) -> float:
        """Return the log probability of normal runs, for an unknown variance of residuals, and of how far slow ones exceed them."""
        if not len(inside):
            return 0.0
        lower = np.linalg.cholesky(shared[np.ix_(inside, inside)])
        whitened = np.linalg.solve(lower, self.values[inside])
        beyond = self.values[slow] - np.linalg.solve(lower, shared[np.ix_(inside, slow)]).T @ whitened
        if np.any(beyond <= MIN_LOG_SLOWDOWN):
            return -math.inf
        in_mode = -float(np.sum(beyond - MIN_LOG_SLOWDOWN)) / MEAN_LOG_SLOWDOWN - len(slow) * math.log(MEAN_LOG_SLOWDOWN)
        return in_mode + log_density(lower, whitened)

    def belief(self, hypothesis: Hypothesis) -> Gaussian:
        """Return ln(measured / predicted) of every candidate under a hypothesis, given the runs that are not slow under it."""
        inside = self._usual(hypothesis.slow)
        effect = self.traits.get(hypothesis.trait)
        kernel = self.kernel if effect is None else self.kernel.with_effect(EFFECT_STD * effect)
        return Gaussian.of(kernel, self.rows[inside], self.values[inside], np.full(len(inside), kernel.noise))


def log_density(lower: Floats, whitened: Floats) -> float:
    """Return the logarithm of the probability density of runs for an unknown variance of residuals: Student's distribution, up to a
    constant of the common factor, which one run tells. `lower`: root of their covariance; `whitened`: their values in its units."""
    told = len(whitened) - 1
    freedom = PRIOR_RUNS + told
    constant = math.lgamma(freedom / 2) - math.lgamma(PRIOR_RUNS / 2) - told / 2 * math.log(PRIOR_RUNS * math.pi)
    misfit = float(whitened @ whitened)
    return constant - float(np.sum(np.log(np.diag(lower)))) - freedom / 2 * math.log1p(misfit / PRIOR_RUNS)


def spread(misfit: float, runs: int) -> float:
    """Return the factor on the variance of a machine's residuals: the mean under an inverse gamma prior; one run tells nothing of it."""
    return (PRIOR_RUNS + misfit) / (PRIOR_RUNS + runs - 1) if runs > 1 else 1.0
