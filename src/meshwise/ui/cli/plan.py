"""The verbs `plan` and `explain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.cost.work import OBJECTIVES
from meshwise.errors import UserError
from meshwise.plan.ask import ShapeAsk, TrainAsk
from meshwise.plan.fields import spec
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Csv, Given, Html, Json, Verbose, plain_verb, verb

if TYPE_CHECKING:
    from meshwise.plan.train.plan import TrainPlan

app = typer.Typer()
GENERATING = tuple(name for name, one in OBJECTIVES.items() if one.generates)
SHAPE_ONLY_FIELDS = tuple(name for name in spec(ShapeAsk) if name not in spec(TrainAsk))


@verb(app, "plan", ShapeAsk)
def plan(
    given: Given,
    vary: Annotated[list[str] | None, Option(metavar="AXIS=VALUES",
        help="Plan at many points: nodes=8..512, chip=h100-sxm,h200. Give it twice for a grid.")] = None,
    cheapest: Annotated[bool, Option("--cheapest", help="Find the cheapest chip and number of nodes for --tokens.")] = False,
    why_believe: Annotated[bool, Option("--why-believe", help="Print what the figures rest on.")] = False,
    out: Annotated[Path | None, Option(help="Write the plan to this file.", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    html: Html = None,
    verbose: Verbose = False,
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Every layout that the framework can run is evaluated. Exit code 1: nothing fits."""
    words, texts = given.of(ShapeAsk), vary or []
    if any(name in words for name in SHAPE_ONLY_FIELDS):
        if texts or cheapest or out is not None or html is not None:
            raise UserError("--params and --shape plan on one cluster: drop --vary, --cheapest, --out and --html")
        output.show(api.shapes(**words), json=json, csv=csv)
    elif words.get("objective") in GENERATING or words.get("teacher"):
        if texts or cheapest or html is not None:
            raise UserError(f"--objective {words['objective']} is planned on one cluster: drop --vary, --cheapest and --html")
        rollouts = api.rollouts(**words)
        output.save_to(out, rollouts.save)
        output.show(rollouts, json=json, csv=csv)
    elif cheapest or texts:
        if out is not None or html is not None or "top" in words:
            raise UserError("--out, --html and --top need a single plan; drop --vary and --cheapest")
        _several(TrainAsk(**words), texts, cheapest=cheapest, json=json, csv=csv)
    else:
        made = api.plan(**words)
        output.save_to(out, made.save)
        output.save_report(html, lambda report: report.of_plan(made))
        why = None if json or csv else api.explain(made)
        believe, following = output.belief(made, why_believe), [_following(made, out, verbose)]
        output.show(made, json=json, csv=csv, before=believe, after=following, why=why, verbose=verbose)


def _several(ask: TrainAsk, texts: list[str], *, cheapest: bool, json: bool, csv: bool) -> None:
    """Print the answers at many points, or the cheapest of them."""
    if not cheapest:
        output.show(api.vary(ask, *texts), json=json, csv=csv)
        return
    answer = api.cheapest(ask, *texts)
    best = answer.best.ask
    output.show(answer, json=json, csv=csv, before=[f"plan it: {best.command()}"] if best else [])


def _following(made: "TrainPlan", out: Path | None, verbose: bool) -> str:
    """Return what to type next."""
    from meshwise.programs.writable import program_for

    program = program_for(made)
    to = f"export --to {program.name}" if program else "explain"
    written = f"; meshwise export {out} --to {program.name}" if program else ""
    following = f"meshwise explain {out}; meshwise run {out} --dry-run{written}" if out else f"--out plan.json for 'run', '{to}'"
    return f"next: {following}{'' if verbose else '; --verbose'}"


@plain_verb(app, "explain")
def explain(
    plan_file: Annotated[Path, Argument(metavar="PLAN", help="A plan.json that plan --out or serve --out wrote.")],
    other_file: Annotated[Path | None, Argument(metavar="[OTHER]", help="Another plan.json: how the two differ.")] = None,
    versus: Annotated[str, Option(metavar="AXES", help="Compare with a layout of your own: tp=8,pp=6.")] = "",
    trace: Annotated[
        Path | None, Option(metavar="FILE", help="Write the step as a trace for ui.perfetto.dev: .json, or .json.gz.")
    ] = None,
    svg: Annotated[Path | None, Option(metavar="FILE", help="Draw the step as an SVG picture.")] = None,
    json: Json = False,
) -> None:
    """Compares it with the runner-up, with a layout of your own or with another plan, names the limit, and estimates the gain from twice
    the batch, network or memory."""
    from meshwise.plan.rl.plan import RolloutPlan
    from meshwise.plan.train.plan import TrainPlan

    if other_file is not None:
        if versus or trace or svg:
            raise UserError("two plans are compared as they are: drop --versus, --trace and --svg, or the second plan")
        output.show(api.diff(plan_file, other_file), json=json)
        return
    loaded = api.load(plan_file)
    if isinstance(loaded, RolloutPlan):
        raise UserError(
            f"{plan_file} splits devices between training and generation: its table and phases are what 'plan' prints"
        )
    if not json and (other := loaded.provenance()):
        output.emit(f"{plan_file}: {other}")
    if not isinstance(loaded, TrainPlan):
        if versus or trace or svg:
            raise UserError("--versus, --trace and --svg only apply to training; this plan is for serving")
        reasons = loaded.explain()
        output.data({"best": loaded.best.name, "reasons": reasons}) if json else output.draw(reasons)
        return
    why = api.explain(loaded, versus)
    if trace or svg:
        if json:
            raise UserError("--json prints the explanation, --trace and --svg write files: drop one of them")
        _timeline(loaded, why.other if versus and why.other else why.best, trace, svg)
    else:
        output.show(why, json=json, kind=loaded.cluster["kind"])


def _timeline(made: "TrainPlan", choice: Any, trace: Path | None, svg: Path | None) -> None:
    """Write the timeline of a layout as a trace, a picture or both, and name the files."""
    timeline = made.timeline(choice)
    if trace is not None:
        number = timeline.save(trace)
        output.emit(
            f"{trace}: {choice.name}, {choice.step:.4g} s, {number:,} events; open it in ui.perfetto.dev or chrome://tracing"
        )
    if svg is not None:
        from meshwise.ui.views.svg.gantt import gantt

        api.write(svg, gantt(timeline, choice.name))
        output.emit(f"{svg}: {choice.name}, {choice.step:.4g} s")
