"""Runs are filled, not overwritten; readings and samples stay within bounded memory."""

import math

import pytest

from meshwise.runs.reading import MAX_RUNS, Sample, Skips
from meshwise.runs.run import Run
from support.audits import read_text


def test_defaults_fill_in_only_fields_that_are_not_stated():
    told = Run.told("x", {"dp": 4.0, "chip": "", "model": "a"})
    run = told.merged(Run.told("y", {"dp": 8.0, "tp": 2.0, "chip": "h100", "model": "b"}))
    assert (run.number("dp"), run.number("tp"), run.text("chip"), run.text("model")) == (4, 2, "h100", "a")
    assert math.isnan(run.number("pp"))


def test_skipped_lines_are_counted_and_the_first_three_are_named():
    skips = Skips()
    for number in range(1, 6):
        skips.add("a row cut off", f"line {number}")
    assert skips.lines() == ["5 x a row cut off (line 1, line 2, line 3, ...)"]


def test_rows_beyond_the_most_are_counted():
    reading = read_text("gpus,sec_per_iter\n" + "8,1.5\n" * (MAX_RUNS + 7), "csv")
    assert len(reading.runs) == MAX_RUNS
    assert reading.skipped.counts == {f"beyond the first {MAX_RUNS:,} runs": 7}


def test_the_sample_of_a_long_series_keeps_its_median():
    sample = Sample(size=64)
    for i in range(100_000):
        sample.add(float(i * 7919 % 1000))
    assert len(sample.kept) < 64
    assert sample.median() == pytest.approx(500, abs=60)
