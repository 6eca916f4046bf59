"""A replay of `tune` on a terminal: regret by number of runs, for each way to choose."""

from rich.console import Group, RenderableType

from meshwise.tune.replay.replay import Replay
from meshwise.ui.views.tables import grid, wrapped


def replay_view(result: Replay, width: int) -> RenderableType:
    """Return the mean regret over groups by number of runs, and notes."""
    titles = ["time lost after", *(f"{number} run{'s' * (number > 1)}" for number in result.shown)]
    rows = [[each.name, *(_percent(each.mean(number)) for number in result.shown)] for each in result.strategies]
    table = grid(titles, rows, edged=True, style=lambda row: "bold" if row is rows[0] else "")
    groups = f"{len(result.groups)} group" + "s" * (len(result.groups) > 1)
    first = (
        f"{result.table}: mean over {groups} of {min(result.sizes)} to {max(result.sizes)} runs; {result.skipped} rows not used"
    )
    return Group(table.fitted(width), *(wrapped(note, width) for note in (first, *result.notes)))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.0005 else "0"
