"""Pools of copies for prompts and for outputs: rates, latencies and the transfer of the cache."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.serve.load.estimate import estimate, highest_rate
from meshwise.cost.serve.load.pools import (
    PromptPool,
    highest_pooled_rate,
    most_prompts,
    outputs_of,
    pooled,
    prompts_of,
    transfer_seconds,
)
from meshwise.cost.serve.load.requests import Lengths, Limits, Load
from meshwise.replay.engine.steady import simulate
from support.loads import replica

LIMITS = Limits(sequences=256, tokens=8192, cache=4e5)
LOAD = Load(prompt=Lengths(2000), output=Lengths(200), rate=2.0)


def pool(share: float = 1.0, transfer: float = 0.01) -> PromptPool:
    return PromptPool(replica(), LIMITS, share, transfer)


def test_the_slower_pool_sets_the_highest_rate() -> None:
    prompts, outputs = most_prompts(replica(), LOAD, LIMITS), highest_rate(replica(), outputs_of(LOAD, 1.0), LIMITS)
    assert highest_pooled_rate(replica(), LOAD, LIMITS, pool(0.25)) == pytest.approx(0.25 * prompts)
    assert highest_pooled_rate(replica(), LOAD, LIMITS, pool(100)) == pytest.approx(outputs)
    assert pooled(replica(), replace(LOAD, rate=1.01 * outputs), LIMITS, pool(100)) is None


def test_prompts_on_other_devices_do_not_delay_outputs() -> None:
    load = replace(LOAD, rate=10.0)
    apart, together = pooled(replica(), load, LIMITS, pool()), estimate(replica(), load, LIMITS)
    assert apart
    assert together
    assert apart.tpot.p95 < 0.7 * together.tpot.p95
    assert (apart.requests, apart.output_rate, apart.input_rate) == pytest.approx((10, 2000, 20_000))


def test_both_pools_agree_with_the_simulation_of_each() -> None:
    found = pooled(replica(), replace(LOAD, rate=8.0), LIMITS, pool(1.0, 0.0))
    prompts = simulate(replica(), prompts_of(LOAD, 8.0), LIMITS, requests=1500)
    outputs = simulate(replica(), outputs_of(LOAD, 8.0), LIMITS, requests=600)
    assert found
    assert found.ttft.p95 == pytest.approx(prompts.ttft.p95, rel=0.15)
    assert found.tpot.mean == pytest.approx(outputs.tpot.mean, rel=0.05)


def test_the_cache_of_a_prompt_arrives_before_its_first_token() -> None:
    slow, fast = (pooled(replica(), LOAD, LIMITS, pool(1.0, seconds)) for seconds in (0.5, 0.0))
    assert slow
    assert fast
    assert slow.ttft.p50 - fast.ttft.p50 == pytest.approx(0.5)
    # 2,048 tokens of 320 KiB over four links of 8 GB/s
    assert transfer_seconds(320 * 1024, 2048, 8e9, 1e-5, 4) == pytest.approx(1e-5 + 671_088_640 / 32e9)


@settings(max_examples=10, deadline=None)
@given(users=st.integers(1, 300), share=st.sampled_from((0.25, 0.5, 1.0, 3.0)), prompt=st.integers(64, 6000))
def test_users_in_both_pools_and_the_rate_obey_littles_law(users: int, share: float, prompt: int) -> None:
    load = Load(prompt=Lengths(prompt), output=Lengths(100), users=users)
    found = pooled(replica(), load, LIMITS, pool(share))
    assert found
    assert found.requests <= highest_pooled_rate(replica(), load, LIMITS, pool(share))
    assert found.requests * found.e2e.mean == pytest.approx(users, rel=0.1)
