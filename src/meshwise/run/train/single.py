"""One run from its workers to its report, and short runs at other sequence lengths if they are asked for."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from meshwise.catalogue import files
from meshwise.errors import DoesNotFit, UserError
from meshwise.output import ignore_broken_pipe
from meshwise.run.callbacks import Progress, Say
from meshwise.run.packages import require_torch
from meshwise.run.train import attempt, launch, lock, previous, processes
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.attempt import Attempt
from meshwise.run.train.launch import Launch
from meshwise.run.train.nodes import elastic
from meshwise.run.train.report import comparison, failure
from meshwise.run.train.report.advice import forecast
from meshwise.run.train.report.comparison import Measured
from meshwise.run.train.results import Draw, Lengths, TrainResult
from meshwise.run.train.short import lengths, measure
from meshwise.run.train.short.sweep import Outcome, Point


def train(run: TrainRun, ready: Launch, say: Say, progress: Progress | None, draw: Draw) -> TrainResult | None:
    """Train and report; None if there was nothing to measure, or another node reports."""
    require_torch("run")
    points = lengths.points(run, ready, lengths.parse(run.report_lengths or lengths.LENGTHS)) if run.report else []

    def end(ready: Launch, done: Attempt) -> TrainResult | None:
        return _end(ready, done, run.folder, points, say, draw)

    if ready.hosts.least:
        return elastic.train(ready, run.folder, say, progress, end)
    with lock.lock(run.folder, ready, say):
        previous.check(ready, run.folder)
        if ready.hosts.worker and not run.report:
            _become_worker(ready, run.folder, say)
        ready = attempt.write(ready, run.folder, say)
        done = attempt.run(ready, run.folder, say, progress)
        if done.code:
            _raise_failure(ready, run.folder, done.code, done.measured, say, draw)
        return end(ready, done)


def _end(ready: Launch, done: Attempt, out: Path, points: list[Point], say: Say, draw: Draw) -> TrainResult | None:
    """Report what was measured, if this node reports, and measure short runs at other sequence lengths if asked for."""
    measured = done.measured
    if measured is None:
        if ready.hosts.rank == 0 and not done.stopped:
            say(f"all {ready.settings.steps} steps were done before: no step was measured")
        return None
    result = _result(ready, out, measured)
    if points and not done.stopped:
        result = replace(result, lengths=_other_lengths(ready, out, points, say))
    return finish(result, say, draw)


def _result(ready: Launch, out: Path, measured: Measured) -> TrainResult:
    return TrainResult(out, measured, forecast(ready, measured.earlier) if ready.on else None)


def _become_worker(ready: Launch, out: Path, say: Say) -> NoReturn:
    """Replace this process, which torchrun or Slurm started, by a worker."""
    ready = processes.tokenize(ready, out, say)
    command = launch.command(ready, processes.write_settings(ready, out))
    sys.stdout.flush()
    os.execve(command[0], command, processes.environment(ready))


def _raise_failure(ready: Launch, out: Path, code: int, measured: Measured | None, say: Say, draw: Draw) -> NoReturn:
    """Raise why training ended. If only a file could not be written after the last step, report the measurements first."""
    failed = failure.failure(out)
    why = failure.reason(failed, code, ready.settings.checkpoint_every)
    for line in failure.memory_lines(ready) if failed.get("kind") == "oom" else ():
        say(line)
    if measured and failed.get("kind") == "disk":
        try:
            finish(_result(ready, out, measured), say, draw)
        except DoesNotFit as error:
            why = f"{why}; {error}"
    raise DoesNotFit(why)


def finish(result: TrainResult, say: Say, draw: Draw) -> TrainResult:
    """Write the report to report.md and print it, even if the disk is full."""
    text, markdown = draw(result)
    unwritten = ""
    try:
        files.write(result.folder / "report.md", markdown)
    except UserError as error:
        unwritten = str(error)
    ignore_broken_pipe(say)(f"\n{text}\n\n{comparison.files_in(result.folder)}")
    if unwritten:
        raise DoesNotFit(unwritten)
    return replace(result, text=text)


def _other_lengths(ready: Launch, out: Path, points: list[Point], say: Say) -> Lengths:
    """Measure short runs at other sequence lengths."""
    folder = out / "lengths"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None
    outcomes: list[Outcome] = []
    measure.measure(points, folder, say, outcomes)
    environment = json.loads(files.text_of(out / "environment.json"))
    same = lengths.equal_tokens(ready, [int(point.values["seq"]) for point in points]) > 0
    refused = tuple(point for point in points if not point.ready)
    return Lengths(tuple(outcomes), refused, same, ready.model.params, environment)
