"""Risk: the probability that a run fails or is slow because of something that it has in common with other runs.

Each trait of a layout ('pp across nodes', 'zero 1') has an unknown probability of spoiling a run, with a Beta prior; a run is spoilt if
any of its traits spoils it. The traits of a spoilt run share the blame by their probabilities, so that runs that went well with a trait
shift the blame to the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwise.cost.layout import Floats
from meshwise.tune.belief.space import ACROSS_PP, Mask

ROUNDS = 30


@dataclass(frozen=True)
class Prior:
    """Beta priors of the traits: their means, and the number of runs that a prior counts as."""

    usual: float  # mean for a trait that `means` does not name
    means: Mapping[str, float] = field(default_factory=dict[str, float])
    weight: float = 1.0


SLOW_MODE = Prior(usual=0.001, means={ACROSS_PP: 0.2})
"""Slow modes. Pipelines across nodes: 24% and 30% of nanotron's runs, none of BLOOM's. All other runs: 0.4%, and each has four or five
traits."""
BROKEN_RUN = Prior(usual=0.01)  # crashes and hangs: an assumption


def risk(traits: Mapping[str, Mask], prior: Prior, spoilt: Sequence[int], well: Sequence[int]) -> Floats:
    """Return the probability that a run of each candidate is spoilt, given the candidates of `spoilt` runs and of those that ran `well`."""
    has = np.stack(list(traits.values()), axis=1).astype(np.float64)
    means = np.array([prior.means.get(name, prior.usual) for name in traits])
    chance, at_fault = means, has[list(spoilt)]
    good = np.sum(has[list(well)], axis=0)
    for _ in range(ROUNDS if len(at_fault) else 1):
        any_spoils = 1 - np.prod(1 - at_fault * chance, axis=1, keepdims=True)
        blame = at_fault * chance / np.maximum(any_spoils, 1e-12)
        blame = np.sum(blame / np.maximum(1.0, np.sum(blame, axis=1, keepdims=True)), axis=0)
        chance = (prior.weight * means + blame) / (prior.weight + good + blame)
    return 1 - np.exp(has @ np.log1p(-chance))
