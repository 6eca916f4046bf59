"""Lengths of requests, what an engine admits, percentiles and latency targets."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cost.serve.load.requests import (
    Lengths,
    Limits,
    Load,
    Percentiles,
    Report,
    Target,
    Targets,
    gaps,
    percentiles,
    weighted,
)


@given(mean=st.integers(1, 30_000), spread=st.sampled_from((0.0, 0.3, 1.0)), number=st.integers(1, 400))
def test_drawn_lengths_have_the_mean_that_was_asked_for(mean: int, spread: float, number: int) -> None:
    drawn = Lengths(mean, spread).draw(random.Random(1), number)
    assert len(drawn) == number
    assert min(drawn) >= 1
    assert sum(drawn) / number == pytest.approx(mean, abs=1.0)
    assert (len(set(drawn)) == 1) or spread


def test_lengths_of_a_file_are_drawn_from_it() -> None:
    lengths = Lengths.of([100, 200, 300])
    assert (lengths.mean, lengths.fixed) == (200, False)
    assert lengths.spread == pytest.approx(math.sqrt(2 / 3) / 2)
    assert lengths.biased > lengths.mean


def test_times_between_arrivals_have_the_rate_and_the_burst() -> None:
    for burst in (0.5, 1.0, 2.0):
        times = gaps(random.Random(2), 20_000, 5.0, burst)
        assert sum(times) / len(times) == pytest.approx(0.2)
        deviation = math.sqrt(sum((time - 0.2) ** 2 for time in times) / len(times))
        assert deviation / 0.2 == pytest.approx(burst, rel=0.1)


def test_an_engine_that_reserves_outputs_admits_fewer() -> None:
    """100,000 tokens: 1,000 + 500 of a request that is half done on average, or 1,000 + 1,000 where the output is reserved."""
    load = Load(prompt=Lengths(1000), output=Lengths(1000), users=1)
    assert Limits(sequences=256, tokens=2048, cache=100_000).running(load) == pytest.approx(66.7, abs=0.1)
    assert Limits(sequences=256, tokens=2048, cache=100_000, reserves=True).running(load) == pytest.approx(50)
    assert Limits(sequences=32, tokens=2048, cache=100_000).running(load) == 32


def test_a_shared_prefix_is_stored_and_computed_once() -> None:
    load = Load(prompt=Lengths(1000), output=Lengths(100), users=1, prefix=0.6)
    assert load.computed == pytest.approx(400)
    assert Limits(sequences=1000, tokens=2048, cache=9_600).running(load) == pytest.approx(20)


def test_speculative_decoding_gains_the_tokens_up_to_the_first_rejected_one() -> None:
    load = Load(prompt=Lengths(10), output=Lengths(101), users=1, draft=3, accept=0.7)
    assert load.gained == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert load.steps == pytest.approx(100 / 2.533)


def test_percentiles_of_equal_and_of_weighted_values_agree() -> None:
    values = [float(value) for value in range(1, 101)]
    equal = percentiles(values)
    assert (equal.mean, equal.p50) == pytest.approx((50.5, 51))
    assert equal.p95 in (95, 96)
    assert weighted([(value, 2.0) for value in values]).p99 == 99
    assert weighted([(1.0, 99.0), (9.0, 1.0)]) == Percentiles(1.08, 1.0, 1.0, 1.0)


def report(ttft: float, tpot: float) -> Report:
    one, other = Percentiles(ttft, ttft, ttft, ttft), Percentiles(tpot, tpot, tpot, tpot)
    return Report(
        requests=1, output_rate=1, input_rate=1, running=1, waiting=0, ttft=one, tpot=other, itl=other, e2e=one.plus(other)
    )


def test_the_worst_target_decides() -> None:
    targets = Targets(ttft=Target(1.0), tpot=Target(0.04, "p99"))
    assert targets.missed(report(0.5, 0.02)) == 1
    assert targets.missed(report(2.0, 0.2)) == pytest.approx(5)
    assert Targets().missed(report(9.0, 9.0)) == 1
