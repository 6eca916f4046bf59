"""The verb `doctor`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.audit.ask import AuditAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Given, Html, Json, verb

app = typer.Typer()


@verb(app, "doctor", AuditAsk)
def doctor(
    given: Given,
    traces: Annotated[list[Path], Argument(metavar="TRACE...",
        help="Traces of torch's profiler (.json, .json.gz) or Nsight Systems (.sqlite), one per rank, or their folder; memory snapshots "
        "(.pickle); launch files beside them.")],
    plan: Annotated[str, Option(metavar="FILE", help="plan.json of 'meshwise plan' to compare with.")] = "",
    html: Html = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Splits the steps of a trace into parts, puts what each should take beside it, and names known faults with what to change, what costs
    most first."""
    found = api.doctor(*traces, plan=plan, **given.of(AuditAsk))
    output.save_report(html, lambda reports: reports.of_diagnosis(found))
    output.show(found, json=json)
