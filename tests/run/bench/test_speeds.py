"""Rates and latencies compared with calculations by hand, and whether two measurements differ."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.run.bench.speeds import Measured, Setting, differ, quantile, run_of, tokens_of
from meshwise.run.bench.stream import Reply

ONE = Reply(begun=10.0, ended=11.1, arrivals=(10.5, 10.6, 10.7, 10.8, 10.9), text_bytes=20, claimed=5, prompt=100)


def test_the_rates_of_one_request_match_a_calculation_by_hand() -> None:
    """Five tokens: the first after 0.5 s, four more in 0.4 s. So 10 a second, and a prompt of 100 in 0.5 s."""
    run = run_of([ONE], Setting(prompt=100, output=5, users=1))
    assert (run.decode, run.per_user, run.prefill) == pytest.approx((10.0, 10.0, 200.0))
    assert run.with_prompts == pytest.approx(5 / 0.9)
    assert (run.first, run.tokens, run.notes) == (pytest.approx((0.5,)), 5, ())
    assert run.gaps == pytest.approx((0.1,) * 4)


def test_the_combined_rate_counts_while_all_requests_are_served() -> None:
    """The second begins to get tokens at 10.65: from there to 10.9 three of the first and three of the second come in 0.25 s."""
    other = replace(ONE, arrivals=(10.65, 10.75, 10.85, 10.9, 11.2))
    run = run_of([ONE, other], Setting(prompt=100, output=5, users=2))
    assert run.decode == pytest.approx(6 / 0.25)
    assert run.prefill == pytest.approx(200 / 0.65)
    apart = run_of([ONE, replace(ONE, arrivals=(12.0, 12.1, 12.2, 12.3, 12.4))], Setting(prompt=100, output=5, users=2))
    assert apart.decode == apart.with_prompts == pytest.approx(10 / 2.4)
    assert any("hardly ever" in note for note in apart.notes)


@pytest.mark.parametrize(
    ("claimed", "asked", "tokens", "words"),
    [
        (5, 5, 5, ""),
        (8, 8, 8, ""),  # several tokens in one event, as engines that speculate send them
        (None, 5, 5, "reports no token count"),
        (3, 5, 5, "claims 3 tokens but sent 5 events"),
        (500, 5, 5, "claims 500 tokens"),
        (50, 100, 5, "claims 50 tokens for 20 bytes"),
    ],
)
def test_an_impossible_token_count_is_rejected(claimed: int | None, asked: int, tokens: int, words: str) -> None:
    seen, told = tokens_of(replace(ONE, claimed=claimed), asked)
    assert seen == tokens
    assert words in told
    assert bool(words) == bool(told)


def test_doubtful_measurements_have_notes() -> None:
    """A prompt that was kept, an engine whose clock differs, an output that ended early."""
    off = replace(ONE, timings={"predicted_ms": 200.0, "predicted_per_second": 25.0, "prompt_per_second": 300.0}, cached=64)
    run = run_of([off], Setting(prompt=100, output=9, users=1))
    told = " ".join(run.notes)
    assert "prompt cache hit" in told
    assert "the engine reports 0.2 s of generation, the client measured 0.4 s" in told
    assert "ended early, the shortest after 5 tokens" in told
    assert (run.engine_decode, run.engine_prefill) == (25.0, 300.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_equal_those_of_numpy(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-9)


def test_repeats_tell_whether_two_setups_differ() -> None:
    change, chance, sure = differ([100, 101, 99], [110, 111, 109])
    assert (change, sure) == (pytest.approx(0.1), True)
    assert 0 < chance < 0.05
    assert not differ([100, 120, 80], [110, 130, 90])[2]
    assert not differ([100], [200])[2]


def test_a_setting_that_did_not_run_has_no_values() -> None:
    lost = Measured(setting=Setting(prompt=1, output=2, users=1), runs=(), faults={"x": 1})
    assert (lost.median("decode"), lost.percentiles("gaps"), lost.spread("decode")) == (None, (), 0.0)
