"""Sweeps: what is run, what is refused, a failure that is a row, and the planner's order beside the measured one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.run.train import processes
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from meshwise.run.train.results import SweepResult
from meshwise.run.train.short.sweep import Outcome, Point, parse, points
from meshwise.ui.views.run.sections import Section, as_text
from meshwise.ui.views.run.sweep import sections
from meshwise.workers.trainer.contract.rows import Step, add_row, failure, measurement
from meshwise.workers.trainer.contract.settings import Settings
from support.command import Run, one_line, refused

CPU = TrainRun(device="cpu")


def test_axes_and_values_are_read() -> None:
    found = parse("mbs=1,2 dp-shard=2 compile=no,yes seq=1k recompute=full")
    assert found == {"mbs": (1, 2), "dp_shard": (2,), "compile": ("no", "yes"), "seq": (1024,), "recompute": ("full",)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mbz=1", "did you mean 'mbs'"),
        ("mbs", "is not axis=values"),
        ("mbs=0", "a whole number from 1"),
        ("mbs=1,", "a whole number from 1"),
        ("mbs=1,1", "repeats a value"),
        ("mbs=1 mbs=2", "mbs is given twice"),
        ("schedule=1f2b", "did you mean '1f1b'"),
        ("  ", "expected axis=values"),
        ("mbs=1,2,3,4,5,6,7,8,9 batch=1,2,3,4,5,6,7,8", "makes 72 runs"),
    ],
)
def test_an_invalid_sweep_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text)
    assert words in one_line(error.value)


def test_every_combination_is_run_or_has_the_rule_it_breaks() -> None:
    found = points(CPU, parse("mbs=3,4 tp=1,2"))
    assert [point.name for point in found] == ["mbs=3 tp=1", "mbs=3 tp=2", "mbs=4 tp=1", "mbs=4 tp=2"]
    assert [bool(point.ready) for point in found] == [False, False, True, True]
    assert found[0].refusal == "dp x micro-batch (1 x 3) must divide the batch (8)"
    assert len({point.folder for point in found}) == 4


def test_batch_sequence_and_compiling_are_axes_too() -> None:
    (point,) = points(CPU, parse("batch=4 seq=32 compile=yes"))
    assert point.ready
    s = point.ready.settings
    assert (s.batch, s.seq, s.compile, s.layout.mbs) == (4, 32, True, 4)


def test_a_sweep_of_which_nothing_can_run_says_why_once() -> None:
    with pytest.raises(UserError, match=r"nothing can run: dp x micro-batch \(1 x 3\) must divide the batch \(8\)$"):
        points(CPU, parse("mbs=3"))


def outcome(name: str, seconds: float, *, oom: bool = False, predicted: float = 1.0, peak: float = 1e9) -> Outcome:
    ready = prepare(replace(CPU, mbs=4))
    row = failure(ready.settings, 1, "oom", "") if oom else measurement(ready.settings, [Step(0, 1, 1, seconds, 2.0**30)], 1)
    choice = replace(ready.predicted(), step=predicted, tokens_per_second=512 / predicted, peak=peak)
    return Outcome(Point({"mbs": name}, ready), row, choice)


def table(outcomes: Sequence[Outcome], refused: Sequence[Point]) -> list[Section]:
    return sections(SweepResult(Path("out"), "mbs=1,2", tuple(outcomes), tuple(refused)))


def test_the_table_is_sorted_by_measured_speed_with_the_planner_s_order_beside_it() -> None:
    some = [outcome("a", 4.0, predicted=2.0), outcome("b", 1.0, predicted=1.0), outcome("c", 2.0, predicted=4.0)]
    (section,) = table(some, [Point({"mbs": 3}, None, "a rule")])
    assert section.table
    assert [(cells[0], cells[-1]) for cells in section.table.cells()] == [("mbs=b", "1"), ("mbs=c", "3"), ("mbs=a", "2")]
    # ranks by speed: predicted b a c, measured b c a: rho = 1 - 6 x (0 + 1 + 1) / (3 x 8) = 0.5
    assert "rank correlation (Spearman) 0.50; the planner's pick, mbs=b, is the fastest measured" in section.lines[0]
    # measured over predicted: 2, 1 and 0.5; by their median, 1, the predicted seconds of a CPU are multiplied
    assert [cells[4] for cells in section.table.cells()] == ["1.0000", "4.0000", "2.0000"]
    assert section.lines[-1] == "not run, mbs=3: a rule"


def test_a_pick_that_is_not_the_fastest_is_reported_with_its_loss() -> None:
    (section,) = table([outcome("a", 1.0, predicted=2.0), outcome("b", 1.25, predicted=1.0)], [])
    assert "the planner's pick, mbs=b, is 20.0% slower than the fastest, mbs=a" in section.lines[0]


def test_a_run_out_of_memory_is_a_row_and_reported_if_it_was_the_pick() -> None:
    some = [outcome("a", 1.0, predicted=2.0), outcome("b", 0.0, oom=True, predicted=1.0)]
    told = as_text(table(some, []))
    assert "mbs=b        1       oom" in told
    assert "the planner's pick, mbs=b, failed (oom)" in told
    # one that the planner would not have let run was not its pick
    some[1] = outcome("b", 0.0, oom=True, predicted=1.0, peak=1e15)
    assert "the planner's pick, mbs=a, is the fastest measured" in as_text(table(some, []))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Runs that start no process: the smaller the micro-batch the slower, and one of 8 is out of memory."""
    started: list[Settings] = []

    def run_quietly(command: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[int, bool]:
        settings = Settings.read(Path(command[-1]))
        started.append(settings)
        log.write_text("torch.OutOfMemoryError: CUDA out of memory" if settings.layout.mbs == 8 else "", encoding="utf-8")
        if settings.layout.mbs == 8:
            return 1, False
        steps = [Step(i, 6.0 - i, 1.0, 1 / settings.layout.mbs, 2.0**30) for i in range(settings.steps)]
        add_row(Path(settings.out, "measurement.jsonl"), measurement(settings, steps, 1))
        return 0, False

    monkeypatch.setattr(processes, "run_quietly", run_quietly)
    return started


def test_a_sweep_goes_on_past_a_failure_and_its_table_is_one_that_validate_reads(
    run: Run, tmp_path: Path, pretended: list[Settings]
) -> None:
    out = tmp_path / "out"
    done = run("run", "--device", "cpu", "--sweep", "mbs=1,2,3,4,8", "--out", str(out))
    assert done.code == 0, done.err
    assert [(s.layout.mbs, s.steps) for s in pretended] == [(1, 8), (2, 8), (4, 8), (8, 8)]
    assert len({s.out for s in pretended}) == 4
    assert "run 4/4  mbs=8  oom: exit code 1" in done.out
    assert "not run, mbs=3: dp x micro-batch (1 x 3) must divide the batch (8)" in done.out
    rows = [json.loads(line) for line in (out / "measurement.jsonl").read_text().splitlines()]
    assert [(each["micro_batch"], each["outcome"]) for each in rows] == [(1, "ok"), (2, "ok"), (4, "ok"), (8, "oom")]
    scored: Any = json.loads(run("validate", str(out / "measurement.jsonl"), "--json").out)
    assert (scored["rows"], scored["timed_rows"], scored["oom"]["total"], scored["time"]["spearman"]) == (4, 3, 1, 1.0)
    assert "| mbs=4 |" in (out / "report.md").read_text()


@pytest.mark.parametrize("option", [["--report"], ["--dry-run"], ["--save"], ["--checkpoint-every", "5"], ["--profile", "1:1"]])
@pytest.mark.usefixtures("pretended")
def test_flags_that_do_not_apply_to_a_sweep_are_refused(run: Run, option: list[str]) -> None:
    assert f"--sweep measures short runs; drop {option[0]}" in refused(
        run("run", "--device", "cpu", "--sweep", "mbs=1,2", *option)
    )
