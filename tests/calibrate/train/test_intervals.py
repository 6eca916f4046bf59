"""Intervals are honest: of rows that neither the fit nor the interval has seen, about nine of ten lie in them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.calibrate.serve.validate import validate_serve
from meshwise.calibrate.train import intervals
from meshwise.calibrate.train.validate import validate
from meshwise.catalogue.calibrations import Calibration
from meshwise.cost import interval
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.errors import UserError


@pytest.mark.parametrize("table", ["bloom_prequel", "nanotron_h100_small", "korthikanti2022_iteration"])
def test_nine_of_ten_rows_of_groups_left_out_lie_in_their_interval(table: str) -> None:
    """The other two tables take minutes: benchmarks/coverage.py has all of them."""
    covered = validate(table, leave_out="group").score["time"]["coverage"]
    assert 0.85 <= covered <= 0.95


def test_served_models_lie_in_the_intervals_that_plans_print() -> None:
    found = validate_serve("xiongjiedai_llama3_bench").score
    assert 0.85 <= found["decode"]["coverage"] <= 1.0
    assert 0.85 <= found["prefill"]["coverage"] <= 1.0


def test_the_quantile_of_few_draws_is_on_the_safe_side() -> None:
    """Of 9 draws the 90% quantile is the largest, ceil(10 x 0.9) = 9; of 99 it is the 90th."""
    assert intervals.quantile(np.arange(1.0, 10.0), 0.9) == 9
    assert intervals.quantile(np.arange(1.0, 100.0), 0.9) == 90


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=400), st.integers(0, 2**31))
def test_an_interval_always_holds_its_prediction(errors: list[float], seed: int) -> None:
    waits = np.random.default_rng(seed).random(len(errors))
    edges, low, high = intervals.bins(np.array(errors), waits)
    c = Calibration(waiting=edges, low=low, high=high)
    down, up = interval.factors(c, waits, np.ones(len(waits)))
    assert np.all(down <= 1)
    assert np.all(up >= 1)


def test_draws_of_the_same_kind_are_covered() -> None:
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


def test_more_devices_than_any_row_had_widen_it() -> None:
    c = replace(Calibration(), devices=64.0)
    parts = dict.fromkeys(TRAIN_PARTS, 0.0) | {"matmul": 1.0}
    inside, beyond = interval.step(c, parts, 64), interval.step(c, parts, 1024)
    assert inside == pytest.approx((math.exp(-0.16), math.exp(0.35)))
    assert beyond[1] == pytest.approx(math.exp(math.hypot(0.35, 4 * 0.03)))  # four doublings
    assert beyond[0] < inside[0]


def test_a_file_with_bounds_that_do_not_match_its_ranges_is_refused() -> None:
    with pytest.raises(UserError, match="one number more than 'waiting'"):
        Calibration(waiting=(0.5,), low=(0.1,), high=(0.1,))
