"""The learning rate: defaults near published recipes, and a course that rises and falls as its schedule says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.contract.recipe import default_rate, default_warm_up, rate_at
from meshwise.workers.trainer.contract.settings import LR_SCHEDULES
from support.tiny_runs import PLAIN

PUBLISHED = {7e9: 3e-4, 70e9: 1.5e-4, 405e9: 8e-5, 37e9: 2.2e-4, 1.3e9: 4e-4}
"""Peak rates of Llama 2, Llama 3.1, DeepSeek V3 and OLMoE by active parameters."""
LONG = 10**6


def test_the_default_rate_is_near_published_ones_and_never_above_the_highest() -> None:
    shares = {params: default_rate(params, LONG) / rate for params, rate in PUBLISHED.items()}
    assert {params: share for params, share in shares.items() if not 0.7 < share < 1.4} == {}
    assert default_rate(3.4e6, LONG) == default_rate(1e3, LONG) == 3e-3


@given(st.floats(1e3, 1e13), st.integers(1, 10**7))
def test_larger_models_have_lower_rates_and_a_warm_up_is_a_part_of_the_run(params: float, steps: int) -> None:
    assert default_rate(2 * params, steps) <= default_rate(params, steps)
    assert 1 <= default_warm_up(params, steps) <= max(5, steps // 4)
    assert default_warm_up(params, steps) <= 2000


@given(st.floats(1e3, 1e13), st.integers(1, 125))
def test_a_run_of_half_the_steps_rises_as_fast_but_no_higher(params: float, steps: int) -> None:
    half, whole = (default_rate(params, length) for length in (steps, 2 * steps))
    assert half <= whole <= default_rate(params, LONG)
    # rates have two digits
    assert half / default_warm_up(params, steps) == pytest.approx(whole / default_warm_up(params, 2 * steps), rel=0.11)


@given(st.sampled_from(LR_SCHEDULES), st.integers(0, 50), st.integers(1, 300))
def test_a_rate_rises_to_its_peak_and_never_rises_again(schedule: str, warmup: int, after: int) -> None:
    settings = replace(PLAIN, lr=0.5, warmup=warmup, steps=warmup + after, lr_schedule=schedule)
    rates = [rate_at(settings, step) for step in range(settings.steps)]
    assert all(0 < rate <= 0.5 for rate in rates)
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[warmup] == pytest.approx(0.5)


def test_schedules_end_as_they_say() -> None:
    ends = {name: rate_at(replace(PLAIN, lr=1.0, warmup=0, steps=1000, lr_schedule=name), 999) for name in LR_SCHEDULES}
    assert ends == pytest.approx({"cosine": 0.1, "wsd": 0.005, "linear": 0.001}, rel=1e-3)
    assert rate_at(replace(PLAIN, lr=1.0, warmup=0, steps=1000, lr_schedule="wsd"), 799) == 1.0
