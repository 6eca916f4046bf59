"""Measure short runs, one after another: a sweep over layouts and batches, or other sequence lengths."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshwise.errors import DoesNotFit
from meshwise.output import ignore_broken_pipe
from meshwise.run.callbacks import Say, ignore
from meshwise.run.packages import require_torch
from meshwise.run.train import hosts, launch, lock, processes
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.attempt import with_prediction
from meshwise.run.train.report import failure
from meshwise.run.train.results import Draw, SweepResult
from meshwise.run.train.short import sweep as sweeps
from meshwise.run.train.short.sweep import Outcome, Point
from meshwise.workers.trainer.contract.rows import add_row, read_rows
from meshwise.workers.trainer.contract.rows import failure as failure_row

OUT_OF_MEMORY = ("outofmemoryerror", "out of memory", "cannot allocate memory", "exitcode: -9", "exitcode  : -9")
"""How PyTorch, Linux and torchrun report it; a process that was killed (-9) had most often used too much memory."""


def sweep(run: TrainRun, text: str, say: Say, draw: Draw) -> SweepResult:
    """Measure every combination, and compare with the planner's order."""
    points, out = sweeps.points(run, sweeps.parse(text)), run.folder
    require_torch("run")
    outcomes: list[Outcome] = []
    stopped: DoesNotFit | None = None
    with lock.lock(out, say=say):
        try:
            measure(points, out, say, outcomes)
        except DoesNotFit as error:
            if not outcomes:
                raise
            stopped = error
        result = SweepResult(out, text, tuple(outcomes), tuple(point for point in points if not point.ready))
        shown, markdown = draw(result)
        (out / "report.md").write_text(markdown, encoding="utf-8")
    say(f"\n{shown}\n\nsaved in {out}: measurement.jsonl, report.md, and a folder for each run")
    if stopped is not None:
        raise stopped
    return replace(result, text=shown)


def measure(points: Sequence[Point], out: Path, say: Say, done: list[Outcome]) -> None:
    """Run each point briefly in its own folder; all rows go to measurement.jsonl in `out`, outcomes to `done`; DoesNotFit on a signal."""
    say, ready = ignore_broken_pipe(say), [point for point in points if point.ready]
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
