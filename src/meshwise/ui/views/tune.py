"""The view of a tuning: its runs beside their predictions, the layout that it ends with, and what one more run might gain; and that of a
replay."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from meshwise import units
from meshwise.ui.views.tables import Column, Table, grid, heading, wrapped
from meshwise.units import GIB

if TYPE_CHECKING:
    from meshwise.tune.loop.result import Tuned, TunedRun
    from meshwise.tune.replay.replay import Replay


def tune_view(tuned: "Tuned", width: int) -> RenderableType:
    """Return the table of runs, the best candidate with its interval, and what was written."""
    counts = ((len(tuned.runs), "run"), (tuned.candidates, "candidate"))
    runs, candidates = (f"{count:,} {word}{'s' * (count != 1)}" for count, word in counts)
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


def replay_view(result: "Replay", width: int) -> RenderableType:
    """Return the mean regret over groups by number of runs, for each way to choose, and notes."""
    titles = ["time lost after", *(f"{number} run{'s' * (number > 1)}" for number in result.shown)]
    rows = [[each.name, *(_percent(each.mean(number)) for number in result.shown)] for each in result.strategies]
    table = grid(titles, rows, edged=True, style=lambda row: "bold" if row is rows[0] else "")
    groups = f"{len(result.groups)} group" + "s" * (len(result.groups) > 1)
    sizes = f"{min(result.sizes)} to {max(result.sizes)} runs"
    first = f"{result.table}: mean over {groups} of {sizes}; {result.skipped} rows not used"
    return Group(table.fitted(width), *(wrapped(note, width) for note in (first, *result.notes)))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.0005 else "0"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else units.show(seconds, "seconds", digits=4)


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value / GIB:.2f}"
