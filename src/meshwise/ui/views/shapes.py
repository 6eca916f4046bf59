"""Shapes on a terminal: a table of the fastest per parameter, and what each gives away."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.cost.layout import name_of
from meshwise.plan.shapes.search import Fastest, Row
from meshwise.units import GIB


def shapes_view(rows: Sequence[Row], found: Fastest, rule: str) -> RenderableType:
    """The table, the faults of each row, and the rule that the best follow."""
    counted = f"{found.candidates:,} shapes x layouts searched, of {len(found.shapes):,} shapes."
    faults = [Text(f"{row.name}: {'; '.join(map(str, row.faults)) if row.faults else 'nothing worth telling'}") for row in rows]
    return Group(
        _table(rows),
        Text("what each gives away, in percent of its seconds per parameter", style="bold"),
        *faults,
        Text(),
        Text(counted),
        *([Text(rule)] if rule else []),
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in ("hidden", "layers", "heads", "of", "FFW", "params", "s/step", "per 100B", "MFU", "GiB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("layout")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    s = row.shape
    sizes = [f"{s['hidden']}", f"{s['layers']}", f"{s['heads']}", f"{s['hidden'] // s['heads']}", f"{s['ffn']}"]
    params = units.show(row.params, "count", digits=4)
    if row.choice is None:
        return [*sizes, params, "", "", "", "", "fits nowhere"]
    c = row.choice
    return [
        *sizes,
        params,
        f"{c.seconds:.4g}",
        f"{row.per_parameter * 1e11:.4g}",
        f"{100 * c.mfu:.1f}%",
        f"{c.memory / GIB:.1f}",
        name_of(c.layout),
    ]
