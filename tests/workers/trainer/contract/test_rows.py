"""Rows: which steps count, a median that adds up, and rows that `validate` reads."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.runs.train.settle import read_cases
from meshwise.workers.trainer.contract.rows import (
    PREDICTED_COLUMNS,
    Rank,
    Step,
    add_row,
    failure,
    measured_steps,
    measurement,
    median_seconds,
    read_ranks,
    read_rows,
    read_steps,
    step_row,
    typical_step,
    write_ranks,
)
from meshwise.workers.trainer.contract.settings import Layout, Settings
from support.tiny_runs import steps

LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
RUN = Settings(name="tiny", model=LLAMA, layout=Layout(dp_shard=2, mbs=2), batch=8, seq=16, facts={"params": 110_000.0})


def test_the_first_two_steps_are_measured_only_if_there_are_no_others() -> None:
    assert [one.step for one in measured_steps(steps(9, 9, 1, 2))] == [2, 3]
    assert [one.step for one in measured_steps(steps(9, 8))] == [0, 1]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_the_typical_step_is_the_measured_one_nearest_to_the_median(seconds: list[float]) -> None:
    some, found = steps(*seconds), typical_step(steps(*seconds))
    assert found.seconds == seconds[found.step]
    far = abs(found.seconds - median_seconds(some))
    assert all(abs(one.seconds - median_seconds(some)) >= far for one in measured_steps(some))


def test_a_row_has_the_speed_of_its_median_step_and_the_most_memory_of_any() -> None:
    row = measurement(RUN, [*steps(9, 9, 0.5, 0.25, 1.0), Step(5, 0.0, 1.0, 9.0, 2.0**31)], per_node=2)
    assert row["sec_per_iter"] == 0.75  # between 0.5 and 1.0 in the middle of 0.25, 0.5, 1, 9
    assert row["tokens_per_sec_per_gpu"] == pytest.approx(8 * 16 / 0.75 / 2)
    assert (row["mem_gb"], row["loss_first"], row["loss_last"]) == (2.0, 5.0, 0.0)


def test_a_nan_loss_is_written_as_null(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    add_row(path, step_row(Step(0, math.nan, math.inf, 1.0, 2.0**30)))
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()
    (found,) = read_steps(path)
    assert math.isnan(found.loss)
    assert found.seconds == 1.0


def test_validate_reads_runs_that_ended_and_runs_that_ran_out_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "measurement.jsonl"
    add_row(path, measurement(RUN, steps(1, 1, 1), per_node=2))
    add_row(path, failure(RUN, 2, "oom", "exit code 1"))
    add_row(path, failure(RUN, 2, "fail", "exit code 1"))
    used, skipped = read_cases(path)
    assert [case.ran for case in used] == [True, False]
    assert used[0].layout["dp_shard"] == 2
    assert [skip.reason for skip in skipped] == ["failed for a reason the table does not tell"]


def test_the_prediction_before_a_run_is_in_its_row() -> None:
    predicted = replace(RUN, facts={PREDICTED_COLUMNS[0]: 0.25, PREDICTED_COLUMNS[1]: 1.5})
    assert [measurement(predicted, steps(1), 2)[name] for name in PREDICTED_COLUMNS] == [0.25, 1.5]
    assert PREDICTED_COLUMNS[0] not in measurement(RUN, steps(1), 2)


def test_a_line_that_was_cut_off_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps({"step": 0}) + '\n{"step": 1, "lo', encoding="utf-8")
    assert read_rows(path) == [{"step": 0}]
    assert read_rows(tmp_path / "nothing.jsonl") == []


def test_ranks_come_back_as_they_were_written(tmp_path: Path) -> None:
    every = [Rank(i, "host", {"pp": i}, 64, 0.5, None, 1e9) for i in range(2)]
    write_ranks(tmp_path / "ranks.json", every)
    assert read_ranks(tmp_path / "ranks.json") == every
