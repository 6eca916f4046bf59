"""The verb `probe`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwise import api
from meshwise.run.probe.ask import ProbeAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Given, Json, verb
from meshwise.ui.cli.progress import Bar

if TYPE_CHECKING:
    from meshwise.run.probe.store import Probed

app = typer.Typer()


@verb(
    app,
    "probe",
    ProbeAsk,
    examples=("meshwise probe", "meshwise probe --seconds 20 --device cpu", "meshwise probe --show"),
)
def probe(
    given: Given,
    out: Annotated[
        Path | None, typer.Option(help="Also write the rows to this .jsonl.", metavar="FILE", rich_help_panel=OUTPUT)
    ] = None,
    json: Json = False,
) -> None:
    """Times matrix products, memory, attention, launches and links. '--on here' then plans for this machine, and 'meshwise run' predicts
    with its own numbers."""
    words = given.of(ProbeAsk)
    with Bar(stderr=True) as bar:
        probed = api.probe(progress=bar.progress, **words)
    output.save_to(out, probed.save)
    if json:
        output.data(probed.to_json())
    else:
        _show(probed, curves=bool(words.get("show")))


def _show(probed: "Probed", *, curves: bool) -> None:
    from meshwise.ui.views import probe as views
    from meshwise.ui.views.tables import console

    out = console()
    for key, rows in probed.rows_by_chip.items():
        if curves:
            out.print(f"{key}: {rows[0]['name']}, {rows[0]['date']}", style="bold")
            out.print(views.curves(rows))
        out.print(views.summary(probed.machines[key], out.width))
    if not curves:
        for line in views.next_steps(probed):
            out.print(line, soft_wrap=True)
