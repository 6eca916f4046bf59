"""Goodput under failures, checkpoints, spares and stragglers, against published runs and a simulation."""

import heapq
import math
import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from meshwise.cost.goodput import (
    HARDWARE_SHARE,
    MIN_GOODPUT,
    PARTS,
    Goodput,
    daly_interval,
    expected_maximum,
    goodput,
    repair_wait,
    worthwhile_spares,
    young_interval,
)
from meshwise.cost.work import DAY_SECONDS, LLAMA3_MTBF_SECONDS, Reliability
from support.every import check_every

HOUR = 3600.0

LLAMA3_BYTES = 405_853_388_800 * 14.0  # bf16 weights, float32 master copy and two moments of Adam
SCALES = np.array([1, 8, 64, 512, 4096, 16_384, 100_000])

bytes_kept = st.floats(1e6, 1e14)
reliabilities = st.builds(
    Reliability,
    mtbf=st.floats(100 * HOUR, 1e7 * HOUR),
    checkpoint_bandwidth=st.none() | st.floats(1e8, 1e13),
    checkpoint_every=st.none() | st.floats(1, 10 * DAY_SECONDS),
    async_checkpoint=st.booleans(),
    restart=st.floats(0, HOUR),
    repair=st.floats(0, 30 * DAY_SECONDS),
    spares=st.integers(0, 60),
    straggler=st.floats(0, 0.2),
)


def on(devices: Any, r: Reliability | None = None, size: float = LLAMA3_BYTES, **more: Any) -> Goodput:
    return goodput(r or Reliability(), devices, checkpoint_bytes=size, **more)


# Published runs.


def test_llama_3_on_16384_h100_has_419_interruptions_in_54_days_and_over_90_percent_goodput() -> None:
    """arXiv:2407.21783, 3.3.4. The default failure rate comes from this count; the goodput does not."""
    g = on(16_384)
    assert g.interruptions_per_day * 54 == pytest.approx(419, rel=0.002)  # the clock of failures stands still while waiting
    assert 0.90 < g.effective + g.stragglers < 0.95  # a slow step is training to the paper
    assert 50_676 < LLAMA3_MTBF_SECONDS / HOUR < 50_678


def test_bloom_on_384_a100_is_interrupted_once_or_twice_a_week() -> None:
    """arXiv:2211.05100 (cited from memory): 1 to 2 GPU failures a week. Another chip, cluster and program than the prior comes from."""
    assert 1 <= on(384).interruptions_per_day * 7 <= 2


def test_megascale_on_12288_gpus_has_over_90_percent_goodput() -> None:
    """arXiv:2402.15627 (cited from memory): under 10 minutes to find a failure, and over 90% of the time useful."""
    g = on(12_288, size=175e9 * 14)
    assert 0.90 < g.effective + g.stragglers < 0.97


# The best interval.


def test_youngs_interval_for_a_minute_every_day() -> None:
    """sqrt(2 x 60 x 86,400) = 3,220 s; Daly's is the pause shorter, and the higher orders longer."""
    assert young_interval(60, DAY_SECONDS) == pytest.approx(3219.94, abs=0.01)
    assert daly_interval(60, DAY_SECONDS) == pytest.approx(
        3219.94 * (1 + math.sqrt(60 / 172_800) / 3 + 60 / 172_800 / 9) - 60, abs=0.01
    )


@given(st.floats(1e-8, 1.5), st.floats(60, 1e8))
def test_dalys_interval_is_near_the_exact_optimum(ratio: float, between: float) -> None:
    """The complete model is least where (1 - t/M) exp((t + pause)/M) = 1, so t = M (1 + W(-exp(-1 - pause/M)))."""
    exact = between * (1 + float(np.real(lambertw(-math.exp(-1 - ratio)))))
    assert daly_interval(ratio * between, between) == pytest.approx(exact, rel=0.06 if ratio > 0.1 else 0.002)


@given(reliabilities, st.sampled_from(SCALES.tolist()), bytes_kept, st.floats(0.01, 100))
def test_no_other_interval_has_more_goodput(r: Reliability, devices: int, size: float, times: float) -> None:
    best = on(devices, replace(r, checkpoint_every=None), size)
    assume(1e-3 <= best.interval * times <= 1e9)
    other = on(devices, replace(r, checkpoint_every=float(best.interval) * times), size)
    assert best.effective >= other.effective * 0.998 - 1e-12  # Daly's is an approximation


def test_an_interval_is_at_least_a_step() -> None:
    assert on(8, Reliability(straggler=0.0), size=1.0, step=30.0).interval == 30.0 < on(8, Reliability(), step=30.0).interval


def test_a_restart_reads_the_checkpoint_back() -> None:
    """1 TB at 10 GB/s are 100 s on top of 10 minutes; exp(-700 s / 1 h) of the time is left of one failure an hour."""
    g = on(100, Reliability(mtbf=100 * HOUR, checkpoint_bandwidth=1e10, repair=0), size=1e12)
    assert g.down == pytest.approx(700)
    assert g.restarts == pytest.approx(1 - math.exp(-700 / HOUR))


# Shares.


@settings(max_examples=60)
@given(reliabilities, bytes_kept, st.floats(0, 100))
def test_shares_add_up_to_one_and_none_is_negative(r: Reliability, size: float, step: float) -> None:
    g = on(SCALES, r, size, staging=64e9, step=step)
    assert set(g.shares) == set(PARTS)
    np.testing.assert_allclose(np.sum([*g.shares.values()], axis=0), 1, rtol=1e-12)
    assert all(np.all((share >= -1e-12) & (share <= 1 + 1e-12)) for share in g.shares.values())


