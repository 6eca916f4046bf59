"""Intervals are honest: of rows that neither the fit nor the interval has seen, about nine of ten lie in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.calibrate.train import intervals
from meshwise.calibrate.train.validate import validate
from meshwise.catalogue.calibrations import Calibration
from meshwise.cost import interval
from meshwise.errors import UserError


@pytest.mark.parametrize(
    "table",
    [pytest.param("bloom_prequel", marks=pytest.mark.slow), "nanotron_h100_small", "korthikanti2022_iteration"],
)
def test_nine_of_ten_rows_of_groups_left_out_lie_in_their_interval(table: str) -> None:
    """The other two tables take minutes: benchmarks/accuracy/coverage.py has all of them."""
    covered = validate(table, leave_out="group").score["time"]["coverage"]
    assert 0.85 <= covered <= 0.95


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=400), st.integers(0, 2**31))
def test_an_interval_always_contains_its_prediction(errors: list[float], seed: int) -> None:
    waits = np.random.default_rng(seed).random(len(errors))
    edges, low, high = intervals.bins(np.array(errors), waits)
    c = Calibration(waiting=edges, low=low, high=high)
    down, up = interval.factors(c, waits, np.ones(len(waits)))
    assert np.all(down <= 1)
    assert np.all(up >= 1)


def test_intervals_cover_new_draws_of_the_same_distribution() -> None:
    """Errors that grow with waiting, of which the interval learns from one half and is judged on the other."""
    dice = np.random.default_rng(0)
    waits = dice.random(2000)
    errors = dice.normal(size=2000) * (0.02 + 0.3 * waits)
    edges, low, high = intervals.bins(errors[:1000], waits[:1000])
    c = Calibration(waiting=edges, low=low, high=high)
    down, up = interval.factors(c, waits[1000:], np.ones(1000))
    inside = (np.exp(errors[1000:]) >= down) & (np.exp(errors[1000:]) <= up)
    assert 0.87 <= np.mean(inside) <= 0.93
    assert high[-1] > 3 * high[0]  # where devices mostly wait, intervals are wider


def test_a_file_with_bounds_that_do_not_match_its_ranges_is_refused() -> None:
    with pytest.raises(UserError, match="one number more than 'waiting'"):
        Calibration(waiting=(0.5,), low=(0.1,), high=(0.1,))
