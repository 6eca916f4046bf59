"""`plan` at many points: --vary, --within and --cheapest."""

import shlex
from typing import TYPE_CHECKING

import typer

from meshwise.errors import UserError, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshwise.plan.train.choice import Ask


def started(vary: list[str], on: str, batch: str, cheapest: bool) -> tuple[str, str]:
    """The cluster and batch to start from: what was given, or the first value of the axis that varies it."""
    from meshwise.plan.axes import AXES
    from meshwise.plan.vary import axis_of

    first = {axis_of(text, AXES).name: text.partition("=")[2].split(",")[0].partition("..")[0].strip() for text in vary}
    counted = cheapest or "nodes" in first or "devices" in first
    on = on or (first.get("chip", "") if counted else "")
    batch = batch or first.get("batch", "")
    if not on and not cheapest:
        raise UserError("missing --on: a cluster, such as 48x8xa100-80gb, or a chip with --vary nodes=8..512")
    if not batch:
        raise UserError("missing --batch: sequences (2048), sequences x length (2048x4096), or tokens (4M)")
    return on, batch


def deadline(text: str, tokens: float, cheapest: bool) -> float:
    """Seconds that `--within` gives."""
    from meshwise import units

    if (text or cheapest) and not tokens:
        raise UserError(f"{'--cheapest' if cheapest else '--within'} needs --tokens: how many to train on, such as --tokens 15T")
    seconds = units.parse(text, "seconds") if text else 0.0
    if text and not seconds:
        raise UserError(f"--within {quoted(text)} leaves no time; expected something like 30d")
    return seconds


def answer(ask: "Ask", vary: list[str], command: "Callable[[Ask], str]", json: bool, csv: bool) -> None:
    """One table of points, and the command that asks again."""
    from meshwise.plan import vary_whatif
    from meshwise.plan.axes import AXES
    from meshwise.plan.vary import parse, variants
    from meshwise.ui.views import tables

    varied = parse(vary, AXES, ask)
    titles = [one.axis.name for one in varied]
    if ask.at_most and {"nodes", "devices"} & {*titles}:
        raise UserError("--vary nodes or devices and --at-most both say how many devices there are; give one of them")
    points = vary_whatif.answers(variants(ask, varied, AXES), len(varied[-1].values))
    vary_whatif.check(points, ask.within)
    if json or csv:
        rows = (tables.flat(_flat(point.row(ask.within))) for point in points)
        typer.echo(tables.as_json(vary_whatif.to_json(ask, vary, points)) if json else tables.as_csv(rows))
        return
    from meshwise.ui.views.vary import sweep_view

    console = tables.console()
    console.print(sweep_view(ask, titles, points))
    console.print(" ".join(["again:", command(ask), *_flags(vary)]), soft_wrap=True, highlight=False)


def cheapest(ask: "Ask", vary: list[str], command: "Callable[[Ask], str]", json: bool, csv: bool) -> None:
    """The cheapest chip and number of nodes, and what was tried."""
    from meshwise.plan import vary_whatif
    from meshwise.plan.axes import AXES
    from meshwise.plan.cheapest import find
    from meshwise.plan.vary import parse
    from meshwise.ui.views import tables

    found = find(ask, parse(vary, AXES, ask))
    if json or csv:
        data = vary_whatif.to_json(ask, vary, found.tried, cheapest=found.best.row(ask.within))
        rows = (tables.flat(_flat(point.row(ask.within)) | {"cheapest": point is found.best}) for point in found.tried)
        typer.echo(tables.as_json(data) if json else tables.as_csv(rows))
        return
    from meshwise.ui.views.vary import cheapest_view

    console = tables.console()
    console.print(cheapest_view(ask, found))
    if found.best.ask is not None:
        console.print(f"plan it: {command(found.best.ask)}", soft_wrap=True, highlight=False)
    console.print(" ".join(["again:", command(ask), *_flags(vary), "--cheapest"]), soft_wrap=True, highlight=False)


def _flags(vary: list[str]) -> list[str]:
    return [f"--vary {shlex.quote(text)}" for text in vary]


def _flat(row: dict[str, object]) -> dict[str, object]:
    """A point for CSV: its layout's columns beside its values."""
    from typing import cast

    inner = cast(dict[str, object] | None, row["choice"])
    return {key: value for key, value in row.items() if key != "choice"} | (inner or {})
