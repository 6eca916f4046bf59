"""The verb `bench`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from meshwise import api
from meshwise.run.bench.ask import BenchAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Csv, Given, Json, verb
from meshwise.ui.cli.progress import Bar

if TYPE_CHECKING:
    from meshwise.run.serve.bench import Bench

app = typer.Typer()


@verb(app, "bench", BenchAsk, argument="URL|PLAN|GGUF|MODEL")
def bench(
    given: Given,
    out: Annotated[Path | None, Option(help="Write the whole report to this .json.", metavar="FILE",
        rich_help_panel=OUTPUT)] = None,
    rows: Annotated[Path | None, Option(help="Write rows for validate and calibrate to this .csv.", metavar="FILE",
        rich_help_panel=OUTPUT)] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Measures a running endpoint, or starts the engine of a plan, a .gguf or a model, measures it and stops it. Exit code 1: a setting
    could not be measured. Stopped by a signal, it shows and writes what was measured until then."""
    words = given.of(BenchAsk)

    def save(report: "Bench") -> None:
        output.save_to(out, report.save)
        output.save_to(rows, lambda path: api.write(path, _as_csv(report.measurements())))

    with Bar(stderr=True, hidden=csv, json=json) as bar:
        report = api.bench(words.pop("what", ""), say=bar.say, progress=bar.progress, keep=save, **words)
    save(report)
    output.show(report, json=json, csv=csv)
    if report.stopped:
        raise KeyboardInterrupt
    report.check()


def _as_csv(rows: list[dict[str, object]]) -> str:
    from meshwise.ui.views.tables import as_csv

    return as_csv(rows)
