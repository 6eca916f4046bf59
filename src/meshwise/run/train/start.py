"""Run a TrainRun from start to report: one run, a sweep, or one run and short ones at other sequence lengths."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from meshwise.catalogue import files
from meshwise.errors import DoesNotFit, UserError
from meshwise.output import ignore_broken_pipe
from meshwise.run.callbacks import Progress, Say, ignore
from meshwise.run.packages import require_torch
from meshwise.run.train import attempt, dry_run, hosts, launch, lengths, lock, previous, processes, submit, sweep
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.attempt import Attempt, with_prediction
from meshwise.run.train.launch import Launch
from meshwise.run.train.nodes import elastic
from meshwise.run.train.report import comparison, failure, sections
from meshwise.run.train.report.advice import Forecast, forecast
from meshwise.run.train.report.comparison import Measured
from meshwise.run.train.report.sections import Section
from meshwise.run.train.sweep import Outcome, Point
from meshwise.workers.trainer.contract.rows import add_row, read_rows
from meshwise.workers.trainer.contract.rows import failure as failure_row

OUT_OF_MEMORY = ("outofmemoryerror", "out of memory", "cannot allocate memory", "exitcode: -9", "exitcode  : -9")
"""How PyTorch, Linux and torchrun report it; a process that was killed (-9) had most often used too much memory."""


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A run that trained: measurements, forecast and report."""

    folder: Path
    measured: Measured
    forecast: Forecast | None
    """None if the chip is not in the catalogue."""
    sections: tuple[Section, ...]

    def __repr__(self) -> str:
        return f"<TrainResult in {self.folder}, {len(self.measured.steps)} steps; print(result.text) shows the report>"

    @property
    def text(self) -> str:
        """The report for a terminal; report.md in the folder has the same."""
        return sections.as_text(self.sections)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per step: step, loss, gradient norm, seconds, bytes."""
        return [vars(step) for step in self.measured.steps]

    def to_json(self) -> dict[str, Any]:
        """Return the row of measurement.jsonl."""
        return self.measured.row


@dataclass(frozen=True)
class SweepResult:
    """A sweep that ran: an outcome per combination that could run, and the report."""

    folder: Path
    outcomes: tuple[Outcome, ...]
    sections: tuple[Section, ...]

    @property
    def text(self) -> str:
        return sections.as_text(self.sections)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run, with the columns of measurement.jsonl."""
        return [outcome.row for outcome in self.outcomes]

    def to_json(self) -> list[dict[str, Any]]:
        return self.rows()


def start(
    run: TrainRun, *, say: Say, progress: Progress | None = None
) -> "TrainResult | SweepResult | dry_run.DryRun | submit.Submitted | None":
    """Train, sweep, submit to Slurm, or make a dry run. None if there was nothing to measure: all steps were done before, or another
    node reports."""
    say = ignore_broken_pipe(say)
    if run.sweep is not None:
        return _sweep(run, run.sweep, say)
    if run.launcher and not run.dry_run:
        return submit.submit(run, say)
    ready = launch.prepare(run)
    if run.dry_run:
        return dry_run.describe(run, ready)
    require_torch("run")
    points = lengths.points(run, ready, lengths.parse(run.report_lengths or lengths.LENGTHS)) if run.report else []

    def end(ready: Launch, done: Attempt) -> TrainResult | None:
        return _end(ready, done, run.folder, points, say)

    if ready.hosts.least:
        return elastic.train(ready, run.folder, say, progress, end)
    with lock.lock(run.folder, ready, say):
        previous.check(ready, run.folder)
        if ready.hosts.worker and not run.report:
            _become_worker(ready, run.folder, say)
        ready = attempt.write(ready, run.folder, say)
        done = attempt.run(ready, run.folder, say, progress)
        if done.code:
            _raise_failure(ready, run.folder, done.code, done.measured, say)
        return end(ready, done)


def _end(ready: Launch, done: Attempt, out: Path, points: list[Point], say: Say) -> TrainResult | None:
    """Report what was measured, if this node reports, and measure short runs at other sequence lengths if asked for."""
    measured = done.measured
    if measured is None:
        if ready.hosts.rank == 0 and not done.stopped:
            say(f"all {ready.settings.steps} steps were done before: no step was measured")
        return None
    predicted = forecast(ready, measured.earlier) if ready.on else None
    more = _other_lengths(ready, out, measured, predicted, points, say) if points and not done.stopped else []
    return finish(ready, out, measured, predicted, more, say)


def _become_worker(ready: Launch, out: Path, say: Say) -> NoReturn:
    """Replace this process, which torchrun or Slurm started, by a worker."""
    ready = processes.tokenize(ready, out, say)
    command = launch.command(ready, processes.write_settings(ready, out))
    sys.stdout.flush()
    os.execve(command[0], command, processes.environment(ready))


