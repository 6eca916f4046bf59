"""A run in a known mode of slow runs: its time does not count the first time, and counts when the layout shows it again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import meshwise
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.history import History
from meshwise.tune.loop.journal import Journal
from meshwise.tune.loop.training import Training
from support import modes


@pytest.fixture
def subject(home: Path) -> Training:
    modes.install(home, modes.SLOW)
    plan = meshwise.plan("llama-3.1-8b", on="2x8xh100-sxm", batch="256x4096", framework="nanotron")
    return Training(plan, TuneAsk(what="plan", by_hand=True))


def piped(subject: Training) -> int:
    """Return the fastest candidate with a pipeline."""
    layouts = subject.space.layouts
    assert layouts is not None
    return int(np.argmin(np.where(layouts.pp > 1, subject.space.seconds, np.inf)))


def in_mode(subject: Training, row: int) -> float:
    layouts = subject.space.layouts
    assert layouts is not None
    return float(subject.space.seconds[row] + 1.2 * np.ceil(256 / (layouts.dp[row] * layouts.mbs[row])))


def history(subject: Training, folder: Path, runs: list[tuple[int, float]]) -> History:
    """Return the history of measured candidates."""
    folder.mkdir()
    journal = Journal(folder)
    for number, (row, seconds) in enumerate(runs, 1):
        journal.add("chosen", run=number, setting=subject.setting, candidate=subject.describe(row), name=f"run {row}")
        journal.add("measured", run=number, seconds=seconds)
    return History(subject, journal)


def test_the_time_of_a_first_run_in_a_mode_does_not_count(subject: Training, tmp_path: Path) -> None:
    row = piped(subject)
    told = history(subject, tmp_path / "tune", [(row, in_mode(subject, row))])
    (seen,) = told.observations()
    assert seen.faulty
    posterior = told.posterior()
    assert posterior.mean[row] == pytest.approx(np.log(subject.space.seconds[row]), abs=0.05)
    assert "in a known mode of slow runs (1.2 s longer for each micro-batch)" in told.sentence(told.runs[0], 4)


def test_a_layout_that_is_in_the_mode_again_counts(subject: Training, tmp_path: Path) -> None:
    row = piped(subject)
    seconds = in_mode(subject, row)
    told = history(subject, tmp_path / "tune", [(row, seconds), (row, 1.02 * seconds)])
    assert [seen.faulty for seen in told.observations()] == [True, False]
    assert told.posterior().measured == {row: pytest.approx(np.log(1.02 * seconds))}


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.3])
def test_a_normal_run_counts(subject: Training, factor: float) -> None:
    row = piped(subject)
    assert subject.mode(row, factor * float(subject.space.seconds[row])) == ""


def test_what_most_runs_do_is_what_a_layout_does(subject: Training, home: Path) -> None:
    modes.install(home, replace(modes.SLOW, share=0.9))
    plan = meshwise.plan("llama-3.1-8b", on="2x8xh100-sxm", batch="256x4096", framework="nanotron")
    usual = Training(plan, TuneAsk(what="plan", by_hand=True))
    row = piped(usual)
    assert usual.mode(row, in_mode(usual, row)) == ""
