"""The verbs `plan` and `explain`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwise import api
from meshwise.cost.objective import OBJECTIVES
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
SHAPE_ONLY = tuple(name for name in spec(ShapeAsk) if name not in spec(TrainAsk))


@verb(
    app,
    "plan",
    ShapeAsk,
    examples=(
        "meshwise plan llama-3-70b --on 64x8xh100-sxm --batch 4M --tokens 15T",
        "meshwise plan bloom-176b --on jean-zay:48 --batch 2048x2048 --fix tp=4 --out plan.json",
        "meshwise plan llama-3.1-8b --on 1xrtx3090 --batch 8 --finetune qlora:16",
    ),
)
def plan(
    given: Given,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES", help="Plan at many points: nodes=8..512, chip=h100-sxm,h200. Give it twice for a grid."
        ),
    ] = None,
    cheapest: Annotated[
        bool, typer.Option("--cheapest", help="Find the cheapest chip and number of nodes for --tokens.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    html: Html = None,
    verbose: Verbose = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Every layout that the framework can run is evaluated. Exit code 1: nothing fits."""
    words, texts = given.of(ShapeAsk), vary or []
    if any(name in words for name in SHAPE_ONLY):
        if texts or cheapest or out is not None or html is not None:
            raise UserError("--params and --shape plan on one cluster: drop --vary, --cheapest, --out and --html")
        _shapes(words, json, csv)
    elif words.get("objective") in GENERATING:
        if texts or cheapest or out is not None or html is not None:
            raise UserError(
                f"--objective {words['objective']} is planned on one cluster: drop --vary, --cheapest, --out and --html"
            )
        _rollouts(words, json, csv)
    elif cheapest or texts:
        if out is not None or html is not None or "top" in words:
            raise UserError("--out, --html and --top need a single plan; drop --vary and --cheapest")
        (_cheapest if cheapest else _vary)(TrainAsk(**words), texts, json, csv)
    else:
        made = api.plan(**words)
        output.save_to(out, made.save)
        output.save_report(html, lambda report: report.of_plan(made))
        _show(made, out, verbose=verbose, json=json, csv=csv)


def _show(made: "TrainPlan", out: Path | None, *, verbose: bool, json: bool, csv: bool) -> None:
    def view(width: int) -> Any:
        from meshwise.ui.views.plan import plan_view

        return plan_view(made, made.explain(), width, verbose=verbose)

    following = f"meshwise explain {out}; meshwise run {out} --dry-run" if out else "--out plan.json for 'explain' and 'run'"
    more = "" if verbose else "; --verbose for everything"
    output.show(made, view, json=json, csv=csv, commands=[f"reproduce: {made.command}", f"next: {following}{more}"])


def _shapes(words: dict[str, Any], json: bool, csv: bool) -> None:
    shapes = api.shapes(**words)

    def view(width: int) -> Any:
        from meshwise.ui.views.shapes import shapes_view

        return shapes_view(shapes, width)

    output.show(shapes, view, json=json, csv=csv, commands=[f"reproduce: {shapes.command}"])


def _rollouts(words: dict[str, Any], json: bool, csv: bool) -> None:
    made = api.rollouts(**words)

    def view(width: int) -> Any:
        from meshwise.ui.views.rollout import rollout_view

        return rollout_view(made, width)

    output.show(made, view, json=json, csv=csv, commands=[f"reproduce: {made.command}"])


def _vary(ask: TrainAsk, texts: list[str], json: bool, csv: bool) -> None:
    points = api.vary(ask, *texts)

    def view(width: int) -> Any:
        from meshwise.ui.views.vary import points_view

        return points_view(points, width)

    output.show(points, view, json=json, csv=csv, commands=[f"reproduce: {points.command}"])


def _cheapest(ask: TrainAsk, texts: list[str], json: bool, csv: bool) -> None:
    answer = api.cheapest(ask, *texts)

    def view(width: int) -> Any:
        from meshwise.ui.views.vary import cheapest_view

        return cheapest_view(answer, width)

    best = answer.best.ask
    plan_it = [f"plan it: {best.command()}"] if best else []
    output.show(answer, view, json=json, csv=csv, commands=[*plan_it, f"reproduce: {answer.command}"])


@plain_verb(
    app,
    "explain",
    "meshwise explain plan.json",
    "meshwise explain plan.json --versus tp=8,pp=6",
    "meshwise explain plan.json --trace step.json.gz --svg step.svg",
)
def explain(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json that plan --out or serve --out wrote.")],
    versus: Annotated[str, typer.Option(metavar="AXES", help="Compare with a layout of your own: tp=8,pp=6.")] = "",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the step as a trace for ui.perfetto.dev: .json, or .json.gz.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the step as an SVG picture.")] = None,
    json: Json = False,
) -> None:
    """Compares it with the runner-up or with a layout of your own, names the limit, and estimates the gain from twice the batch, network
    or memory."""
    from meshwise.plan.train.plan import TrainPlan

    loaded = api.load(plan_file)
    if not isinstance(loaded, TrainPlan):
        if versus or trace or svg:
            raise UserError("--versus, --trace and --svg only apply to training; this plan is for serving")
        reasons = loaded.explain()
        output.data({"best": loaded.best.name, "reasons": reasons}) if json else _print_reasons(reasons)
        return
    why = api.explain(loaded, versus)
    if trace or svg:
        if json:
            raise UserError("--json prints the explanation, --trace and --svg write files: drop one of them")
        _timeline(loaded, why.other if versus and why.other else why.best, trace, svg)
    elif json:
        output.data(why.to_json())
    else:
        from meshwise.ui.views.plan import choice_bars
        from meshwise.ui.views.tables import console

        out = console()
        for line in choice_bars([why.best, why.other], out.width, loaded.cluster["kind"]) if why.other else ():
            out.print(line)
        out.print()
        _print_reasons(why.reasons)


def _print_reasons(reasons: Sequence[str]) -> None:
    """Print a sentence a line, wrapped; a reason that is indented stays so."""
    from meshwise.ui.views.tables import console, wrapped

    out = console()
    for line in reasons:
        inner = "  " if line.startswith(" ") else ""
        out.print(wrapped(line.strip(), out.width, inner, f"{inner}  "))


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