def _raise_failure(ready: Launch, out: Path, code: int, measured: Measured | None, say: Say) -> NoReturn:
    """Raise why training ended. If only a file could not be written after the last step, report the measurements first."""
    failed = failure.failure(out)
    why = failure.reason(failed, code, ready.settings.checkpoint_every)
    for line in failure.memory_lines(ready) if failed.get("kind") == "oom" else ():
        say(line)
    if measured and failed.get("kind") == "disk":
        try:
            finish(ready, out, measured, forecast(ready, measured.earlier) if ready.on else None, [], say)
        except DoesNotFit as error:
            why = f"{why}; {error}"
    raise DoesNotFit(why)


def finish(
    ready: Launch, out: Path, measured: Measured, predicted: Forecast | None, more: Sequence[Section], say: Say
) -> TrainResult:
    """Write the report to report.md and print it, even if the disk is full."""
    result = TrainResult(out, measured, predicted, (*more, *comparison.sections(measured, predicted)))
    unwritten = ""
    try:
        files.write(out / "report.md", sections.as_markdown(comparison.title(ready.settings), result.sections))
    except UserError as error:
        unwritten = str(error)
    ignore_broken_pipe(say)(f"\n{result.text}\n\n{comparison.files_in(out)}")
    if unwritten:
        raise DoesNotFit(unwritten)
    return result


def measure(points: Sequence[Point], out: Path, say: Say) -> list[Outcome]:
    """Run each point briefly in its own folder. All rows, failures too, go to one measurement.jsonl in `out`."""
    say, ready = ignore_broken_pipe(say), [point for point in points if point.ready]
    done: list[Outcome] = []
    for number, point in enumerate(ready, 1):
        if point.ready:
            hosts.wait_for_node_0(point.ready.hosts, say)
        outcome = _measure_one(point, out)
        add_row(out / "measurement.jsonl", outcome.row)
        result = (
            f"{outcome.rate:,.0f} tok/s, {float(outcome.row['mem_gb']):.2f} GiB"
            if outcome.ran
            else f"{outcome.row['outcome']}: {outcome.row['note']}"
        )
        say(f"run {number}/{len(ready)}  {point.name}  {result}")
        done.append(outcome)
    return done


def _measure_one(point: Point, out: Path) -> Outcome:
    assert point.ready
    folder = out / point.folder
    ready = replace(point.ready, settings=replace(point.ready.settings, out=str(folder)))
    lock.wait_for_workers(folder)
    ready, choice = with_prediction(processes.tokenize(ready, folder, ignore))
    s, file = ready.settings, processes.write_settings(ready, folder)
    log, before = folder / "output.txt", len(read_rows(folder / "measurement.jsonl"))
    code, stopped = processes.run_quietly(launch.command(ready, file), processes.environment(ready), log)
    if stopped:
        raise DoesNotFit(f"stopped by a signal; the runs before it are in {out}")
    rows = read_rows(folder / "measurement.jsonl")
    if code == 0 and len(rows) > before:
        return Outcome(point, rows[-1], choice)
    output = log.read_text(encoding="utf-8", errors="replace").lower()
    out_of_memory = failure.failure(folder).get("kind") == "oom" or any(words in output for words in OUT_OF_MEMORY)
    outcome = "oom" if out_of_memory else "fail"
    return Outcome(point, failure_row(s, s.layout.devices, outcome, f"exit code {code}, see {log}"), choice)


def _sweep(run: TrainRun, text: str, say: Say) -> SweepResult:
    """Measure every combination, and compare with the planner's order."""
    points, out = sweep.points(run, sweep.parse(text)), run.folder
    require_torch("run")
    with lock.lock(out, say=say):
        outcomes = measure(points, out, say)
        report_sections = sweep.table(outcomes, [point for point in points if not point.ready])
        (out / "report.md").write_text(sections.as_markdown(f"Sweep: {text}", report_sections), encoding="utf-8")
    result = SweepResult(out, tuple(outcomes), tuple(report_sections))
    say(f"\n{result.text}\n\nsaved in {out}: measurement.jsonl, report.md, and a folder for each run")
    return result


def _other_lengths(
    ready: Launch, out: Path, measured: Measured, predicted: Forecast | None, points: list[Point], say: Say
) -> list[Section]:
    """Measure short runs at other sequence lengths; return the sections that `--report` adds."""
    _make_folder(out / "lengths")
    outcomes = measure(points, out / "lengths", say)
    environment = json.loads(files.text_of(out / "environment.json"))
    same = lengths.equal_tokens(ready, [int(point.values["seq"]) for point in points]) > 0
    return [
        lengths.configuration(measured, predicted, ready.model.params, environment),
        lengths.per_rank(measured),
        lengths.losses(measured),
        lengths.comparison(outcomes, [point for point in points if not point.ready], same),
    ]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None
