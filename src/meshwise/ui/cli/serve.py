"""The verb `serve`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Csv, Given, Html, Json, Verbose, verb

app = typer.Typer()


@verb(
    app,
    "serve",
    ServeAsk,
    examples=(
        "meshwise serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k",
        "meshwise serve llama-3.3-70b --on 8xh100-sxm --users 64 --ttft 1s --per-user 30",
        "meshwise serve llama-3.3-70b:q4_k_m --on rtx4060ti-16gb --vary gpus=4..6",
    ),
)
def serve(
    given: Given,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUES", help="Plan at many points: gpus=1..8, users=1..64. Give it twice for a grid."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    html: Html = None,
    verbose: Verbose = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Prints whether it fits and the bytes on every device, each layout that llama.cpp, vLLM or Ollama can run with its speed, and the
    exact commands. 'meshwise run plan.json' starts the best layout. Exit code 1: nothing fits, or nothing meets the targets."""
    words = given.of(ServeAsk)
    if vary:
        if out is not None or html is not None or "top" in words:
            raise UserError("--out, --html and --top need a single plan; drop --vary")
        points = api.vary_serve(ServeAsk(**words), *vary)

        def points_view(width: int) -> Any:
            from meshwise.ui.views.serve import points_view

            return points_view(points, width)

        output.show(points, points_view, json=json, csv=csv, commands=[f"reproduce: {points.command}"])
        return
    made = api.serve(**words)
    output.save_to(out, made.save)
    output.save_report(html, lambda report: report.of_plan(made))

    def view(width: int) -> Any:
        from meshwise.ui.views.serve import plan_view

        return plan_view(made, width, verbose=verbose)

    start = [line for engine, lines in made.commands.items() for line in (f"{engine}:", *(f"  {command}" for command in lines))]
    following = f"meshwise run {out}; meshwise bench {out}" if out else "--out plan.json for 'run' and 'bench'"
    more = "" if verbose else "; --verbose for everything"
    output.show(made, view, json=json, csv=csv, commands=[*start, f"reproduce: {made.command}", f"next: {following}{more}"])
