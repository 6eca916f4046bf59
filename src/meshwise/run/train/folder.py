"""A run folder, read while it trains or afterwards: the steps so far, its settings, its prediction, and its row of measurements."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.errors import UserError, quoted
from meshwise.units import GIB
from meshwise.workers.trainer.contract.rows import PREDICTED_COLUMNS, Step, median_seconds, rates, read_rows, read_steps
from meshwise.workers.trainer.contract.settings import Settings

MAX_SILENT_SECONDS = 120.0  # seconds without a step after which an unfinished run counts as stopped
STEPS, MEASURED = "steps.jsonl", "measurement.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """Contents of a run folder."""

    name: str
    settings: Settings
    steps: tuple[Step, ...]
    row: dict[str, Any]  # its last row of measurement.jsonl; empty until it ends
    stopped: str  # reason of a failure; '' if the run succeeded
    running: bool

    @property
    def predicted(self) -> dict[str, float | None]:
        """Predicted seconds per step, tokens per second, MFU and bytes, where there is a prediction; None where not known."""
        seconds, memory = (self.settings.facts.get(name) for name in PREDICTED_COLUMNS)
        if not seconds:
            return {}
        return self._figures(float(seconds), float(memory or 0.0) * GIB)

    @property
    def measured(self) -> dict[str, float | None]:
        """Median seconds per step after the warm-up, tokens per second, MFU and the most bytes; empty before the first step."""
        if not self.steps:
            return {}
        return self._figures(median_seconds(self.steps), max(step.memory for step in self.steps))

    def _figures(self, seconds: float, memory: float) -> dict[str, float | None]:
        tokens, _, mfu = rates(self.settings, seconds)
        return _known({"seconds": seconds, "tokens_per_second": tokens, "mfu": mfu, "memory": memory})

    def points(self, first: int = 0) -> list[dict[str, Any]]:
        """Return one row per step from the `first` line on: loss, seconds, tokens per second, MFU, bytes; None where not finite."""
        return [self._point(step) for step in self.steps[first:]]

    def _point(self, step: Step) -> dict[str, Any]:
        tokens, _, mfu = rates(self.settings, step.seconds)
        values = {"loss": step.loss, "seconds": step.seconds, "tokens_per_second": tokens, "mfu": mfu, "memory": step.memory}
        return {"step": step.step, **_known(values)}


def _known(values: dict[str, float]) -> dict[str, float | None]:
    """Return values without NaN and infinity, which JSON cannot express."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


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
    running = not finished and not stopped and bool(steps) and time.time() - steps[-1].ended < MAX_SILENT_SECONDS
    return RunFolder(folder.resolve().name, settings, steps, rows[-1] if rows else {}, stopped, running)


def _stopped(folder: Path) -> str:
    """Return the kind of failure that workers wrote down."""
    try:
        return str(json.loads((folder / "failure.json").read_text(encoding="utf-8")).get("kind", "failed"))
    except (OSError, ValueError, AttributeError):
        return ""
