"""JSON lines of `meshwise run`: rows of measurements, and steps that are one run."""

import pytest

from meshwise.programs.logs import detect
from support.audits import read_text, runs_of


def test_our_own_rows_state_everything():
    first, second, third = runs_of("measurement.jsonl")
    assert first.number("seq") == 64
    assert second.number("seq") == 128
    assert third.number("dp") == 2
    assert first.number("memory") == pytest.approx(0.5 * 2**30, rel=0.05)


def test_steps_of_our_own_trainer_are_one_run_in_bytes():
    text = "".join(
        f'{{"step": {i}, "loss": {6.2 - i / 10}, "grad_norm": 1.0, "seconds": 0.5, "memory": 480002048.0}}\n' for i in range(6)
    )
    assert detect.detect(text) is detect.find_format("jsonl")
    (run,) = read_text(text, "jsonl").runs
    assert (run.number("seconds"), run.number("memory"), run.number("steps_seen")) == (0.5, 480002048, 6)
    assert (run.number("first_loss"), run.number("loss_step")) == (6.2, 0)


def test_lines_that_are_not_objects_of_columns_are_skipped_and_named():
    reading = read_text('{"devices": 8, "sec_per_iter": 1.5}\n[1, 2]\n{"devices": 8}\nnot json\n', "jsonl")
    assert len(reading.runs) == 1
    assert reading.skipped.lines() == [
        "1 x a line that is not an object of columns (line 2)",
        "1 x a line without a measurement (line 3)",
        "1 x a line that is not JSON (line 4)",
    ]
