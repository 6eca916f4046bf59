"""A preflight on a terminal: facts with their sources, rates per node beside the predicted ones, findings, and what to leave out."""

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.ui.views.tables import Column, Table, wrapped

if TYPE_CHECKING:
    from meshwise.run.preflight.result import Preflight

FACTS: tuple[Column[tuple[str, str, str]], ...] = (
    Column("fact", lambda row: row[0], text=True),
    Column("value", lambda row: row[1], text=True),
    Column("from", lambda row: row[2], text=True),
)
RATES = {
    "matrix products": "FLOP/s", "memory": "bytes/s", "host link": "bytes/s", "cpu": "bytes/s", "disk": "bytes/s", "send inside": "bytes/s",
    "send between": "bytes/s",
}  # fmt: skip
"""Figures and their units, in the order of the table."""
STYLES = {"sick": "bold red", "watch": "yellow"}
MAX_SHOWN_NODES = 20


def preflight_view(done: "Preflight", width: int) -> RenderableType:
    """Return facts, rates and findings."""
    parts: list[RenderableType] = [Table(FACTS, done.found.facts()).fitted(width)]
    parts += [wrapped(f"not seen: {words}", width, indent="  ") for words in done.found.unseen]
    if done.cluster_file:
        parts.append(wrapped(f"wrote {done.cluster_file}: meshwise plan MODEL --on {done.cluster_file}", width, indent="  "))
    nodes = done.rows()
    if nodes:
        ill = {host for finding in done.findings for host in finding.nodes}
        first = sorted(nodes, key=lambda row: row["node"] not in ill)[:MAX_SHOWN_NODES]
        rows = [*first, *([{"node": "predicted", **done.expected}] if done.expected else [])]
        parts += [Text(), Table(_columns(rows), rows).fitted(width)]
        parts += [Text(f"and {len(nodes) - len(first)} more nodes")] if len(nodes) > len(first) else []
    for finding in done.findings:
        parts.append(
            wrapped(f"{finding.level}: {finding.where}: {finding.message}", width, indent="  ", style=STYLES[finding.level])
        )
    if nodes and not done.findings:
        parts.append(Text(f"nothing found on {len(nodes)} node{'s' * (len(nodes) > 1)}", style="green"))
    parts += [wrapped(f"leave out: {words}", width, indent="  ") for words in done.advice()]
    parts += [wrapped(f"note: {words}", width, indent="  ") for words in done.notes]
    return Group(*parts, *([Text("stopped: judged by what was measured so far")] if done.stopped else []))


def _columns(rows: "list[dict[str, Any]]") -> tuple[Column[Any], ...]:
    def column(what: str, unit: str) -> Column[Any]:
        return Column(what, lambda row: units.show(row[what], unit, digits=3) if what in row else "")

    known = [column(what, unit) for what, unit in RATES.items() if any(what in row for row in rows)]
    return (Column("node", lambda row: row["node"], text=True), *known)
