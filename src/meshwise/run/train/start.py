"""Run a TrainRun from start to report: one run, a sweep, or one run and short ones at other sequence lengths."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from meshwise.catalogue import files
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.train.choice import Choice
from meshwise.run.callbacks import Progress, Say, ignore
from meshwise.run.packages import require_torch
from meshwise.run.train import dry_run, failure, hosts, launch, lengths, previous, processes, report, sections, sweep
from meshwise.run.train.advice import Forecast, forecast
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import Launch
from meshwise.run.train.report import Measured
from meshwise.run.train.sections import Section
from meshwise.run.train.sweep import Outcome, Point
from meshwise.units import GIB
from meshwise.workers.trainer.ranks.output import ignore_broken_pipe
from meshwise.workers.trainer.report.rows import PREDICTED, add_row, read_rows
from meshwise.workers.trainer.report.rows import failure as failure_row
from meshwise.workers.trainer.settings import Settings

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


def start(run: TrainRun, *, say: Say, progress: Progress | None = None) -> "TrainResult | SweepResult | dry_run.DryRun | None":
    """Train, sweep, or make a dry run. None if there was nothing to measure: all steps were done before, or another node reports."""
    say = ignore_broken_pipe(say)
    if run.sweep is not None:
        return _sweep(run, run.sweep, say)
    ready = launch.prepare(run)
    if run.dry_run:
        return dry_run.describe(run, ready)
    require_torch("run")
    others = lengths.points(run, ready, lengths.parse(run.report_lengths or lengths.LENGTHS)) if run.report else []
    with previous.lock(run.folder, ready):
        previous.check(ready, run.folder)
        if ready.hosts.worker and not run.report:
            _become_worker(ready, run.folder, say)
        done = _train(ready, run.folder, say, progress)
        if done is None:
            return None
        measured, predicted, stopped = done
        more = _other_lengths(ready, run.folder, measured, predicted, others, say) if others and not stopped else []
        return finish(ready, run.folder, measured, predicted, more, say)


def _become_worker(ready: Launch, out: Path, say: Say) -> NoReturn:
    """Replace this process, which torchrun or Slurm started, by a worker."""
    ready = processes.tokenize(ready, out, say)
    command = launch.command(ready, processes.write_settings(ready, out))
    sys.stdout.flush()
    os.execve(command[0], command, processes.environment(ready))


def with_prediction(ready: Launch) -> tuple[Launch, Choice | None]:
    """Add the planner's prediction to the run's facts, so that the measurement row carries both."""
    if not ready.on:
        return ready, None
    predicted = ready.predicted()
    facts = ready.settings.facts | dict(zip(PREDICTED, (predicted.step, predicted.peak / GIB), strict=True))
    return replace(ready, settings=replace(ready.settings, facts=facts)), predicted


def _train(ready: Launch, out: Path, say: Say, progress: Progress | None) -> tuple[Measured, Forecast | None, bool] | None:
    """Train once. Return the measurements, the forecast, and whether a signal stopped it; None if there is nothing to report."""
    ready, predicted = with_prediction(processes.tokenize(ready, out, say))
    s, file = ready.settings, processes.write_settings(ready, out)
    lead = ready.hosts.rank == 0
    for line in _announcement(ready) if lead else ():
        say(line)
    if predicted and (warning := failure.memory_warning(ready, predicted)):
        say(warning)
    hosts.wait_for_node_0(ready.hosts, say)
    started, before = time.time(), len(read_rows(out / "measurement.jsonl"))
    (out / "failure.json").unlink(missing_ok=True)
    code, stopped = processes.follow(launch.command(ready, file), processes.environment(ready), s.steps, say, progress)
    measured = report.read(s, out, started, before) if lead else None
    if code:
        _raise_failure(ready, out, code, measured, say)
    if measured is None:
        if lead and not stopped:
            say(f"all {s.steps} steps were done before: no step was measured")
        return None
    return measured, forecast(ready, measured.earlier) if ready.on else None, stopped


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


def _announcement(ready: Launch) -> list[str]:
    """Return the model, batch, precision and devices of a run, and its notes."""
    s = ready.settings
    workers, parts = _plural(s.layout.devices, f"{s.device} process"), _plural(s.microbatches, "micro-batch")
    nodes = f" on {ready.hosts.nodes} nodes" if ready.hosts.nodes > 1 else ""
    return [
        f"{s.name}: {ready.model.params:,} parameters, {s.batch} x {s.seq} tokens per step in {parts}, "
        f"{s.precision} on {workers}{nodes}",
        f"learning rate {s.lr:g} after {s.warmup} steps of warm-up, then {s.lr_schedule}; gradient clipped to {s.clip:g}, weight decay "
        f"{s.weight_decay:g}{_accumulation(s)}",
        *ready.notes,
    ]


def _accumulation(s: Settings) -> str:
    """Return how many micro-batches a step accumulates, if several."""
    if s.microbatches == 1:
        return ""
    ranks = " on each data-parallel rank" if s.layout.dp > 1 else ""
    return f"; gradients of {s.microbatches} micro-batches of {s.layout.mbs} sequences are accumulated{ranks}"


def _plural(number: int, what: str) -> str:
    return f"{number} {what}{'es' if number > 1 else ''}"


def finish(
    ready: Launch, out: Path, measured: Measured, predicted: Forecast | None, more: Sequence[Section], say: Say
) -> TrainResult:
    """Write the report to report.md and print it, even if the disk is full."""
    result = TrainResult(out, measured, predicted, (*more, *report.sections(measured, predicted)))
    unwritten = ""
    try:
        files.write(out / "report.md", sections.as_markdown(report.title(ready.settings), result.sections))
    except UserError as error:
        unwritten = str(error)
    ignore_broken_pipe(say)(f"\n{result.text}\n\n{report.files_in(out)}")
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
    with previous.lock(out):
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
    environment = json.loads((out / "environment.json").read_text(encoding="utf-8"))
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
