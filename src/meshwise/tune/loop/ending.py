"""The end of a tuning: the plan and the calibration are written, and everything is returned."""

import math
from collections.abc import Sequence

import numpy as np

from meshwise.tune.belief.choice import gain_left
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.loop.history import History
from meshwise.tune.loop.result import Best, Tuned, TunedRun, with_regret
from meshwise.tune.loop.subject import Verdict

LAYOUTS_LISTED = 100  # candidates from which the layouts of the tuned plan are taken


def result(history: History, stopped: str, lines: Sequence[str]) -> Tuned:
    """Write the plan and the calibration, and return everything."""
    subject, folder, posterior = history.subject, history.journal.folder, history.posterior()
    verdict = verdict_of(posterior, len(history.timed))
    written = (
        subject.finish(folder, verdict, [int(row) for row in np.argsort(posterior.mean)[:LAYOUTS_LISTED]]) if verdict else ()
    )
    space = subject.space
    best = Best(
        name=space.words(verdict.row), candidate=subject.describe(verdict.row), seconds=verdict.seconds, low=verdict.low,
        high=verdict.high, predicted=float(space.seconds[verdict.row]),
    ) if verdict else None  # fmt: skip
    runs = [
        TunedRun(
            number=run.number, name=run.name, devices=run.devices, predicted=run.predicted,
            measured=run.seconds if run.ran else None, predicted_memory=run.predicted_memory, memory=run.memory,
            outcome={"measured": run.failure or "ok", "rejected": "left out"}.get(run.state, run.state), note=run.note,
        )
        for run in history.runs
    ]  # fmt: skip
    return Tuned(
        title=subject.title, unit=subject.unit, folder=folder, runs=with_regret(runs),
        best=best, gain=gain_left(posterior), candidates=len(subject.space),
        stopped=stopped, lines=(*lines, *written),
    )  # fmt: skip


def verdict_of(posterior: Posterior, runs: int) -> Verdict | None:
    """Return the fastest candidate that was measured; None where none was, or none of them is a candidate any more."""
    if not posterior.measured:
        return None
    row = posterior.best()
    low, high = posterior.interval(row, 0.9)
    return Verdict(row, math.exp(posterior.measured[row]), low, high, gain_left(posterior), runs)
