"""Hypotheses: that one trait of a layout ('pp across nodes', 'compile yes') has an effect of its own on this machine, which may be large.

Under each hypothesis, as under none, the distribution of all candidates is known in closed form, and so is the probability of the measured
runs. The posterior is the mean over the hypotheses, weighted by that probability. So an effect that no formula knows is believed as soon as
two runs with a trait and two without it agree on it better than chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwise.cost.layout import Floats, Ints
from meshwise.tune.belief.residual import Gaussian, Kernel
from meshwise.tune.belief.space import Mask

UNKNOWN_EFFECT = 0.1
"""Probability, before any run, that a machine or program has a large effect that the cost model does not know."""
EFFECT = 0.3
"""Standard deviation of ln(seconds) of such an effect."""
FREEDOM = 3.0
"""Runs that the prior of the variance of residuals counts as: between groups of the built-in tables, it differs by a factor of 5 either
way."""
FEWEST = 2
"""Runs with a trait, and without it, that tell its effect from what is peculiar to one run."""
NEGLIGIBLE = 0.01
"""A hypothesis with less than this weight is left out of the mean."""


@dataclass(frozen=True)
class Mixture:
    """The mean over hypotheses: mean and variance of ln(measured / predicted) of every candidate."""

    mean: Floats
    variance: Floats
    weights: dict[str, float]
    """Probability of each hypothesis, '' for none."""
    belief: Gaussian
    """The distribution under the most probable hypothesis."""


def mixture(kernel: Kernel, traits: Mapping[str, Mask], rows: Ints, values: Floats) -> Mixture:
    """Return the mean over hypotheses, given ln(measured / predicted) of runs of some rows."""
    noise = np.full(len(rows), kernel.noise)
    kernels = {"": kernel} | {
        name: kernel.with_effect(EFFECT * mask)
        for name, mask in traits.items()
        if FEWEST <= np.sum(mask[rows]) <= len(rows) - FEWEST
    }
    prior = {name: UNKNOWN_EFFECT / max(1, len(kernels) - 1) if name else 1 - UNKNOWN_EFFECT for name in kernels}
    evidence = {name: np.log(prior[name]) + _evidence(each, rows, values) for name, each in kernels.items()}
    most = max(evidence.values())
    likely = {name: float(np.exp(value - most)) for name, value in evidence.items()}
    total = sum(likely.values())
    weights = {name: value / total for name, value in likely.items() if value / total >= NEGLIGIBLE}
    weights = {name: value / sum(weights.values()) for name, value in weights.items()}
    beliefs = {name: Gaussian.of(kernels[name], rows, values, noise) for name in weights}
    mean = sum((weights[name] * each.mean for name, each in beliefs.items()), np.zeros(1))
    variance = sum(
        (
            weights[name] * (spread(each.misfit, len(rows)) * each.variance + (each.mean - mean) ** 2)
            for name, each in beliefs.items()
        ),
        np.zeros(1),
    )
    return Mixture(mean, variance, weights, beliefs[max(weights, key=lambda name: weights[name])])


def spread(misfit: float, runs: int) -> float:
    """Return the factor on the variance of a machine's residuals that its runs tell: the mean under an inverse gamma prior. One run tells
    the common factor alone."""
    return (FREEDOM + misfit) / (FREEDOM + runs - 1) if runs > 1 else 1.0


def _evidence(kernel: Kernel, rows: Ints, values: Floats) -> float:
    """Return the logarithm of the probability of the runs, for an unknown variance of residuals, up to a constant."""
    if len(rows) < 2:
        return 0.0
    lower = np.linalg.cholesky(kernel.among(rows) + kernel.noise**2 * np.eye(len(rows)))
    whitened = np.linalg.solve(lower, values)
    return -float(np.sum(np.log(np.diag(lower)))) - (FREEDOM + len(rows) - 1) / 2 * float(np.log(FREEDOM + whitened @ whitened))
