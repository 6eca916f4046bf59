"""The page Audit: logs and tables that were named on the command line or are uploaded, or figures typed in; checked, and scored."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwise import api
from meshwise.audit.ask import AuditAsk
from meshwise.audit.report import Audit
from meshwise.calibrate.result import Validation
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.ui.views import audit as views
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages import scores
from meshwise.ui.web.pages.page import Page, Reply, Site, Upload, examples_of

FILE = "file"  # the parameter that chooses one of the files named on the command line
TABLES = (".csv", ".jsonl")
MAX_RUNS = 200  # runs in the table, at most; .json has all
EXAMPLES = examples_of("audit")


def answer(site: Site, query: Pairs) -> Reply | None:
    """Audit a file that was named on the command line, or the figures of the query."""
    asked = [pair for pair in query if pair[0] != FILE]
    ask = asking.question(AuditAsk, asked, site.named.models)
    name = asking.one(query, FILE)
    figures = {key: value for key, value in vars(ask).items() if value not in ("", 0, 0.0, None)}
    if name:
        if name not in site.named.logs:
            raise UserError(f"file {quoted(name)} was not named on the command line of 'meshwise ui'")
        return checked([site.named.logs[name]], figures, site)
    if not figures and site.named.logs:
        return checked(list(site.named.logs.values()), {}, site)
    return checked([], figures, site) if figures else None


def uploaded(site: Site, paths: list[Path], query: Pairs) -> Reply:
    """Audit uploaded files with the figures of the query."""
    ask = asking.question(AuditAsk, query, site.named.models)
    figures = {key: value for key, value in vars(ask).items() if value not in ("", 0, 0.0, None)}
    with find.catalogue_alone(ask.model):
        return checked(paths, figures, site)


def checked(paths: Sequence[Path], figures: dict[str, Any], site: Site) -> Reply:
    """Audit files and score those that are tables of measurements; an unreadable score is a note, not an error."""
    audit = api.audit(*paths, **figures)
    scored: list[Validation] = []
    unscored: list[str] = []
    for path in paths:
        if path.suffix in TABLES:
            try:
                scored.append(api.validate(path))
            except UserError as error:
                unscored.append(str(error))
    return Reply(values(audit, scored, unscored), audit.to_json(), [api.flat(row) for row in audit.rows()], audit.verdict)


def values(audit: Audit, scored: Sequence[Validation] = (), unscored: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the template shows."""
    rows = audit.rows()
    trained, served = views.kinds(rows)
    return {
        "verdict": audit.verdict, "files": audit.files, "notes": audit.notes, "unscored": unscored,
        "findings": [
            {
                "certainty": finding.certainty, "message": finding.message, "arithmetic": finding.arithmetic,
                "where": views.places(finding.where), "compared": views.places(finding.compared_with),
            }
            for finding in audit.findings
        ],
        "tables": [views.runs_table(trained[:MAX_RUNS], views.TRAINED), views.runs_table(served[:MAX_RUNS], views.SERVED)],
        "more": max(0, len(trained) - MAX_RUNS) + max(0, len(served) - MAX_RUNS),
        "suggestions": [suggestion.message for suggestion in audit.predictions.suggestions],
        "scores": [scores.values(each, "devices") for each in scored],
    }  # fmt: skip


PAGE = Page(
    name="audit", title="Audit", about="Check reported results: a log, a table, or figures that somebody states",
    template="audit.html", answer=answer, form=lambda query: asking.groups(AuditAsk, query), examples=EXAMPLES,
    upload=Upload(
        "Your own log or table",
        "Logs of Megatron, torchtitan, nanotron, DeepSpeed, HF Trainer, vLLM and llama-bench; CSV, JSONL, Markdown",
        "Check it", uploaded,
    ),
)  # fmt: skip
