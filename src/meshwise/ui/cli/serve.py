"""The verb `serve`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Csv, Given, Html, Json, Verbose, verb

app = typer.Typer()


@verb(app, "serve", ServeAsk)
def serve(
    given: Given,
    vary: Annotated[list[str] | None, Option(metavar="AXIS=VALUES",
        help="Plan at many points: gpus=1..8, users=1..64. Give it twice for a grid.")] = None,
    front: Annotated[bool, Option("--front", help="Print the Pareto front: tokens/s per device against those per user.")] = False,
    svg: Annotated[Path | None, Option(help="Write the Pareto front as a drawing.", metavar="FILE",
        rich_help_panel=OUTPUT)] = None,
    why_believe: Annotated[bool, Option("--why-believe", help="Print what the figures rest on.")] = False,
    out: Annotated[Path | None, Option(help="Write the plan to this file.", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    html: Html = None,
    verbose: Verbose = False,
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Prints whether it fits and the bytes on every device, each layout of the engine with throughput and latency at the load, and
    the exact commands. 'meshwise run plan.json' starts the best layout. Exit code 1: nothing fits, or nothing meets the targets."""
    words = given.of(ServeAsk)
    several = {"--front": front or svg is not None, "--cheapest": bool(words.get("cheapest")), "--vary": bool(vary)}
    asked = [flag for flag, given_flag in several.items() if given_flag]
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} are different questions; give one of them")
    if asked and (out is not None or html is not None or "top" in words or "measured" in words):
        raise UserError(f"--out, --html, --top and --measured need a single plan; drop {asked[0]}")
    if front or svg:
        _front(ServeAsk(**words), svg, json=json, csv=csv)
    elif words.get("cheapest"):
        output.show(api.cheapest_serve(ServeAsk(**words)), json=json, csv=csv)
    elif vary:
        output.show(api.vary_serve(ServeAsk(**words), *vary), json=json, csv=csv)
    else:
        made = api.serve(**words)
        output.save_to(out, made.save)
        output.save_report(html, lambda report: report.of_plan(made))
        start = output.belief(made, why_believe)
        start += [line for engine, lines in made.commands.items() for line in (f"{engine}:", *(f"  {each}" for each in lines))]
        following = f"meshwise run {out}; meshwise bench {out}" if out else "--out plan.json for 'run' and 'bench'"
        more = "" if verbose else "; --verbose for everything"
        output.show(made, json=json, csv=csv, before=start, after=[f"next: {following}{more}"], verbose=verbose)


def _front(ask: ServeAsk, svg: Path | None, *, json: bool, csv: bool) -> None:
    """Print the Pareto front, and write it as a drawing."""
    front = api.front_serve(ask)
    if svg is not None:
        from meshwise.ui.views import front as drawn

        output.save_to(svg, lambda path: path.write_text(drawn.svg(front), encoding="utf-8"))
    output.show(front, json=json, csv=csv)
