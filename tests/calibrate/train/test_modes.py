"""Modes of slow runs: injected ones are found with their size, errors of predictions are none, and the order of rows does not matter."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.calibrate.train import modes
from meshwise.calibrate.train.modes import Found, find, merged, sizes_of
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.modes import Mode
from meshwise.cost.layout import Floats
from meshwise.cost.modes import seconds_in
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import predict
from meshwise.runs.train.settle import read_cases

CLEAN = (
    "bloom_prequel", "vtrain_a100_single_node", "megatron_bridge_to_2602", "maxtext_tpu", "torchtitan_2024",
    "nemo_h100", "megatron2021_table1", "korthikanti2022_iteration",
)  # fmt: skip
NANOTRON = ("nanotron_h100_small", "nanotron_h100_128")
FAULTS = (
    Mode(effect="adds", per="micro-batch", stages="more than two", seconds=1.3, spread=0.05, share=0.2, rows=0.0),
    Mode(effect="adds", per="micro-batch", stages="two", seconds=0.6, spread=0.05, share=0.3, rows=0.0),
    Mode(effect="adds", per="step", seconds=20.0, spread=0.05, share=0.1, rows=0.0),
    Mode(effect="adds", per="layer and tensor rank", stages="one", seconds=5e-3, spread=0.05, share=0.2, rows=0.0),
    Mode(effect="at least", per="layer and tensor rank", stages="several", seconds=8e-3, spread=0.05, share=0.5, rows=0.0),
)


@cache
def cases_of(table: str) -> tuple[list[Case], Floats]:
    cases = [case for case in read_cases(find_table(table))[0] if case.timed]
    return cases, predict(cases).seconds


def synthetic(noise: float, seed: int = 0, fault: Mode | None = None) -> tuple[list[Case], Floats, set[int]]:
    """Return runs of a table that take what is predicted, but for noise, and a share of which is in a mode."""
    cases, predicted = cases_of("nanotron_h100_small")
    rng = np.random.default_rng(seed)
    seconds, chosen = predicted, np.zeros(len(cases), dtype=bool)
    if fault:
        inside = seconds_in(fault, predicted, sizes_of(cases))
        chosen = (inside > 2 * predicted) & (rng.random(len(cases)) < fault.share)
        seconds = np.where(chosen, inside, predicted)
    seconds = seconds * rng.lognormal(0.0, noise, len(cases))
    rows = [replace(case, seconds=float(value)) for case, value in zip(cases, seconds, strict=True)]
    return rows, predicted, set(np.flatnonzero(chosen).tolist())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.effect} {fault.per} {fault.stages}")
@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_an_injected_mode_is_found_with_its_size_and_its_runs(fault: Mode, noise: float) -> None:
    cases, predicted, chosen = synthetic(noise, fault=fault)
    best = max(find(cases, predicted), key=lambda found: len(found.rows))
    assert (best.mode.effect, best.mode.per) == (fault.effect, fault.per)
    assert best.mode.seconds == pytest.approx(fault.seconds, rel=0.15)
    both = len(chosen & set(best.rows))
    assert both >= 0.8 * len(chosen)
    assert both >= 0.9 * len(best.rows)


@pytest.mark.parametrize("noise", [0.03, 0.1, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_mode(noise: float, seed: int) -> None:
    assert find(*synthetic(noise, seed)[:2]) == []


@pytest.mark.parametrize("axis", ["tp", "pp", "mbs"])
@pytest.mark.parametrize("per_doubling", [-0.1, 0.05, 0.1])
def test_an_error_of_the_prediction_along_an_axis_is_no_mode(axis: str, per_doubling: float) -> None:
    cases, predicted, _ = synthetic(0.05)
    wrong = np.exp(per_doubling * np.log2([case.layout[axis] for case in cases]))
    assert find(cases, predicted * wrong) == []


def test_runs_that_hang_for_a_random_time_are_no_mode() -> None:
    cases, predicted, _ = synthetic(0.05)
    rng = np.random.default_rng(1)
    slow = rng.random(len(cases)) < 0.1
    factor = np.where(slow, np.exp(rng.uniform(0.3, 4.0, len(cases))), 1.0)
    hung = [replace(case, seconds=case.seconds * float(each)) for case, each in zip(cases, factor, strict=True)]
    assert find(hung, predicted) == []


def test_what_one_model_shows_is_no_mode() -> None:
    cases, predicted, _ = synthetic(0.03, fault=FAULTS[0])
    name = cases[0].model.name
    rows = [i for i, case in enumerate(cases) if case.model.name == name]
    assert find([cases[i] for i in rows], predicted[rows]) == []


@pytest.mark.parametrize("table", CLEAN)
def test_tables_without_faults_have_no_mode_whatever_calibration_predicts_them(table: str) -> None:
    cases, predicted = cases_of(table)
    assert find(cases, predicted) == find(cases, predict(cases, Calibration()).seconds) == []


def _of(found: Sequence[Found], per: str, stages: str) -> Mode:
    return next(each.mode for each in found if (each.mode.effect, each.mode.per, each.mode.stages) == ("adds", per, stages))


@pytest.mark.parametrize("table", NANOTRON)
def test_pipelines_of_nanotron_lose_half_a_second_or_a_whole_one_for_each_micro_batch(table: str) -> None:
    found = find(*cases_of(table))
    assert 0.45 <= _of(found, "micro-batch", "two").seconds <= 0.8
    assert 1.0 <= _of(found, "micro-batch", "more than two").seconds <= 1.4
    assert all(_of(found, "micro-batch", stages).share < 0.35 for stages in ("two", "more than two"))


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    cases, predicted, _ = synthetic(0.05, fault=FAULTS[0])
    order = list(range(len(cases)))
    random.shuffle(order)
    straight, shuffled = find(cases, predicted), find([cases[i] for i in order], predicted[order])
    assert [found.mode.seconds for found in shuffled] == pytest.approx([found.mode.seconds for found in straight])
    assert [{order[row] for row in found.rows} for found in shuffled] == [set(found.rows) for found in straight]


@settings(max_examples=8, deadline=None)
@given(st.floats(0.01, 100.0))
def test_the_seconds_of_a_mode_scale_with_all_seconds(factor: float) -> None:
    cases, predicted, _ = synthetic(0.05, fault=FAULTS[0])
    longer = [replace(case, seconds=case.seconds * factor) for case in cases]
    plain, scaled = find(cases, predicted), find(longer, predicted * factor)
    assert [each.mode.seconds / factor for each in scaled] == pytest.approx([each.mode.seconds for each in plain], rel=1e-6)
    assert [each.rows for each in scaled] == [each.rows for each in plain]


def test_a_machine_that_is_slower_throughout_shows_the_same_mode() -> None:
    cases, predicted, _ = synthetic(0.05, fault=FAULTS[0])
    fast, slow = find(cases, predicted), find(cases, predicted / 1.3)
    assert [each.rows for each in slow] == [each.rows for each in fast]


def test_a_mode_is_named_in_one_line() -> None:
    mode = replace(FAULTS[0], share=1.0)
    found = Found(("table", "chip", "framework"), mode, tuple(range(61)), 61)
    assert found.sentence.startswith(
        "61 of 61 runs with more than two stages take 1.3 s longer for each micro-batch, whatever the model"
    )
    assert "perhaps a cost that the prediction lacks" in found.sentence


def test_modes_of_two_tables_with_one_mechanism_are_one() -> None:
    one, other = (
        Found(("t", "c", "f"), replace(FAULTS[0], seconds=seconds), tuple(range(rows)), visible)
        for seconds, rows, visible in ((1.0, 10, 20), (1.2, 30, 180))
    )
    (both,) = merged([one, other])
    assert 1.0 < both.seconds < 1.2
    assert both.rows == 40
    assert both.share == pytest.approx(0.2)
    assert merged([one, Found(("t", "c", "f"), FAULTS[1], (1,), 1)])[1] == replace(
        FAULTS[1], share=1.0, rows=1.0, seconds=pytest.approx(0.6)
    )


def test_a_large_table_is_searched_in_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, predicted, chosen = synthetic(0.05, fault=FAULTS[0])
    monkeypatch.setattr(modes, "MAX_FITTED", 20)  # a table of many rows, at the size of a small one
    (found,) = find(cases, predicted)
    assert found.mode.seconds == pytest.approx(1.3, rel=0.15)
    assert len(set(found.rows) & chosen) >= 0.8 * len(chosen)


def test_a_table_that_repeats_its_rows_has_the_same_modes() -> None:
    cases, predicted = cases_of("nanotron_h100_small")
    once, often = (find(cases * times, np.tile(predicted, times)) for times in (1, 20))
    assert [(each.mode.per, each.mode.stages) for each in once] == [(each.mode.per, each.mode.stages) for each in often][
        : len(once)
    ]
    for one, many in zip(once, often, strict=False):
        assert many.mode.seconds == pytest.approx(one.mode.seconds, rel=0.05)


@pytest.mark.parametrize("alone", [1.0, 0.3], ids=["a third is normal", "a tenth is normal"])
def test_modes_that_nearly_all_runs_are_in_are_found_with_their_stages(alone: float) -> None:
    cases, predicted = cases_of("nanotron_h100_128")
    rng, extra = np.random.default_rng(2), sum(seconds_in(fault, predicted, sizes_of(cases)) - predicted for fault in FAULTS[:2])
    seconds = (predicted + extra) * rng.lognormal(0.0, 0.05, len(cases))
    rows = [i for i, case in enumerate(cases) if case.layout["pp"] > 1 or rng.random() < alone]
    found = find([replace(cases[i], seconds=float(seconds[i])) for i in rows], predicted[rows])
    assert {each.mode.stages for each in found} == {"two", "more than two"}
    for each in found:
        fault = FAULTS[each.mode.stages == "two"]
        assert each.mode.seconds == pytest.approx(fault.seconds, rel=0.15)
        assert each.mode.share > 0.9
