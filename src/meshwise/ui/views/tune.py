"""The view of a tuning: its runs beside their predictions, the layout that it ends with, and what one more run might gain."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from meshwise import units
from meshwise.ui.views.tables import Column, Table, heading, wrapped
from meshwise.units import GIB

if TYPE_CHECKING:
    from meshwise.tune.loop.result import Tuned, TunedRun


def tune_view(tuned: "Tuned", width: int) -> RenderableType:
    """Return the table of runs, the best candidate with its interval, and what was written."""
    runs, candidates = (
        f"{count:,} {word}{'s' * (count != 1)}" for count, word in ((len(tuned.runs), "run"), (tuned.candidates, "candidate"))
    )
    head = [f"{tuned.title}: {runs} of {candidates}"]
    below = [*_best(tuned), f"stopped: {tuned.stopped}", *tuned.lines]
    table = [_table(tuned.runs).fitted(width)] if tuned.runs else []
    return Group(*heading(head, width), *table, *(wrapped(line, width) for line in below))


def _best(tuned: "Tuned") -> list[str]:
    best = tuned.best
    if best is None:
        return []
    low, high = (_time(value) for value in (best.low, best.high))
    return [
        f"best: {best.name}: {_time(best.seconds)} per {tuned.unit}, 90% of further runs expected from {low} to {high} "
        f"({_time(best.predicted)} predicted before the first run)",
        f"one more run is expected to save {tuned.gain:.2%} of the time",
    ]


def _table(runs: "Sequence[TunedRun]") -> "Table[TunedRun]":
    columns: list[Column[TunedRun]] = [
        Column("run", lambda run: str(run.number)),
        Column("candidate", lambda run: run.name, text=True),
        Column("devices", lambda run: str(run.devices), 3),
        Column("expected", lambda run: _time(run.predicted), 1),
        Column("measured", lambda run: _time(run.measured) or run.outcome),
        Column("lost", lambda run: "" if run.regret is None else f"{run.regret:.1%}"),
        Column("GiB", lambda run: _gib(run.memory), 2),
        Column("expected GiB", lambda run: _gib(run.predicted_memory), 2),
    ]
    return Table(columns, runs).without_empty_columns()


def _time(seconds: float | None) -> str:
    return "" if seconds is None else units.show(seconds, "seconds", digits=4)


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value / GIB:.2f}"
