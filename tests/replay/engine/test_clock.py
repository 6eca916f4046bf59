"""What must hold of a simulated deployment, whatever the traffic."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.serve.load.requests import Lengths, Limits, Load, gaps
from meshwise.cost.serve.passes.speed import Batch
from meshwise.replay.engine.cache import Tiers
from meshwise.replay.engine.clock import Clock, Engine, Fleet
from meshwise.replay.engine.copy import Shape
from meshwise.replay.engine.policy import Policy
from meshwise.replay.engine.record import Record, quantile
from meshwise.replay.engine.router import ROUTERS
from meshwise.replay.engine.times import PassTimes
from meshwise.replay.traces.made import make
from meshwise.replay.traces.request import Request
from support.loads import replica

ROOMY = Limits(sequences=256, tokens=8192, cache=1e6)
TIMES = PassTimes(replica())
ENGINE = Engine(times=TIMES, limits=ROOMY, block=512)


def poisson(number: int, rate: float, seed: int = 0, prompt: float = 1000, output: float = 100) -> list[Request]:
    """Requests of random lengths that arrive at random."""
    rng = random.Random(seed)
    lengths = zip(Lengths(prompt, 0.8).draw(rng, number), Lengths(output, 0.8).draw(rng, number), strict=True)
    at, found = 0.0, list[Request]()
    for gap, (p, o) in zip(gaps(rng, number, rate, 1.0), lengths, strict=True):
        at += gap
        found.append(Request(at, p, o))
    return found


def run(requests: list[Request], engine: Engine = ENGINE, copies: int = 1, **more: object) -> tuple[Record, Clock]:
    record = Record(requests[-1].at)
    clock = Clock(Fleet(engine=engine, copies=copies, **more), record)  # pyright: ignore[reportArgumentType]
    return clock.run(requests), clock


def p95(values: object) -> float:
    return quantile(sorted(values), 0.95)  # pyright: ignore[reportArgumentType]


def test_one_request_takes_its_prompt_and_then_a_step_per_token() -> None:
    cost = replica()
    record, _ = run([Request(0.0, 500, 100)])
    prompt = cost.seconds(cost.prompt_batch(500)) + cost.request
    step = cost.seconds(Batch(1, cost.d.reached(550)))
    assert record.ttft[0] == pytest.approx(prompt, rel=1e-4)
    assert record.e2e[0] == pytest.approx(prompt + 99 * step, rel=1e-3)
    assert record.tpot[0] == pytest.approx(step, rel=1e-3)


def test_more_copies_never_wait_longer() -> None:
    """In the mean over seeds."""
    for router in ROUTERS:
        means = [
            sum(p95(run(poisson(250, 25.0, seed), copies=copies, router=router)[0].ttft) for seed in range(4)) / 4
            for copies in (1, 2, 4, 8)
        ]
        assert means == sorted(means, reverse=True)


def test_a_larger_cache_never_finds_less() -> None:
    requests = list(make("conversation", 2.0, 400))
    device = [run(requests, replace(ENGINE, limits=replace(ROOMY, cache=size)))[0].reused for size in (3e4, 1e5, 3e5, 1e6)]
    assert device == sorted(device)
    small = replace(ENGINE, limits=replace(ROOMY, cache=3e4))
    tiers = [run(requests, replace(small, tiers=Tiers(host, 0, 1e-4, 0.0)))[0].reused for host in (0, 50, 200, 1000, 10_000)]
    assert tiers == sorted(tiers)
    assert tiers[-1] > tiers[0]
    disk = run(requests, replace(small, tiers=Tiers(50, 10_000, 1e-4, 1e-2)))[0]
    assert disk.reused == pytest.approx(tiers[-1], rel=0.01)
    slow, fast = (run(requests, replace(small, tiers=Tiers(10_000, 0, each, 0.0)))[0] for each in (0.05, 1e-5))
    assert p95(fast.ttft) < p95(slow.ttft), "blocks must be loaded"


def test_an_engine_without_pages_keeps_what_its_slots_hold() -> None:
    requests = list(make("conversation", 0.5, 300))
    few, many = (
        run(requests, replace(ENGINE, limits=Limits(sequences=slots, tokens=2048), longest=16384))[0].reused for slots in (1, 8)
    )
    assert 0 < few < many


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 99), rate=st.floats(1.0, 60.0), cache=st.sampled_from((1.2e4, 5e4, 1e6)), reserves=st.booleans(),
    chunked=st.booleans(), copies=st.integers(1, 3), draft=st.sampled_from((0, 3)),
)  # fmt: skip
def test_work_is_conserved(seed: int, rate: float, cache: float, reserves: bool, chunked: bool, copies: int, draft: int) -> None:
    """Every request is done once, with its tokens; nothing stays in the cache; times are in order."""
    limits = Limits(sequences=64, tokens=2048, cache=cache, reserves=reserves, chunked=chunked)
    shape = Shape(gained=2.2 if draft else 1.0, draft=draft)
    requests = poisson(80, rate, seed)
    record, clock = run(requests, Engine(times=PassTimes(replica(), draft), limits=limits, shape=shape), copies)
    assert len(record.at) == len(requests)
    assert record.output == sum(one.output for one in requests)
    assert record.prompt == sum(one.prompt for one in requests)
    assert sorted(record.at) == pytest.approx(sorted(one.at for one in requests), abs=1e-4)
    assert all(0 < ttft <= e2e for ttft, e2e in zip(record.ttft, record.e2e, strict=True))
    copied = [slot.copy for slot in clock.outputs.slots]
    assert all(copy.load == 0 and abs(copy.used) < 1e-6 and abs(copy.context) < 1e-6 for copy in copied)
    assert sum(copy.stepping + copy.mixing for copy in copied) <= copies * record.last + 1e-6
    if reserves:
        assert record.preempted == 0
    total = record.queued + record.prefilled + record.generated
    assert total == pytest.approx(sum(record.e2e), rel=1e-4)


def test_a_full_cache_preempts_and_still_answers_all() -> None:
    limits = Limits(sequences=64, tokens=2048, cache=6000)
    record, _ = run([Request(0.0, 100, 400)] * 32, Engine(times=TIMES, limits=limits))
    assert record.preempted > 0
    assert len(record.at) == 32


def test_the_same_seed_gives_the_same_answer() -> None:
    def once(seed: int) -> list[float]:
        policy = Policy(kind="busy", target=8, least=1, most=4)
        return list(run(poisson(300, 30.0), copies=2, policy=policy, start_up=5.0, mtbf=20.0, seed=seed)[0].e2e)

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_requests_of_a_copy_that_fails_are_sent_again() -> None:
    record, _ = run(poisson(300, 30.0), copies=2, start_up=2.0, mtbf=3.0, seed=1)
    assert record.retried > 0
    assert len(record.at) == 300
    calm, _ = run(poisson(300, 30.0), copies=2)
    assert p95(record.e2e) > p95(calm.e2e)
    assert record.output == calm.output


def test_a_router_that_knows_prefixes_finds_more_of_them() -> None:
    requests = list(make("conversation", 3.0, 600))
    found = {name: run(requests, copies=4, router=name)[0].reused for name in ROUTERS}
    assert found["prefix"] > 1.3 * max(found["round-robin"], found["least-loaded"])


def test_long_prompts_do_not_delay_the_tokens_of_another_pool() -> None:
    requests = poisson(150, 6.0, prompt=6000)
    together, _ = run(requests, replace(ENGINE, block=0), copies=2)
    apart, _ = run(requests, replace(ENGINE, block=0), prompts=replace(ENGINE, block=0), prompt_copies=1, token_seconds=2e-6)
    assert len(apart.at) == 150
    assert apart.output == together.output
    assert p95([one for one in apart.tpot if one >= 0]) < 0.7 * p95([one for one in together.tpot if one >= 0])
    assert apart.transferred == pytest.approx(2e-6 * sum(one.prompt for one in requests if one.output > 1), rel=1e-3)


def test_requests_longer_than_the_context_are_rejected() -> None:
    record, _ = run([Request(0.0, 500, 10), Request(0.1, 5000, 10)], replace(ENGINE, longest=1024))
    assert (len(record.at), record.rejected) == (1, 1)


# Scaling.


def burst() -> list[Request]:
    """A quiet service with a busy minute."""
    calm, busy = poisson(60, 0.5), poisson(2400, 40.0)
    return sorted([*calm, *(one._replace(at=one.at + 120) for one in busy)])


@pytest.mark.parametrize(("kind", "target"), [("busy", 8), ("queue", 2), ("kv", 0.05), ("ttft", 0.2), ("rate", 5)])
def test_a_policy_starts_copies_in_a_burst_and_stops_them_after_it(kind: str, target: float) -> None:
    policy = Policy(kind=kind, target=target, least=1, most=6, cooldown=30.0)
    limits = Limits(sequences=32, tokens=8192, cache=1e5)
    record, clock = run([*burst(), Request(600.0, 10, 1)], replace(ENGINE, limits=limits), policy=policy, start_up=10.0)
    copies = [window.copies / max(1, window.samples) for window in record.windows]
    assert max(copies) > 1
    assert max(copies) <= 6
    assert copies[0] == 1
    assert copies[-1] == 1
    assert clock.paid(clock.outputs) < 6 * record.last
    alone, _ = run(burst(), replace(ENGINE, limits=limits))
    assert p95(record.ttft) <= p95(alone.ttft)


def test_a_schedule_has_its_copies_at_their_hours() -> None:
    policy = Policy(kind="schedule", hours=((0.0, 1), (1.0, 3)), least=1, most=3)
    record, _ = run([Request(60.0 * i, 100, 10) for i in range(121)], policy=policy, start_up=60.0)
    copies = [window.copies / window.samples for window in record.windows]
    assert copies[10] == 1
    assert copies[45] == 3


def test_a_new_copy_helps_only_after_its_start() -> None:
    policy = Policy(kind="busy", target=4, least=1, most=6, cooldown=600.0)
    limits = Limits(sequences=32, tokens=8192, cache=1e5)
    fast, slow = (run(burst(), replace(ENGINE, limits=limits), policy=policy, start_up=seconds)[0] for seconds in (1.0, 50.0))
    assert p95(fast.ttft) < p95(slow.ttft)


def test_nothing_is_served_before_a_copy_is_up() -> None:
    """The only copy fails at once: its requests wait for it to start anew."""
    record, _ = run([Request(0.0, 100, 500)], start_up=30.0, mtbf=0.3, seed=2)
    assert record.retried >= 1
    assert record.e2e[0] > 30
    assert math.isfinite(record.e2e[0])


def test_a_load_of_random_arrivals_takes_as_long_as_the_formula_says() -> None:
    """Means of TTFT, time per token and requests within 5% of serve's formula; at 30 and 60% of the highest rate."""
    from meshwise.cost.serve.load.estimate import estimate, highest_rate

    errors: list[float] = []
    load = Load(prompt=Lengths(1000, 0.8), output=Lengths(100, 0.8), rate=1.0)
    for share in (0.3, 0.6):
        rate = share * highest_rate(replica(), load, ROOMY)
        found = estimate(replica(), replace(load, rate=rate), ROOMY)
        assert found
        for seed in range(3):
            record, _ = run(poisson(1500, rate, seed), replace(ENGINE, block=0))
            tpot = [one for one in record.tpot if one >= 0]
            seen = {"ttft": record.ttft, "tpot": tpot, "e2e": record.e2e}
            errors += [getattr(found, name).mean / (sum(values) / len(values)) - 1 for name, values in seen.items()]
    assert sum(map(abs, errors)) / len(errors) < 0.05
