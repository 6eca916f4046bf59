"""A log -> step time and memory, or a failure, or the reason why it does not count as a measurement."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.audit import report
from meshwise.audit.figures import Figures
from meshwise.errors import UserError
from meshwise.programs.logs import detect
from meshwise.run.train.short.measure import OUT_OF_MEMORY
from meshwise.runs.reading import Reading
from meshwise.runs.run import Run, Value
from meshwise.tune.belief.observation import Failure
from meshwise.tune.loop.launch import End, last_lines, tail

MEMORY_WORDS = (*OUT_OF_MEMORY, "resource_exhausted", "oom-kill", "oom_kill", "std::bad_alloc", "out_of_memory")
"""How programs, Linux and Slurm report that memory ran out, in lower case."""
HANG_WORDS = (
    "watchdog caught collective operation timeout", "collective operation timeout", "heartbeat monitor timed out",
    "timed out waiting", "without progress",
)  # fmt: skip
"""How NCCL, torch and meshwise report ranks that wait for each other for ever."""
QUIET_TIME_SHARE = 0.5  # share of the time limit without a line of output from which on a run that was ended counts as a hang
CHECKED_RULES = ("tokens per step", "step x throughput", "ranks and total", "layout", "batch", "above the chip", "memory", "NaN")
"""Rules of `audit` that a measurement must satisfy. Others are about figures that tuning does not use."""
AGREEING_COLUMNS = {
    "devices": "devices", "seq": "tokens in a sequence", "batch": "sequences in a batch", "tp": "tensor-parallel ranks",
    "pp": "pipeline stages", "cp": "context-parallel ranks", "dp": "data-parallel ranks", "mbs": "sequences in a micro-batch",
}  # fmt: skip
"""Figures in which a log must agree with the run that was started."""
MIN_STEPS = 2  # steps in a log from which on it counts


@dataclass(frozen=True)
class Outcome:
    """The result of a run: a measurement, a failure that teaches something, or a reason to leave it out."""

    seconds: float | None = None
    memory: float | None = None
    failure: Failure = ""
    rejected: str = ""  # why it is kept out of the fit; '' if it is not
    unread: bool = False  # whether it is kept out since no reader knows its log: another --format may read it later
    note: str = ""
    row: Mapping[str, Any] | None = None  # the row of measurement.jsonl that the run wrote itself


def measured(outcome: Outcome) -> dict[str, Value]:
    """Return the measurement of a run, by the names of its fields."""
    timed = outcome.seconds is not None and not outcome.failure
    told: dict[str, Value] = {"outcome": {"": "ok", "oom": "oom"}.get(outcome.failure, "fail"), "note": outcome.note}
    told |= {"seconds": outcome.seconds} if timed and outcome.seconds is not None else {}
    return told | ({"memory": outcome.memory} if outcome.memory is not None else {})


def outcome(log: Path, expected: Run, end: End, timeout: float, format: str = "") -> Outcome:
    """Return the result of a run from its log and from how it ended."""
    if end.how == "lost":
        return Outcome(rejected=f"it is gone without an exit code; its last lines: {last_lines(log)}")
    try:
        measured = measurement(log, expected, format)
    except UserError as error:
        measured = Outcome(rejected=str(error), unread=True)
    if end.code == 0 or (end.how == "timeout" and not measured.rejected):
        return measured
    return Outcome(failure=failure(log, end, timeout), note=_ended(end, log))


def failure(log: Path, end: End, timeout: float) -> Failure:
    """Return why a run failed, by the words in its log, or by when it stopped writing."""
    words = f"{tail(log)} {end.state}".lower()
    if any(word in words for word in MEMORY_WORDS):
        return "oom"
    if any(word in words for word in HANG_WORDS):
        return "hang"
    if end.how != "timeout":
        return "crash"
    return "hang" if _quiet(log) > QUIET_TIME_SHARE * timeout else "timeout"


def _quiet(log: Path) -> float:
    """Return the seconds since a file was last written; endless where there is none."""
    try:
        return time.time() - log.stat().st_mtime
    except OSError:
        return math.inf


def _ended(end: End, log: Path) -> str:
    how = f"ended after {end.seconds:.0f} s, its time limit" if end.how == "timeout" else end.state or f"exit code {end.code}"
    return f"{how}; its last lines: {last_lines(log, 3)}"


def measurement(log: Path, expected: Run, format: str = "") -> Outcome:
    """Return the step time and memory of a log. UserError where it cannot be read; rejected where it contradicts itself or the run."""
    reading = detect.read_file(log, format)
    filled = [run.merged(expected) for run in reading.runs]
    timed = [(stated, run) for stated, run in zip(reading.runs, filled, strict=True) if math.isfinite(Figures(run, "").seconds)]
    if not timed:
        skipped = "; ".join(reading.skipped.lines()[:2])
        raise UserError(f"{log.name}: read as {reading.format}, it states no step time{f' ({skipped})' if skipped else ''}")
    stated, run = timed[-1]  # a run that was resumed wrote several: the last one is whole
    figures = Figures(run, log.name)
    steps = run.number("steps_seen", math.inf)
    few = f"its log has {steps:.0f} step, too few to measure: raise --steps" if steps < MIN_STEPS else ""
    reason = few or other_run(stated, figures, expected) or contradiction(log.name, reading.format, run)
    memory = figures.memory if math.isfinite(figures.memory) else None
    if reason:
        return Outcome(rejected=reason)
    return Outcome(seconds=figures.seconds, memory=memory, note="" if math.isinf(steps) else f"{steps:.0f} steps in {log.name}")


def other_run(stated: Run, figures: Figures, expected: Run) -> str:
    """Return how a log contradicts the run that was started: other devices, another batch or layout; '' where it agrees."""
    for name, words in AGREEING_COLUMNS.items():
        want, have = expected.number(name), stated.number(name)
        if math.isfinite(want) and math.isfinite(have) and want != have and not stated.rough(name):
            return f"its log is of {have:g} {words}, where the run has {want:g}: the cluster or the launch files have changed"
    chip, planned = figures.chip, expected.text("chip")
    if chip is not None and stated.text("chip") and planned and chip.key != planned:
        return f"its log is of {chip.name}, where the plan is for {planned}: the cluster has changed"
    return ""


def contradiction(name: str, format: str, run: Run) -> str:
    """Return what `audit` finds certainly wrong with the measurement of a run; '' for nothing."""
    found = report.audit([(name, Reading(format, [run]))], planned=False).findings
    wrong = [finding for finding in found if finding.certainty == "certain" and finding.rule in CHECKED_RULES]
    return f"{wrong[0].message} ({wrong[0].arithmetic})" if wrong else ""
