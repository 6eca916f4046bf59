"""Running: start a run, a sweep or a comparison over lengths, and make the report of it."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from meshwise.catalogue import files
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.train.choice import Choice
from meshwise.run.train import failure as aftermath
from meshwise.run.train import hosts, launch, previous, sections, sweep
from meshwise.run.train import lengths as run_lengths
from meshwise.run.train import processes as workers
from meshwise.run.train import report as run_report
from meshwise.run.train.advice import Forecast, forecast
from meshwise.run.train.launch import Launch, Wish
from meshwise.run.train.report import Seen
from meshwise.run.train.sections import Section
from meshwise.run.train.sweep import Outcome, Point
from meshwise.units import GIB
from meshwise.workers.trainer.ranks import output
from meshwise.workers.trainer.report.rows import PREDICTED, add_row, failure, read_rows

Say = Callable[[str], None]
OUT_OF_MEMORY = ("outofmemoryerror", "out of memory", "cannot allocate memory", "exitcode: -9", "exitcode  : -9")
"""Words of PyTorch, Linux and torchrun for it; a process that is killed outright was most often too large."""

PLAIN = {"save": False, "checkpoint_every": 0, "tensorboard": False, "profile_steps": 0, "memory_snapshot": False}
"""Options of a short run beside the one that was asked for: it is measured, and nothing else."""


def foretold(ready: Launch) -> tuple[Launch, Choice | None]:
    """The run with the planner's word on it among its facts, so that it stands in the row beside what is measured."""
    if not ready.on:
        return ready, None
    one = ready.predicted()
    facts = ready.settings.facts | dict(zip(PREDICTED, (one.step, one.peak / GIB), strict=True))
    return replace(ready, settings=replace(ready.settings, facts=facts)), one


def train(ready: Launch, out: Path, say: Say) -> tuple[Seen, Forecast | None] | None:
    """One run with its lines on the terminal; what it left, or nothing where there is no more to say of it or to do after it."""
    say = output.ignore_broken_pipe(say)
    ready, one = foretold(workers.reading(ready, out, say))
    s, file = ready.settings, workers.write(ready, out)
    lead = ready.hosts.rank == 0
    if lead:
        _announce(ready, say)
    if one and (note := aftermath.tight(ready, one)):
        say(note)
    hosts.reach(ready.hosts, say)
    started, before = time.time(), len(read_rows(out / "measurement.jsonl"))
    (out / "failure.json").unlink(missing_ok=True)
    code, stopped = workers.follow(launch.command(ready, file), workers.environment(ready), s.steps)
    seen = run_report.read(s, out, started, before) if lead else None
    if code:
        _failed(ready, out, code, seen, say)
    if seen is None:
        if lead and not stopped:
            say(f"all {s.steps} steps were done before: no step was measured")
        return None
    found = forecast(ready, seen.earlier) if ready.on else None
    if stopped:  # the steps that were done are told; runs that were to follow are not
        report(ready, out, seen, found, [], say)
        return None
    return seen, found


def _failed(ready: Launch, out: Path, code: int, seen: Seen | None, say: Say) -> NoReturn:
    """Why training ended; where only something could not be written after the last step, with the report of what was measured."""
    found = aftermath.failure(out)
    why = aftermath.reason(found, code, ready.settings.checkpoint_every)
    for line in aftermath.memory_lines(ready) if found.get("kind") == "oom" else ():
        output.say(line, sys.stderr)
    if seen and found.get("kind") == "disk":
        try:
            report(ready, out, seen, forecast(ready, seen.earlier) if ready.on else None, [], say)
        except DoesNotFit as error:
            why = f"{why}; {error}"
    raise DoesNotFit(why)


def _announce(ready: Launch, say: Say) -> None:
    s = ready.settings
    processes, parts = _several(s.layout.devices, f"{s.device} process"), _several(s.microbatches, "micro-batch")
    nodes = f" of {ready.hosts.nodes} nodes" if ready.hosts.nodes > 1 else ""
    say(
        f"{s.name}: {ready.model.params:,} parameters, {s.batch} x {s.seq} tokens a step in {parts}, "
        f"{s.precision} on {processes}{nodes}"
    )
    for note in ready.notes:
        say(note)


def _several(number: int, what: str) -> str:
    return f"{number} {what}{'es' if number > 1 else ''}"


