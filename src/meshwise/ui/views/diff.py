"""Two saved plans side by side, on a terminal and on a page: what was asked, the figures, and the parts that differ."""

from rich.console import RenderableType

from meshwise import units
from meshwise.plan.diff import Figure, PlanDiff
from meshwise.ui.views.tables import Column, Table, heading, paragraphs, wrapped

TITLES = {
    "asked": "asked", "figures": "figures of the best layout", "time": "seconds of a step", "memory": "memory of the fullest device",
}  # fmt: skip


def diff_view(found: PlanDiff, width: int) -> RenderableType:
    """Return the header and tables of a diff."""
    header = [f"{letter}: {name}, {layout}" for letter, name, layout in zip("AB", found.names, found.layouts, strict=True)]
    data = [f"Made with another {', '.join(found.data)}: figures may differ for that reason alone."] if found.data else []
    shown = [[wrapped(title, width, style="bold"), table.fitted(width)] for title, table in tables(found)]
    return paragraphs(heading(header, width), [wrapped(line, width) for line in data], *shown)


def tables(found: PlanDiff) -> list[tuple[str, Table[Figure]]]:
    """Return a titled table for each kind of figure that there is."""
    columns: list[Column[Figure]] = [
        Column("", lambda one: one.name, text=True), Column("A", lambda one: _text(one, one.mine)),
        Column("B", lambda one: _text(one, one.other)), Column("change", _change, rank=1),
    ]  # fmt: skip
    by_kind = {kind: [one for one in found.figures if one.kind == kind] for kind in TITLES}
    return [(TITLES[kind], Table(columns, rows)) for kind, rows in by_kind.items() if rows]


def _text(one: Figure, value: float | str) -> str:
    if isinstance(value, str):
        return value or "(default)"
    return units.show(value, one.quantity, binary=one.quantity == "bytes")


def _change(one: Figure) -> str:
    return "" if not one.quantity or not one.mine or one.mine == one.other else f"{100 * (one.other / one.mine - 1):+.1f}%"
