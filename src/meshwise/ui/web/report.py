"""A report: an answer as one HTML file with everything inside, to attach to a ticket."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from meshwise import api
from meshwise.audit.doctor.diagnosis import Diagnosis
from meshwise.audit.report import Audit
from meshwise.errors import UserError
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.replay.answer import Replayed
from meshwise.run.train.results import SweepResult, TrainResult
from meshwise.ui.views import doctor, front
from meshwise.ui.views.run import report as run_report
from meshwise.ui.views.svg.gantt import gantt
from meshwise.ui.views.svg.lines import lines
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages import audit, plan, replay, serve
from meshwise.ui.web.pages.page import Reply
from meshwise.ui.web.render import asset, render

STYLES = ("style.css", "parts.css")
SCRIPT = "report.js"


def of_plan(made: TrainPlan | ServePlan, query: Pairs = ()) -> str:
    """Return the report of a plan; `query` may select two rows to compare and the order of the table."""
    if isinstance(made, TrainPlan):
        values = plan.values(made, query) | {"reasons": made.explain().reasons, "drawing": _timeline(made)}
        title = f"Training {made.ask.model} on {made.ask.on}"
    else:
        values = serve.values(made, query) | {"drawing": _front(made)}
        title = f"Serving {made.ask.model} on {made.ask.on}"
    return document(title, "answer.html", values)


def _timeline(made: TrainPlan) -> Markup:
    """Return the picture of the best layout's step, if it is a pipeline; nothing for one that no schedule can run."""
    if int(made.best.layout["pp"]) == 1:
        return Markup("")
    try:
        return Markup(gantt(made.timeline(), made.best.name))
    except UserError:  # an edited plan.json
        return Markup("")


def _front(made: ServePlan) -> Markup:
    """Return the picture of the Pareto front of a served model; nothing where its question has none any more."""
    try:
        return Markup(front.svg(api.front_serve(replace(made.ask, users=1, rate=0.0, burst=1.0, measured=0.0))))
    except UserError:  # an edited plan.json, or no point within the targets
        return Markup("")


def of_run(result: TrainResult | SweepResult) -> str:
    """Return the report of a run: what 'meshwise run' prints at its end, and its curves."""
    pictures: list[Markup] = []
    title = f"Runs in {result.folder.name}"
    if isinstance(result, TrainResult):
        steps, forecast = result.measured.steps, result.forecast
        title = f"Run of {result.measured.settings.name}"
        pictures = [
            Markup(lines("loss", [step.loss for step in steps])),
            Markup(lines("seconds per step", [step.seconds for step in steps], forecast.seconds if forecast else None)),
        ]
    return document(title, "run.html", {"title": title, "sections": run_report.sections(result), "pictures": pictures})


def of_replay(result: Replayed) -> str:
    """Return the report of a replay: its figures, and their course over time."""
    return document(f"Replay of {result.trace.name}", "replay.html", replay.values(result))


def of_audit(report: Audit) -> str:
    return document(f"Audit: {report.verdict}", "audit.html", audit.values(report))


def of_diagnosis(found: Diagnosis) -> str:
    values = {
        "title": found.verdict,
        "sections": doctor.sections(found),
        "pictures": [Markup(doctor.svg(found))] if found.rows else [],
    }
    return document(f"Doctor: {found.verdict}", "run.html", values)


def document(title: str, template: str, values: Mapping[str, Any]) -> str:
    """Return a whole file. Its policy allows its own script, by hash, and nothing from anywhere else."""
    script = asset(SCRIPT)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(
        "report.html", title=title, content=template, reply=Reply(values), styles=Markup("\n".join(map(asset, STYLES))),
        script=Markup(script),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:", static=True,
        query=[], path="",
    )  # fmt: skip
