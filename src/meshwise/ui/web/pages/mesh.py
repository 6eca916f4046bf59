"""The page Mesh: which device holds what in a layout, node by node or chip by chip of a torus; its groups, and the layers of each stage."""

from typing import Any

from meshwise import units
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.mesh import Mesh
from meshwise.ui.views.tables import Column, Table
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages import choices, plan
from meshwise.ui.web.pages.page import Page, Reply, Site, missing_fields

OTHER_PARAMETERS = (*choices.OTHER_PARAMETERS, "row", "from")
MAX_DEVICES_DRAWN = 4096  # devices that are drawn at once


def answer(site: Site, query: Pairs) -> Reply | None:
    made = plan.plan_of(site, [pair for pair in query if pair[0] not in OTHER_PARAMETERS])
    row = plan.row_of(query, made)
    choice = made.choices[row]
    mesh = made.mesh(choice)
    values = {
        "header": [f"{choice.name}", f"{made.ask.model} on {made.ask.on}: row {row + 1} of {len(made.choices)}"],
        "choices": [(str(i + 1), each.name) for i, each in enumerate(made.choices)], "row": str(row + 1), "mesh": mesh,
        "groups": groups(mesh), "stages": stages(mesh),
        "bars": [plan.memory_bar(choice, "bytes of the fullest device; no other holds more", made.cluster["kind"])],
        "drawing": drawing(mesh, query), "pager": pager(mesh, query),
    }  # fmt: skip
    return Reply(values, mesh.to_json(), mesh.rows(), f"Mesh: {choice.name}")


def shown(mesh: Mesh, query: Pairs) -> tuple[int, int]:
    """Return the first and the last device that are drawn: whole nodes, or whole slices of a torus."""
    block = mesh.per_node if not mesh.torus else mesh.torus[0] * (mesh.torus[1] if len(mesh.torus) > 1 else 1)
    blocks = max(1, MAX_DEVICES_DRAWN // block)
    first = asking.number(query, "from", 0, 10**7) or 0
    if first * block >= mesh.devices:
        raise UserError(f"from {first}: there are {mesh.devices // block} {mesh.unit if not mesh.torus else 'slice'}s")
    return first * block, min(mesh.devices, (first + blocks) * block)


def drawing(mesh: Mesh, query: Pairs) -> dict[str, Any]:
    """Return what the script draws."""
    first, last = shown(mesh, query)
    return mesh.to_json() | {"first": first, "last": last}


def pager(mesh: Mesh, query: Pairs) -> dict[str, str]:
    """Return the links to the devices before and after those that are drawn, and which these are, in words."""
    first, last = shown(mesh, query)
    if (first, last) == (0, mesh.devices):
        return {}
    block = mesh.per_node if not mesh.torus else mesh.torus[0] * (mesh.torus[1] if len(mesh.torus) > 1 else 1)
    step = last // block - first // block
    return {
        "words": f"devices {first:,} to {last - 1:,} of {mesh.devices:,}",
        "before": asking.changed(query, **{"from": str(max(0, first // block - step))}) if first else "",
        "after": asking.changed(query, **{"from": str(last // block)}) if last < mesh.devices else "",
    }


def groups(mesh: Mesh) -> Table[Any]:
    columns: list[Column[Any]] = [
        Column("group", lambda each: each.name, text=True),
        Column("what it sends", lambda each: each.words, text=True),
        Column("ranks", lambda each: f"{each.size:,}"),
        Column("stride", lambda each: f"{each.stride:,}"),
        Column(f"{mesh.unit}s", lambda each: f"{each.nodes:,}"),
        Column("seconds of a step", lambda each: units.show(each.seconds, "seconds", digits=3) if each.seconds else "hidden"),
    ]
    return Table(columns, mesh.communicators)


def stages(mesh: Mesh) -> list[dict[str, Any]]:
    """Return the layers of each stage, with their share of the widest, for a bar."""
    most = max(after - first for first, after in mesh.stages)
    return [
        {
            "stage": i, "layers": f"{first} to {after - 1}" if after > first else "none", "number": after - first,
            "share": 100 * (after - first) / most,
        }
        for i, (first, after) in enumerate(mesh.stages)
    ]  # fmt: skip


PAGE = Page(
    name="mesh", title="Mesh", about="Which device holds what in a layout", template="mesh.html", answer=answer,
    form=lambda query: asking.groups(TrainAsk, query), missing=missing_fields(plan.REQUIRED_FIELDS), examples=plan.EXAMPLES,
)  # fmt: skip
