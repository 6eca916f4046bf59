"""The verb `probe`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from meshwise import api
from meshwise.run.probe.ask import ProbeAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Given, Json, verb
from meshwise.ui.cli.progress import Bar

if TYPE_CHECKING:
    from meshwise.run.probe.store import Probed

app = typer.Typer()


@verb(app, "probe", ProbeAsk)
def probe(
    given: Given,
    out: Annotated[
        Path | None, Option(help="Also write the rows to this .jsonl.", metavar="FILE", rich_help_panel=OUTPUT)
    ] = None,
    json: Json = False,
) -> None:
    """Times matrix products, memory, attention, launches and links. '--on here' then plans for this machine, and 'meshwise run' predicts
    with its own numbers."""
    words = given.of(ProbeAsk)
    with Bar(stderr=True, json=json) as bar:
        probed = api.probe(progress=bar.progress, **words)
    output.save_to(out, probed.save)
    curves = bool(words.get("show"))
    output.show(probed, json=json, after=() if curves else _next_steps(probed), curves=curves)


def _next_steps(probed: "Probed") -> Iterator[str]:
    """Yield the files that were written, and a command that plans with them."""
    yield f"saved in {probed.folder}: chips, calibration and probes of {' and '.join(probed.machines)}"
    gpu = probed.machines["here"].chip.kind == "gpu"
    model, batch = ("llama-3.2-1b", "8x2048") if gpu else ("llama-debug", "8x64")
    yield f"plan with it: meshwise plan {model} --on here --batch {batch} --framework meshwise"
