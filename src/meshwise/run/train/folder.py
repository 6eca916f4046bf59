"""A run folder, read while it trains or afterwards: the steps so far, its settings, its prediction, and its row of measurements."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.errors import UserError, quoted
from meshwise.units import GIB
from meshwise.workers.trainer.report.rows import PREDICTED, Step, median_seconds, rates, read_rows, read_steps
from meshwise.workers.trainer.settings import Settings

SILENT = 120.0
"""Seconds without a step after which an unfinished run counts as stopped."""
STEPS, MEASURED = "steps.jsonl", "measurement.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """What a run folder holds."""

    name: str
    settings: Settings
    steps: tuple[Step, ...]
    row: dict[str, Any]
    """Its last row of measurement.jsonl; empty until it ends."""
    stopped: str
    """Why it failed; '' where it did not."""
    running: bool

    @property
    def predicted(self) -> dict[str, float]:
        """Predicted seconds per step, tokens per second and GiB, where there is a prediction."""
        seconds, memory = (self.settings.facts.get(name) for name in PREDICTED)
        if not seconds:
            return {}
        tokens, _, mfu = rates(self.settings, float(seconds))
        return {"seconds": float(seconds), "tokens_per_second": tokens, "mfu": mfu, "memory": float(memory or 0.0) * GIB}

    @property
    def measured(self) -> dict[str, float]:
        """Median seconds per step after the warm-up, tokens per second, MFU and the most bytes; empty before the first step."""
        if not self.steps:
            return {}
        seconds = median_seconds(self.steps)
        tokens, _, mfu = rates(self.settings, seconds)
        return {"seconds": seconds, "tokens_per_second": tokens, "mfu": mfu, "memory": max(step.memory for step in self.steps)}

    def points(self, first: int = 0) -> list[dict[str, Any]]:
        """Return one row per step from the `first` line on: loss, seconds, tokens per second, MFU, bytes; None where not finite."""
        return [self._point(step) for step in self.steps[first:]]

    def _point(self, step: Step) -> dict[str, Any]:
        tokens, _, mfu = rates(self.settings, step.seconds)
        values = {"loss": step.loss, "seconds": step.seconds, "tokens_per_second": tokens, "mfu": mfu, "memory": step.memory}
        return {"step": step.step, **{name: value if abs(value) < 1e300 else None for name, value in values.items()}}


def read(folder: Path) -> RunFolder:
    """Read a run folder. UserError where it is none, or damaged."""
    try:
        settings = Settings.read(folder / "config.json")
        steps = tuple(read_steps(folder / STEPS))
        rows = read_rows(folder / MEASURED)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{quoted(str(folder), 200)} is not a folder of 'meshwise run': {error}") from None
    finished = bool(steps) and steps[-1].step + 1 >= settings.steps
    stopped = _stopped(folder)
    running = not finished and not stopped and bool(steps) and time.time() - steps[-1].ended < SILENT
    return RunFolder(folder.resolve().name, settings, steps, rows[-1] if rows else {}, stopped, running)


def _stopped(folder: Path) -> str:
    """Return the kind of failure that workers wrote down."""
    try:
        return str(json.loads((folder / "failure.json").read_text(encoding="utf-8")).get("kind", "failed"))
    except (OSError, ValueError, AttributeError):
        return ""
