"""Predictions for training runs: findings far from them, reasons why there is none, and suggestions that do not contradict the verdict."""

from pathlib import Path
from typing import Any

import pytest

from meshwise.audit import report, train
from meshwise.audit.figures import Figures
from meshwise.programs.logs import detect
from meshwise.runs.reading import Reading
from meshwise.runs.run import Run
from meshwise.runs.table import find_table
from support import modes
from support.audits import LLAMA, figures

SETUP: dict[str, Any] = {
    "devices": 8.0,
    "dp": 8.0,
    "tp": 1.0,
    "pp": 1.0,
    "batch": 256.0,
    "seq": 4096.0,
    "devices_per_node": 8.0,
    **LLAMA,
}


def predict(**numbers: Any) -> train.TrainPrediction:
    (one,), _ = train.predict_runs([figures(**SETUP, **numbers)])
    return one


def suggest(f: Figures) -> train.Suggestion:
    predictions, _ = train.predict_runs([f])
    (one,) = train.suggest_layouts(predictions, frozenset())
    return one


def test_a_run_that_states_too_little_is_not_predicted_and_the_reason_is_counted():
    found, missing = train.predict_runs([figures(devices=8.0, seconds=1.0)])
    assert found == []
    assert missing == {"d_model is not stated": 1}


def test_a_single_run_ten_times_slower_than_predicted_is_found():
    assert list(train.compare([predict(mbs=1.0, seconds=13.0)], {})) == []
    (one,) = train.compare([predict(mbs=1.0, seconds=130.0)], {"x": "A+"})
    assert one.rule == "planner"
    assert "times slower than predicted" in one.message
    assert "(the document grades itself: A+)" in one.message


NANOTRON = SETUP | {"devices": 16.0, "dp": 4.0, "pp": 4.0, "mbs": 1.0, "framework": "nanotron", "chip": "h100-sxm", "zero": 1.0}


@pytest.mark.parametrize(("extra", "known"), [(0.0, False), (1.2, True), (0.4, False), (4.0, False)])
def test_a_run_that_fits_a_mode_of_its_calibration_is_said_to_be_in_it(home: Path, extra: float, known: bool) -> None:
    modes.install(home, modes.SLOW)
    (plain,), _ = train.predict_runs([figures(**NANOTRON, seconds=1.0)])
    slow = plain.seconds + 64 * extra  # 256 sequences, 4 data ranks
    (one,), _ = train.predict_runs([figures(**NANOTRON, seconds=slow)])
    found = [finding for finding in train.compare([one], {}) if finding.rule == "slow mode"]
    assert bool(found) == known
    if known:
        assert (
            "20% of the runs with several stages behind the calibration slow took 1.2 s longer for each micro-batch"
            in found[0].message
        )
        assert f"{slow:.4g} s measured" in found[0].arithmetic


def test_a_table_of_which_many_runs_are_slow_for_one_reason_says_so() -> None:
    found = report.audit([("nanotron.csv", detect.read_file(find_table("nanotron_h100_small")))]).findings
    named = [finding.message for finding in found if finding.rule == "slow mode"]
    assert any(
        "runs with two stages take" in message and "for each micro-batch, whatever the model" in message for message in named
    )


def test_memory_far_from_that_of_the_layout_is_found():
    (one,) = train.compare([predict(mbs=1.0, seconds=13.0, memory=2e9)], {})
    assert one.rule == "memory"
    assert "GiB predicted for dp8 tp1 pp1 mbs1 zero1" in one.arithmetic


def test_a_micro_batch_that_is_not_stated_is_the_one_that_the_prediction_assumed():
    unstated = suggest(figures(**SETUP, seconds=13.0))
    assert "mbs0" not in unstated.message
    assert "micro-batch not stated and assumed the fastest" in unstated.message
    (mbs,) = [int(word.removeprefix("mbs")) for word in unstated.layout.split() if word.startswith("mbs")]
    assert predict(mbs=mbs, seconds=13.0).seconds == pytest.approx(unstated.predicted_seconds, rel=1e-12)


def test_a_suggestion_states_both_predictions_and_the_measurement():
    # recompute that the layout does not need
    one = suggest(figures(texts={"chip": "h100-sxm", "recompute": "full", "sharding": "fsdp"}, **SETUP, mbs=1.0, seconds=20.0))
    assert one.gain > train.MIN_SAVING_SHARE
    assert one.gain == pytest.approx(1 - one.proposed_seconds / one.predicted_seconds)
    assert one.message.startswith(
        f"try {one.proposed}: predicted {one.proposed_seconds:.4g} s a step, {one.gain:.0%} less than the "
    )
    assert f"{one.predicted_seconds:.4g} s predicted for {one.layout} (x: line 1, 20 s measured)" in one.message


def test_a_layout_near_the_best_is_kept_and_its_excess_is_not_blamed_on_the_layout():
    """A layout cannot be called the best and 1.14 times slower without saying what is compared with what."""
    bare = suggest(figures(**SETUP, seconds=13.0))
    assert bare.gain < train.MIN_SAVING_SHARE
    slow = suggest(figures(**SETUP, seconds=1.14 * bare.predicted_seconds))
    kept = f"keep {slow.layout} (x: line 1, {slow.seconds:.4g} s measured, micro-batch not stated and assumed the fastest)"
    assert slow.message.startswith(f"{kept}: no other layout is predicted to be more than 2% faster than its ")
    assert "the layout does not explain that the measured step takes 1.14 times as long" in slow.message
    same = suggest(figures(**SETUP, seconds=bare.predicted_seconds))
    assert "explain" not in same.message


def test_a_layout_that_is_predicted_not_to_fit_is_named_as_incomplete():
    one = suggest(figures(texts={"chip": "a100-40gb"}, **SETUP, mbs=1.0, seconds=30.0))
    assert "as stated the layout does not fit" in one.message
    assert "such as recompute, is not stated" in one.message


def test_the_verdict_compares_measured_with_predicted_step_times():
    numbers = {**SETUP, "seconds": 13.0}
    reading = Reading("flags", [Run.told("the run", {"chip": "h100-sxm", **numbers})])
    audit = report.audit([("flags", reading)])
    (one,) = audit.predictions.train
    assert f"The measured step time is {one.ratio:.2f} times the predicted one." in audit.verdict
