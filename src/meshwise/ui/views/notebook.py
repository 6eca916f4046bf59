"""Results as HTML for a notebook: the view of a terminal in its colours; of a plan the table, bars of the best layout, and its command."""

from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console

from meshwise.audit.check.verdict import Verdict
from meshwise.cost.parts import SERVE_TIME, TRAIN_MEMORY, TRAIN_TIME, Part
from meshwise.models.count import Count
from meshwise.plan.plan import Plan
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.ui import views
from meshwise.ui.views import plan, serve
from meshwise.ui.views.bars import MIN_LEGEND_SHARE
from meshwise.ui.views.tables import Table
from meshwise.units import GIB

WIDTH = 110  # columns of a view
FRAME = '<pre style="font-family:monospace;line-height:1.2;overflow-x:auto">{code}</pre>'


def html(result: Any) -> str:
    """Return any result as HTML."""
    if isinstance(result, TrainPlan | ServePlan):
        return plan_html(result)
    view = views.of(
        [result] if isinstance(result, Count) else result, WIDTH, **({"verbose": False} if isinstance(result, Verdict) else {})
    )
    out = Console(file=StringIO(), width=WIDTH, record=True, markup=False, emoji=False, highlight=False)
    out.print(view, soft_wrap=True)
    return out.export_html(inline_styles=True, code_format=FRAME)


def plan_html(made: Plan[Any, Any]) -> str:
    """Return a training or serving plan as HTML."""
    if isinstance(made, TrainPlan):
        best = made.best
        drawn = [
            _bar(TRAIN_TIME, best.time, best.step, f"{best.step:.4g} s per step"),
            _bar(TRAIN_MEMORY, best.memory, best.capacity, f"{best.peak / GIB:.1f} of {best.capacity / GIB:.0f} GiB"),
        ]
        return _page(plan.header(made), _table(plan.table(made)), drawn, made.command)
    assert isinstance(made, ServePlan)
    total = sum(made.best.time.values())
    drawn = [_bar(SERVE_TIME, made.best.time, total, f"{1e3 * total:.4g} ms per decode step")]
    return _page(serve.header(made), _table(serve.table(made)), drawn, made.command)


def _bar(parts: Sequence[Part], values: dict[str, float], full: float, label: str) -> str:
    """Return a stacked bar, and the names of its larger parts in their colours."""
    names = "  ".join(
        f'<span style="color:{part.colour}">&#9632;</span> {escape(part.words)} {100 * values[part.name] / full:.0f}%'
        for part in parts
        if values[part.name] > MIN_LEGEND_SHARE * full
    )
    return _stacked(parts, values, full, label) + f'<div style="color:#666;font-size:smaller">{names}</div>'


def _table(shown: Table[Any]) -> str:
    sides = [f"style='text-align:{'left' if column.text else 'right'}'" for column in shown.columns]
    titles = "".join(f"<th {side}>{escape(column.title)}</th>" for side, column in zip(sides, shown.columns, strict=True))
    rows = (
        "".join(f"<td {side}>{escape(cell)}</td>" for side, cell in zip(sides, cells, strict=True)) for cells in shown.cells()
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _page(title: Sequence[str], table: str, drawn: Sequence[str], command: str) -> str:
    heading = "<br>".join(escape(line) for line in title)
    return f"<div><b>{heading}</b>{table}{''.join(drawn)}<code>{escape(command)}</code></div>"


def _stacked(parts: Sequence[Part], values: Mapping[str, float], full: float, label: str) -> str:
    """Return a stacked bar as HTML: a box per part, in the same colours as on a terminal."""
    boxes = "".join(
        f'<span title="{escape(part.words)}: {100 * values[part.name] / full:.1f}%" style="display:inline-block;height:1em;'
        f'width:{100 * values[part.name] / full:.2f}%;background:{part.colour}"></span>'
        for part in parts
        if values.get(part.name, 0.0) > 0
    )
    frame = (
        "width:32em;display:inline-block;background:#eee;white-space:nowrap;overflow:hidden;line-height:0;vertical-align:middle"
    )
    return f'<div style="margin:.2em 0"><span style="{frame}">{boxes}</span> {escape(label)}</div>'
