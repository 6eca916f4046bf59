"""Measured runs move the posterior of the other candidates."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.tune.belief.memory import fitting
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.belief.residual import SCALES, Gaussian, Kernel
from support.tune_spaces import ran, seconds_with, space

ROWS = st.integers(0, len(space()) - 1)
SHIFTS = st.floats(-0.12, 0.0)


@settings(max_examples=15, deadline=None)
@given(matmul=SHIFTS, link=SHIFTS, network=SHIFTS, seed=st.integers(0, 99))
def test_coefficients_of_another_machine_are_recovered_from_a_few_runs(matmul: float, link: float, network: float, seed: int):
    truth = seconds_with(2, {"matmul": matmul, "link": link, "network": network})
    rows = np.random.default_rng(seed).choice(len(space()), 16, replace=False)
    seen = [ran(int(row), float(truth[row])) for row in rows]
    before, after = np.log(space().seconds / truth), Posterior.of(space(), seen).mean - np.log(truth)
    assert np.sqrt(np.mean(after**2)) <= 0.25 * np.sqrt(np.mean(before**2)) + 0.01


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=6), more=ROWS)
def test_a_further_measurement_never_widens_the_distribution(rows: list[int], more: int):
    kernel = Kernel.of(space(), space().physics)

    def variance(measured: list[int]) -> np.ndarray:
        return Gaussian.of(kernel, np.array(measured), np.zeros(len(measured)), np.full(len(measured), SCALES.noise)).variance

    assert np.all(variance([*rows, more]) <= variance(rows) + 1e-9)


@settings(max_examples=15, deadline=None)
@given(factor=st.floats(0.2, 8.0), row=ROWS)
def test_one_run_sets_the_factor_of_a_machine_that_no_calibration_knows(factor: float, row: int):
    posterior = Posterior.of(space(), [ran(row, factor * float(space().seconds[row]))])
    assert not posterior.outliers
    assert np.median(np.abs(posterior.mean - np.log(factor * space().seconds))) < 0.02


def rows_with(pp: int, count: int) -> list[int]:
    layouts = space().layouts
    assert layouts is not None
    return np.flatnonzero((layouts.pp > 1) if pp > 1 else (layouts.pp == 1))[:count].tolist()


def test_a_slow_mode_of_pipelines_is_learned_from_two_runs():
    piped, single = rows_with(2, 400), rows_with(1, 400)
    usual = [ran(row, float(space().seconds[row])) for row in single[:2]]
    slow = [ran(row, 2 * float(space().seconds[row])) for row in (piped[0], piped[150])]
    before, after = Posterior.of(space(), usual), Posterior.of(space(), [*usual, *slow])
    shift = after.expected - before.expected
    assert np.median(shift[piped]) > 0.25
    assert abs(np.median(shift[single])) < 0.1, "the little that is left to chance: that all of these runs are usual"
    assert set(after.outliers) <= {slow[0].candidate, slow[1].candidate}


def test_an_effect_that_no_formula_knows_is_learned_where_nothing_was_expected():
    inside, layouts = space(1), space(1).layouts
    assert layouts is not None
    piped, single = np.flatnonzero(layouts.pp > 1), np.flatnonzero(layouts.pp == 1)
    rows = [single[0], single[-1], piped[0], piped[-1]]
    factor = np.where(layouts.pp > 1, 2.0, 1.0)
    posterior = Posterior.of(inside, [Observation(int(row), float(factor[row] * inside.seconds[row])) for row in rows])
    shift = posterior.expected - np.log(inside.seconds)
    assert np.median(shift[piped]) - np.median(shift[single]) > np.log(2.0) / 2
    assert posterior.effects["pp > 1"] > 0.5


def test_a_slow_run_counts_as_measured_but_not_for_its_neighbours():
    piped, single = rows_with(2, 400), rows_with(1, 400)
    seen = [ran(row, float(space().seconds[row])) for row in (*single[:2], *piped[1:3])]
    posterior = Posterior.of(space(), [*seen, ran(piped[0], 5 * float(space().seconds[piped[0]]))])
    assert posterior.outliers == (piped[0],)
    assert np.isclose(np.exp(posterior.mean[piped[0]]), 5 * space().seconds[piped[0]])
    assert np.median(np.abs(posterior.mean[piped[3:]] - np.log(space().seconds[piped[3:]]))) < 0.02


@settings(max_examples=20, deadline=None)
@given(row=ROWS)
def test_a_run_out_of_memory_lowers_the_probability_of_all_that_need_as_much(row: int):
    before, after = fitting(space(), []), fitting(space(), [Observation(row, failure="oom")])
    need = space().memory / space().capacity
    assert np.all((after <= before)[need >= need[row]])
    assert np.all(after <= before + 1e-4)  # what surely fits may become a little surer: the spread of the prediction shrinks
    assert Posterior.of(space(), [Observation(row, failure="oom")]).runs[row] == 0.0


@settings(max_examples=20, deadline=None)
@given(row=ROWS, ratio=st.floats(0.8, 1.2))
def test_measured_memory_moves_the_memory_of_others(row: int, ratio: float):
    seen = [Observation(row, seconds=1.0, memory=ratio * float(space().memory[row]))]
    shift = fitting(space(), seen) - fitting(space(), [Observation(row, seconds=1.0, memory=float(space().memory[row]))])
    assert np.all(shift <= 1e-9) if ratio > 1 else np.all(shift >= -1e-9)


def test_a_crash_counts_against_what_it_has_in_common_until_others_run():
    piped, single = rows_with(2, 400), rows_with(1, 400)
    crashed = Observation(piped[0], failure="crash")
    alone = Posterior.of(space(), [crashed]).runs
    usual = [ran(row, float(space().seconds[row])) for row in single[:4]]
    told = Posterior.of(space(), [crashed, *usual]).runs
    assert alone[piped[1]] < 0.9
    assert np.median(told[single]) > np.median(alone[single])
    assert np.median(told[piped]) < np.median(told[single])


def test_the_interval_holds_the_mean_and_narrows_with_runs():
    row = space().best
    wide, narrow = Posterior.of(space(), []), Posterior.of(space(), [ran(row + 1, float(space().seconds[row + 1]))])
    low, high = wide.interval(row)
    assert low < space().seconds[row] < high
    assert narrow.interval(row)[1] / narrow.interval(row)[0] < high / low


@settings(max_examples=10, deadline=None)
@given(row=ROWS, slowdown=st.floats(2.0, 30.0))
def test_a_faulty_run_says_nothing_about_times_but_counts_as_a_risk_and_may_be_repeated(row: int, slowdown: float):
    others = [each for each in rows_with(1, 4) if each != row]
    seen = [ran(each, float(space().seconds[each])) for each in others]
    faulty = Observation(row, seconds=slowdown * float(space().seconds[row]), faulty=True)
    before, after = Posterior.of(space(), seen), Posterior.of(space(), [*seen, faulty])
    assert np.array_equal(after.mean, before.mean)
    assert row not in after.tried
    assert row not in after.measured
    assert after.slow[row] > before.slow[row]
