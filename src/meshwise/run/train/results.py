"""The results of `meshwise run`: a run that trained, or a sweep."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwise.run.train.report.advice import Forecast
    from meshwise.run.train.report.comparison import Measured
    from meshwise.run.train.short.sweep import Outcome, Point


@dataclass(frozen=True)
class Lengths:
    """Short runs at other sequence lengths, which `--report` adds, and what the run trained on."""

    outcomes: "tuple[Outcome, ...]"
    refused: "tuple[Point, ...]"
    same_tokens: bool  # whether a step has as many tokens at every length
    params: int
    environment: dict[str, object]


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A run that trained: measurements, forecast and report."""

    folder: Path
    measured: "Measured"
    forecast: "Forecast | None"  # none if the chip is not in the catalogue
    lengths: Lengths | None = None
    text: str = ""  # the report for a terminal; report.md in the folder has the same

    def __repr__(self) -> str:
        return f"<TrainResult in {self.folder}, {len(self.measured.steps)} steps; print(result.text) shows the report>"

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per step: step, loss, gradient norm, seconds, bytes."""
        return [vars(step) for step in self.measured.steps]

    def to_json(self) -> dict[str, Any]:
        """Return the row of measurement.jsonl."""
        return self.measured.row


@dataclass(frozen=True)
class SweepResult:
    """A sweep that ran: an outcome per combination that could run, the rule that each other one breaks, and the report."""

    folder: Path
    axes: str  # as they were asked for: 'mbs=1,2,4 tp=1,2'
    outcomes: "tuple[Outcome, ...]"
    refused: "tuple[Point, ...]"
    text: str = ""  # the report for a terminal; report.md in the folder has the same

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run, with the columns of measurement.jsonl."""
        return [outcome.row for outcome in self.outcomes]

    def to_json(self) -> list[dict[str, Any]]:
        return self.rows()


Draw = Callable[[TrainResult | SweepResult], tuple[str, str]]
"""Draws the report of a run for a terminal, and the same as Markdown. Views stand above the runs, which are handed this."""
