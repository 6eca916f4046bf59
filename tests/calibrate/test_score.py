"""Statistics that all scores share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from meshwise.calibrate.score import mean, quantile, spearman

values = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=3, max_size=40)


@given(values)
def test_rank_correlation_is_spearmans_with_ties(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    if np.ptp(a) and np.ptp(b):
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)  # pyright: ignore
        assert spearman(np.exp(a / 10), b) == pytest.approx(spearman(a, b))  # only the order counts
    else:
        assert spearman(a, b) is None


def test_the_quantile_of_few_draws_is_conservative() -> None:
    """Of 9 draws the 90% quantile is the largest, ceil(10 x 0.9) = 9; of 99 it is the 90th."""
    assert quantile(np.arange(1.0, 10.0), 0.9) == 9
    assert quantile(np.arange(1.0, 100.0), 0.9) == 90


def test_the_mean_of_no_values_is_none() -> None:
    assert mean([]) is None
    assert mean([1.0, 2.0]) == 1.5
