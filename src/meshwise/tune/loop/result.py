"""Tuned: the runs of a tuning, the layout that it ends with, and what one more run might gain."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TunedRun:
    """One run beside its prediction. Seconds and bytes."""

    number: int
    name: str
    devices: int
    predicted: float | None  # seconds expected when it was chosen, after the runs before it
    measured: float | None
    predicted_memory: float | None
    memory: float | None
    outcome: str  # ok, oom, crash, hang, timeout, or left out
    regret: float | None = None  # time lost against the fastest measured run of all, as a share
    best: float | None = None  # the fastest measured so far, this run included
    note: str = ""


@dataclass(frozen=True)
class Best:
    """The candidate that a tuning ends with."""

    name: str
    candidate: dict[str, Any]
    seconds: float
    low: float
    high: float  # 90% of further measurements are expected between these
    predicted: float  # seconds that the shipped calibration predicted before the first run


@dataclass(frozen=True)
class Tuned:
    """The result of `meshwise tune`."""

    title: str
    unit: str  # unit that a second is per: step, or output token
    folder: Path
    runs: tuple[TunedRun, ...]
    best: Best | None  # none where no run was measured
    gain: float  # the share of the time that one more run is expected to save
    candidates: int
    stopped: str  # why no further run was started
    lines: tuple[str, ...] = ()  # lines about files that were written and runs that were left out

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per run, with the columns of `--csv`."""
        return [asdict(run) for run in self.runs]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}

    def __repr__(self) -> str:
        best = f"{self.best.name!r}, {self.best.seconds:.4g} s" if self.best else "nothing measured"
        return f"<Tuned {best}, {len(self.runs)} runs in {self.folder}>"


def with_regret(runs: Sequence[TunedRun]) -> tuple[TunedRun, ...]:
    """Return runs in order, each with the fastest up to it, and the time it lost against the fastest of all."""
    times = [run.measured for run in runs if run.measured is not None]
    fastest, best = min(times, default=None), None
    done: list[TunedRun] = []
    for run in runs:
        if run.measured is not None:
            best = run.measured if best is None else min(best, run.measured)
        regret = run.measured / fastest - 1 if run.measured is not None and fastest else None
        done.append(replace(run, best=best, regret=regret))
    return tuple(done)
