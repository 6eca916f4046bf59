"""Hypotheses explain the measured runs by a slow mode of some of them, an effect of a trait, or chance."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.tune.belief.choice import gains
from meshwise.tune.belief.hypotheses import MAX_HYPOTHESES, Evidence, Hypothesis
from meshwise.tune.belief.posterior import COMMON_FACTOR_STD, Posterior
from meshwise.tune.belief.residual import SCALES, Kernel
from meshwise.tune.belief.risk import SLOW_MODE, risk
from support.tune_spaces import ran, space

ROWS = st.lists(st.integers(0, len(space()) - 1), min_size=1, max_size=8, unique=True)


def explained(rows: list[int], values: list[float]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses after runs that took exp(value) times as long as predicted."""
    kernel = Kernel.of(space(), space().physics, replace(SCALES, offset=COMMON_FACTOR_STD))
    chances = risk(space().traits, SLOW_MODE, [], [])[rows]
    return Evidence(kernel, space().traits, np.array(rows), np.array(values), chances).hypotheses()


@settings(max_examples=25, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 999))
def test_probabilities_add_up_and_at_least_one_run_is_usual(rows: list[int], seed: int):
    rng = np.random.default_rng(seed)
    values = rng.normal(0.1, 0.1, len(rows)) + np.where(rng.random(len(rows)) < 0.3, rng.exponential(0.9, len(rows)), 0.0)
    found = explained(rows, values.tolist())
    weights = [each.weight for each in found]
    assert math.isclose(sum(weights), 1.0)
    assert weights == sorted(weights, reverse=True)
    assert len(found) <= MAX_HYPOTHESES
    assert all(len(each.slow) < len(rows) for each in found)


def test_the_slower_a_run_among_usual_ones_the_surer_it_was_in_a_slow_mode():
    rows = list(range(0, 70, 10))
    chances = [
        sum(each.weight for each in explained(rows, [0.0] * 6 + [math.log(factor)]) if 6 in each.slow)
        for factor in (1.0, 1.3, 1.6, 2.0, 4.0)
    ]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert chances[-1] > 0.95


def test_a_gain_is_the_mean_over_hypotheses():
    """A normal distribution with the mean and variance of two separate peaks would promise another gain."""
    rows, seconds = [0, 40, 80, 120], space().seconds
    seen = [ran(row, float(seconds[row]) * factor) for row, factor in zip(rows, (1.0, 1.0, 1.0, 1.4), strict=True)]
    posterior = Posterior.of(space(), seen)
    alone = [gains(replace(posterior, parts=(replace(part, weight=1.0),))) for part in posterior.parts]
    weighted = sum((part.weight * gain for part, gain in zip(posterior.parts, alone, strict=True)), np.zeros(1))
    assert len(posterior.parts) > 1
    assert np.allclose(gains(posterior), weighted)
    assert math.isclose(sum(part.weight for part in posterior.parts), 1.0)
