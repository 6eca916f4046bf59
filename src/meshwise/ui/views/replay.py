"""A replay of `tune` on a terminal: regret by number of runs, for each way to choose."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from meshwise.tune.replay.replay import Replay
from meshwise.ui.views.tables import wrapped


def replay_view(result: Replay, width: int) -> RenderableType:
    """Return the mean regret over groups by number of runs, and notes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("time lost after")
    for number in result.shown:
        table.add_column(f"{number} run" + "s" * (number > 1), justify="right")
    for strategy in result.strategies:
        cells = [_percent(strategy.mean(number)) for number in result.shown]
        table.add_row(strategy.name, *cells, style="bold" if strategy is result.strategies[0] else "")
    groups = f"{len(result.groups)} group" + "s" * (len(result.groups) > 1)
    first = (
        f"{result.table}: mean over {groups} of {min(result.sizes)} to {max(result.sizes)} runs; {result.skipped} rows not used"
    )
    return Group(table, *(wrapped(note, width) for note in (first, *result.notes)))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 0.0005 else "0"