@settings(max_examples=40)
@given(reliabilities, bytes_kept)
def test_a_single_number_of_devices_gives_the_same_result_as_an_array(r: Reliability, size: float) -> None:
    many = on(SCALES, r, size)
    for i, devices in enumerate(SCALES.tolist()):
        alone = on(devices, r, size).at()
        assert alone == {name: pytest.approx(float(getattr(many, name)[i]), rel=1e-12, abs=1e-300) for name in alone}


@given(reliabilities, bytes_kept)
def test_more_devices_never_raise_goodput(r: Reliability, size: float) -> None:
    """Storage that grows with the cluster can make up for an interval that is too short for one device, so one of the two is held."""
    assume(r.checkpoint_every is None or r.checkpoint_bandwidth is not None)
    shares = on(SCALES, r, size).effective
    assert np.all(np.diff(shares) <= 1e-3)  # Daly's formula has a kink where a checkpoint takes twice M


@given(st.floats(1e-6, 1e4), st.integers(0, 200))
def test_a_spare_never_hurts(load: float, spares: int) -> None:
    assert repair_wait(load, spares + 1) <= repair_wait(load, spares)


def test_without_spares_every_failure_waits_for_its_repair() -> None:
    """A failure in 10 days and a day of repair: 1 day in 11."""
    assert repair_wait(0.1, 0) == pytest.approx(1 / 11)


def test_repair_wait_is_erlangs_formula() -> None:
    """B(2, 1) = (1/2) / (1 + 1 + 1/2) = 0.2."""
    assert repair_wait(1.0, 1) == pytest.approx(0.2)


@given(st.floats(0, 300), st.integers(1, 500))
def test_no_other_number_of_spares_gives_more_goodput_per_node(load: float, nodes: int) -> None:
    spares = np.arange(nodes + 1)
    held = (nodes + spares) / (1 - repair_wait(load, spares))
    assert held[int(worthwhile_spares(load, nodes))] == pytest.approx(held.min(), rel=1e-9)


def test_there_are_never_more_spares_than_nodes() -> None:
    assert worthwhile_spares(1e9, 12) == 12


def test_the_expected_slowest_device_matches_random_draws() -> None:
    def check(n: int) -> None:
        draws: Any = np.random.default_rng(0).standard_normal((max(200, 400_000 // n), n)).max(axis=1)
        assert expected_maximum(n) == pytest.approx(draws.mean(), rel=0.05, abs=0.005)
        assert expected_maximum(n) <= math.sqrt(2 * math.log(n))

    check_every(check, [(1,), (2,), (8,), (512,), (16_384,)])


# The edges.


def test_one_device_loses_next_to_nothing() -> None:
    g = on(1, Reliability(spares=0), size=17e9)
    assert g.stragglers == 0
    assert 0.99 < g.effective < 1


def test_checkpoints_that_cost_nothing_lose_nothing_but_restarts() -> None:
    g = on(SCALES, Reliability(repair=0, straggler=0), size=0.0)
    assert np.all(g.interval == 0)
    np.testing.assert_allclose(g.effective, np.exp(-600 * SCALES / LLAMA3_MTBF_SECONDS))
    np.testing.assert_allclose(g.checkpoints + g.lost_work + g.repair + g.stragglers, 0, atol=1e-12)


@pytest.mark.parametrize("mtbf", [1.0, 60.0, 3600.0])
def test_devices_that_fail_constantly_make_no_progress(mtbf: float) -> None:
    assert on(100_000, Reliability(mtbf=mtbf)).effective < MIN_GOODPUT


def test_devices_that_never_fail_lose_only_to_stragglers() -> None:
    g = on(16_384, Reliability(mtbf=1e12, repair=0, straggler=0.02))
    assert g.effective == pytest.approx(1 / (1 + 0.02 * float(expected_maximum(16_384))), rel=0.001)


# A run simulated failure by failure.


def simulated(g: Goodput, r: Reliability, steady: bool, failures: int = 60_000) -> float:
    """Effective share of a run with this many failures, without stragglers. Repairs all take as long (`steady`), or are drawn at random."""
    chance = random.Random(7)
    f = g.at()
    behind = f["save"] if r.async_checkpoint else 0.0
    clock = useful = 0.0
    away: list[float] = []
    for _ in range(failures):
        left = chance.expovariate(1 / f["between"])
        clock += left
        left -= f["down"]
        cycle = f["interval"] + f["pause"]
        whole = cycle + behind
        while whole <= left:
            useful += f["interval"]
            whole += cycle
        while away and away[0] <= clock:
            heapq.heappop(away)
        if chance.random() < HARDWARE_SHARE:
            heapq.heappush(away, clock + (r.repair if steady else chance.expovariate(1 / r.repair)))
        while len(away) > f["spares"]:
            clock = heapq.heappop(away)
    return useful / clock


RUNS: list[tuple[int, dict[str, Any]]] = [
    (16_384, {}),
    (100_000, {}),
    (16_384, {"spares": 0, "repair": HOUR}),
    (16_384, {"spares": 3}),
    (16_384, {"checkpoint_every": 3 * HOUR}),
    (16_384, {"async_checkpoint": True, "checkpoint_bandwidth": 10e9}),
    (16_384, {"checkpoint_bandwidth": 5e9}),  # 19 minutes to write, 3.1 hours between failures
    (16_384, {"mtbf": 10_000 * HOUR, "restart": 1800.0}),
]
"""Devices, and settings that differ from the default."""


def test_the_formula_agrees_with_a_simulated_run() -> None:
    """With repairs of one length, and with repairs drawn at random."""

    def check(run: tuple[int, dict[str, Any]], steady: bool) -> None:
        r = Reliability(straggler=0, **run[1])
        g = on(run[0], r, staging=64e9)
        assert simulated(g, r, steady) == pytest.approx(float(g.effective), rel=0.015)

    check_every(check, product(RUNS, [True, False]))