def report(ready: Launch, out: Path, seen: Seen, found: Forecast | None, more: Sequence[Section], say: Say) -> None:
    """Write the report to report.md, and print it, also where the disk is full."""
    every, unwritten = [*more, *run_report.sections(seen, found)], ""
    try:
        files.write(out / "report.md", sections.as_markdown(run_report.title(ready.settings), every))
    except UserError as error:
        unwritten = str(error)
    output.ignore_broken_pipe(say)("\n" + sections.as_text(every) + "\n\n" + run_report.kept(out))
    if unwritten:
        raise DoesNotFit(unwritten)


def measure(points: Sequence[Point], out: Path, say: Say) -> list[Outcome]:
    """A short run of each point, in a folder of its own; every row, failures too, in one measurement.jsonl of the folder above."""
    say, ready = output.ignore_broken_pipe(say), [point for point in points if point.ready]
    done: list[Outcome] = []
    for number, point in enumerate(ready, 1):
        if point.ready:
            hosts.reach(point.ready.hosts, say)
        one = _measured(point, out)
        add_row(out / "measurement.jsonl", one.row)
        told = (
            f"{one.rate:,.0f} tok/s, {float(one.row['mem_gb']):.2f} GiB"
            if one.ran
            else f"{one.row['outcome']}: {one.row['note']}"
        )
        say(f"run {number}/{len(ready)}  {point.name}  {told}")
        done.append(one)
    return done


def _measured(point: Point, out: Path) -> Outcome:
    assert point.ready
    folder = out / point.folder
    ready = replace(point.ready, settings=replace(point.ready.settings, out=str(folder)))
    ready, choice = foretold(workers.reading(ready, folder, lambda _: None))
    s, file = ready.settings, workers.write(ready, folder)
    log, before = folder / "output.txt", len(read_rows(folder / "measurement.jsonl"))
    code, stopped = workers.quietly(launch.command(ready, file), workers.environment(ready), log)
    if stopped:
        raise DoesNotFit(f"stopped by a signal; the runs before it are in {out}")
    rows = read_rows(folder / "measurement.jsonl")
    if code == 0 and len(rows) > before:
        return Outcome(point, rows[-1], choice)
    said = log.read_text(encoding="utf-8", errors="replace").lower()
    out_of_memory = aftermath.failure(folder).get("kind") == "oom" or any(words in said for words in OUT_OF_MEMORY)
    outcome = "oom" if out_of_memory else "fail"
    return Outcome(point, failure(s, s.layout.devices, outcome, f"exit code {code}, {log} has what was said"), choice)


def run_sweep(wish: Wish, text: str, out: Path, say: Say) -> None:
    """Measure every combination, and lay the table beside the planner's."""
    points = sweep.points(wish, sweep.parse(text))
    launch.check_torch()
    with previous.alone(out):
        outcomes = measure(points, out, say)
        found = sweep.table(outcomes, [point for point in points if not point.ready])
        (out / "report.md").write_text(sections.as_markdown(f"Sweep: {text}", found), encoding="utf-8")
    output.ignore_broken_pipe(say)(
        "\n" + sections.as_text(found) + f"\n\nkept in {out}: measurement.jsonl, report.md, and a folder for each run"
    )


def run_reported(wish: Wish, ready: Launch, lengths: str, steps: int, out: Path, say: Say) -> None:
    """A run as asked, short ones at several lengths, and the full report of them."""
    short = replace(wish, options=wish.options | {"steps": steps} | PLAIN)
    some = run_lengths.points(short, ready, run_lengths.parse(lengths))
    same = run_lengths.equal_tokens(ready, [int(point.values["seq"]) for point in some]) > 0
    with previous.alone(out, ready):
        previous.check(ready, out)
        done = train(ready, out, say)
        if done is None:
            return
        seen, found = done
        _made(out / "lengths")
        outcomes = measure(some, out / "lengths", say)
        environment = json.loads((out / "environment.json").read_text(encoding="utf-8"))
        first = [
            run_lengths.configuration(seen, found, ready.model.params, environment),
            run_lengths.per_rank(seen),
            run_lengths.losses(seen),
        ]
        refused = [point for point in some if not point.ready]
        report(ready, out, seen, found, [*first, run_lengths.comparison(outcomes, refused, same)], say)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None
