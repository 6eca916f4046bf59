"""The verb `audit`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.audit.ask import AuditAsk
from meshwise.errors import UserError
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Given, Html, Json, verb

app = typer.Typer()


@verb(app, "audit", AuditAsk)
def audit(
    given: Given,
    files: Annotated[list[Path] | None, Argument(metavar="[FILE]...",
        help="Logs, tables (CSV, JSONL, Markdown), reports, profiler traces; launch files beside them.")] = None,
    format: Annotated[str, Option(metavar="NAME", help="Format of the files, if it cannot be detected.")] = "",
    predicted: Annotated[Path | None,
        Option(metavar="FOLDER", help="Folder of a run: compare predicted and measured time, part by part.")] = None,
    no_plan: Annotated[bool, Option("--no-plan", help="Check arithmetic only, without predictions.")] = False,
    html: Html = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Derives further figures, lists contradictions and suggests what to try next. Reads logs of Megatron, torchtitan, nanotron,
    DeepSpeed, HF Trainer and llama-bench, CSV, JSONL and Markdown."""
    if predicted is not None:
        if html is not None:
            raise UserError("--html is a report of files or figures; drop --predicted")
        output.show(api.compare(predicted), json=json)
        return
    if any(api.is_trace(file) for file in files or ()):  # a profiler's trace is a run too
        found = api.doctor(*(files or ()), **given.of(AuditAsk))
        output.save_report(html, lambda reports: reports.of_diagnosis(found))
        output.show(found, json=json)
        return
    report = api.audit(*(files or ()), plan=not no_plan, format=format, **given.of(AuditAsk))
    output.save_report(html, lambda reports: reports.of_audit(report))
    output.show(report, json=json)
