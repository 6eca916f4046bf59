"""Scores of a table: by source, with intervals that are wider where nothing was fitted, and whether a calibration is of that pair."""

from collections import Counter
from pathlib import Path

import pytest

from meshwise.calibrate.train.validate import TrainValidation, validate
from meshwise.catalogue import calibrations, files
from meshwise.catalogue.chips import find_chip
from support.measured_rows import table

OTHER = {"gpu": "MI300X", "framework": "torchtitan", "zero_stage": "3"}
"""A chip and a framework that no shipped calibration has together."""


@pytest.fixture
def mixed(tmp_path: Path) -> TrainValidation:
    """Runs of three sources: A100 with Megatron, MI300X with torchtitan in two precisions."""
    path = table(tmp_path, {}, {"tp": "2", "dp": "4"}, OTHER, OTHER | {"precision": "fp8"})
    return validate(str(path))


def test_every_source_of_a_table_has_scores_of_its_own(mixed: TrainValidation) -> None:
    sources = {(one["chip"], one["framework"], one["precision"]): one for one in mixed.score["sources"]}
    assert {key: one["rows"] for key, one in sources.items()} == {
        ("a100-80gb-sxm", "megatron", "bf16"): 2,
        ("mi300x", "torchtitan", "bf16"): 1,
        ("mi300x", "torchtitan", "fp8"): 1,
    }
    assert sum(one["rows"] for one in sources.values()) == mixed.score["rows"]
    for one in sources.values():
        assert one["mape"] >= 0
        assert 0 <= one["coverage"] <= 1
        assert one["memory"] is None  # no row states it


def test_a_row_says_whether_its_prediction_rests_on_a_calibration_of_that_chip_and_framework(mixed: TrainValidation) -> None:
    known = calibrations.fitted_to(find_chip("a100-80gb-sxm"), "megatron")
    assert known is not None
    assert Counter((row["chip"], row["calibrated"]) for row in mixed.rows()) == {("a100-80gb-sxm", "yes"): 2, ("mi300x", "no"): 2}
    assert [one["calibrated"] for one in mixed.score["sources"]] == [True, False, False]


def test_the_scores_of_sources_add_up_to_those_of_the_table(mixed: TrainValidation) -> None:
    sources, time = mixed.score["sources"], mixed.score["time"]
    assert sum(one["rows"] * one["mape"] for one in sources) / 4 == pytest.approx(time["mape"])
    assert sum(one["rows"] * one["coverage"] for one in sources) / 4 == pytest.approx(time["coverage"])


def test_a_calibration_that_was_fitted_to_the_table_has_no_term_between_sources(tmp_path: Path) -> None:
    """Rows in a table that a shipped calibration was fitted to have narrower intervals than the same rows in a table of another name."""
    known = calibrations.fitted_to(find_chip("a100-80gb-sxm"), "megatron")
    assert known is not None
    widths = []
    for name in ("elsewhere", known.fitted_on.split(", ")[0]):
        path = table(tmp_path, {}, {"tp": "2", "dp": "4"})
        found = validate(str(path.rename(tmp_path / f"{name}.csv")))
        widths.append(found.high / found.low)
    assert (widths[1] <= widths[0]).all()


def test_the_users_own_calibration_is_used_and_named(home: Path, tmp_path: Path) -> None:
    path = table(tmp_path, OTHER, OTHER | {"tp": "2", "dp": "4"})
    before = validate(str(path))
    values = {"chips": ["mi300x"], "frameworks": ["torchtitan"], "fitted_on": "my runs", "matmul": 0.2}
    (home / "calibration" / "mine.toml").write_text("\n".join(f"{key} = {value!r}" for key, value in values.items()))
    files.clear()
    after = validate(str(path))
    assert after.score["calibration"] == "mine"
    assert after.calibrated == [True, True]
    assert (after.predicted.seconds > before.predicted.seconds).all()


def test_rows_that_cannot_be_read_are_counted_with_their_reasons(tmp_path: Path) -> None:
    path = table(tmp_path, {}, {"precision": "int8"}, {"dp": "3"}, {"dp": "3"})
    found = validate(str(path))
    assert (found.score["rows"], found.score["skipped"]) == (1, 3)
    assert found.score["skipped_reasons"]["dp 3, tp 1, pp 1 and cp 1 do not multiply to 8 devices"] == 2


def test_a_run_that_ran_and_would_be_refused_is_counted_for_its_source(tmp_path: Path) -> None:
    """64 sequences of 16k in one micro-batch without recompute do not fit in 80 GB, whatever the table says."""
    huge = {"seq_len": "16384", "micro_batch": "8", "recompute": "none"}
    (one,) = validate(str(table(tmp_path, {}, huge))).score["sources"]
    assert one["rejected"] == 1


def test_assumptions_are_counted(tmp_path: Path) -> None:
    found = validate(str(table(tmp_path, {"precision": ""}, {"precision": ""}, {})))
    assert found.score["assumed"]["precision not stated: bf16"] == 2


def test_slow_runs_are_named_marked_and_left_out_of_further_scores_alone() -> None:
    scored = validate("nanotron_h100_small")
    faulty, time = scored.score["faulty"], scored.score["time"]
    marked = [row for row in scored.rows() if row["mode"]]
    assert len(marked) == faulty["rows"]
    assert {row["row_id"] for row in marked} == {name for mode in faulty["modes"] for name in mode["row_ids"]}
    assert faulty["time"]["mape"] < 0.5 * time["mape"]
    ratio = [float(str(row["ratio"])) for row in scored.rows()]
    assert time["mape"] == pytest.approx(sum(abs(each - 1) for each in ratio) / len(ratio), rel=1e-3)  # of all rows, as ever
    assert all("whatever the model" in mode["sentence"] for mode in faulty["modes"])


def test_a_table_without_slow_runs_has_the_same_scores_without_them(mixed: TrainValidation) -> None:
    faulty, time = mixed.score["faulty"], mixed.score["time"]
    assert faulty["modes"] == []
    assert all(faulty["time"][name] == time[name] for name in faulty["time"])
    assert not any(row["mode"] for row in mixed.rows())
