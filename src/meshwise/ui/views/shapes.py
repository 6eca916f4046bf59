"""Shapes of a model on a terminal: a table of the fastest per parameter, and the faults of each."""

from collections.abc import Callable

from rich.console import RenderableType
from rich.text import Text

from meshwise import units
from meshwise.cost.axes import layout_name
from meshwise.plan.shapes.answer import DEFAULT_KIND_MODEL, Shapes
from meshwise.plan.shapes.search import Row
from meshwise.plan.train.choice import Choice
from meshwise.ui.views.plan import setting
from meshwise.ui.views.tables import Column, Table, heading, paragraphs, wrapped
from meshwise.units import GIB


def shapes_view(shapes: Shapes, width: int) -> RenderableType:
    """Return the table, the faults of each shape, and the properties that the fastest shapes share."""
    faults = [
        wrapped(f"{row.name}: {'; '.join(map(str, row.faults)) if row.faults else 'none'}", width, indent="  ")
        for row in shapes.shapes
    ]
    ask = shapes.ask
    size = f"near {units.show(ask.params, 'count')} parameters, " if ask.params else ""
    searched = f"{shapes.candidates:,} pairs of shape and layout searched, over {shapes.searched:,} shapes."
    return paragraphs(
        heading([f"shapes {size}like {ask.like or DEFAULT_KIND_MODEL}, on {ask.on}", setting(ask, shapes.framework)], width),
        [Table(_columns(), shapes.shapes).fitted(width)],
        [Text("faults of each shape, with their cost in percent of its seconds per parameter", style="bold"), *faults],
        [Text(searched), *([wrapped(shapes.rule, width)] if shapes.rule else [])],
    )


def _columns() -> list[Column[Row]]:
    def of(cell: Callable[[Choice], str]) -> Callable[[Row], str]:
        return lambda row: cell(row.choice) if row.choice else ""

    def of_layout(row: Row, *, short: bool = False) -> str:
        return layout_name(row.choice.layout, short=short) if row.choice else "does not fit"

    return [
        Column("hidden", lambda row: str(row.shape["hidden"])),
        Column("layers", lambda row: str(row.shape["layers"])),
        Column("heads", lambda row: str(row.shape["heads"])),
        Column("head size", lambda row: str(row.shape["hidden"] // row.shape["heads"]), rank=4),
        Column("FFW", lambda row: str(row.shape["ffn"]), rank=3),
        Column("params", lambda row: units.show(row.params, "count", digits=4)),
        Column("s/step", of(lambda c: f"{c.step:.4g}")),
        Column("s per 100B", lambda row: f"{row.per_parameter * 1e11:.4g}" if row.choice else "", rank=1),
        Column("MFU", of(lambda c: f"{100 * c.mfu:.1f}%"), rank=2),
        Column("GiB", of(lambda c: f"{c.peak / GIB:.1f}"), rank=5),
        Column("layout", of_layout, text=True, short=lambda row: of_layout(row, short=True)),
    ]
