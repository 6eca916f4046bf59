"""The verb `replay`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from meshwise import api
from meshwise.errors import DoesNotFit, UserError, one_of
from meshwise.replay.ask import ReplayAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Csv, Given, Html, Json, verb

app = typer.Typer()
WHAT_IF = "What if"


@verb(app, "replay", ReplayAsk, argument="PLAN|MODEL")
def replay(
    given: Given,
    what_if: Annotated[bool, Option("--what-if", help="Replay what the deployment could be instead, one change at a time.",
        rich_help_panel=WHAT_IF)] = False,
    vary: Annotated[list[str] | None, Option(metavar="AXIS=VALUES", help="Changes for --what-if: chip=h200,b200.",
        rich_help_panel=WHAT_IF)] = None,
    out: Annotated[Path | None, Option(help="Write the traffic as CSV; without a model, that is all.", metavar="FILE",
        rich_help_panel=OUTPUT)] = None,
    svg: Annotated[Path | None, Option(help="Write its course as a drawing.", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    manifest: Annotated[Path | None, Option(help="Write the policy as YAML of Kubernetes.", metavar="FILE",
        rich_help_panel=OUTPUT)] = None,
    manifest_of: Annotated[str, Option(help="Of KEDA, or a HorizontalPodAutoscaler. [keda]", metavar="keda|hpa",
        rich_help_panel=OUTPUT, show_default=False)] = "keda",
    html: Html = None,
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Prints latencies, goodput, hits and cost of every request of a trace, each with an interval, where the time goes, and the course
    over time. Exit code 1: the targets do not hold."""
    words = given.of(ReplayAsk)
    several = bool(words.get("cheapest")) or what_if or bool(vary)
    if several and (svg or html or manifest):
        raise UserError("--svg, --html and --manifest need a single replay; drop --cheapest, --what-if and --vary")
    one_of("--manifest-of", manifest_of, ("keda", "hpa"))
    what = words.pop("model", "")
    if out is not None:
        made = api.save_trace(out, **words)
        if not what:
            output.show(made, json=json, csv=csv)
            return
    if words.get("cheapest"):
        if what_if or vary:
            raise UserError("--cheapest and --what-if are different questions; give one of them")
        found = api.replay_cheapest(what, **words)
        output.show(found, json=json, csv=csv)
        if found.best < 0:
            raise DoesNotFit("nothing that was tried holds the targets")
        return
    if what_if or vary:
        output.show(api.replay_what_if(what, vary=vary or (), **words), json=json, csv=csv)
        return
    result = api.replay(what, **words)
    if svg is not None:
        from meshwise.ui.views import replay as drawn

        output.save_to(svg, lambda path: api.write(path, drawn.svg(result)))
    if manifest is not None:
        api.write(manifest, api.manifest(result, manifest_of))
    output.save_report(html, lambda report: report.of_replay(result))
    output.show(result, json=json, csv=csv)
    if result.targets and not result.figures.holds:
        raise DoesNotFit("the targets do not hold")
