"""The verb `run`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from meshwise import api
from meshwise.errors import UserError
from meshwise.run.serve.ask import ServeRun
from meshwise.run.train.ask import DEFAULT, TrainRun
from meshwise.run.train.results import SweepResult, TrainResult
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Given, Html, Json, verb
from meshwise.ui.cli.progress import Bar

if TYPE_CHECKING:
    from meshwise.run.serve.session import ServeDryRun, Serving

app = typer.Typer()


@verb(app, "run", TrainRun, ServeRun, argument="PLAN|MODEL")
def run(
    given: Given,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="With --dry-run: list every weight.", rich_help_panel=OUTPUT)
    ] = False,
    html: Html = None,
    json: Json = False,
) -> None:
    """A plan.json of 'meshwise plan' or a model is trained, measured and compared with the prediction; a plan.json of 'meshwise serve' or a
    .gguf is served until Ctrl-C."""
    what = str(given.words.get("what", ""))
    if api.serves(what):
        given.refuse_others(ServeRun, f"only applies to training; {what} is served")
        if html is not None:
            raise UserError(f"--html only applies to training; {what} is served")
        _serve(given.of(ServeRun), json=json)
        return
    given.refuse_others(TrainRun, f"only applies to serving; {what or DEFAULT} is trained")
    if html is not None:
        if given.words.get("dry_run"):
            raise UserError("--html is a report of what was measured; drop --dry-run")
        output.require_page()
    with Bar(json=json) as bar:
        result = api.run(say=bar.say, progress=bar.progress, **given.of(TrainRun))
    if json:
        _data(result)
    elif given.words.get("dry_run"):
        output.draw(result, verbose=verbose)
    if html is not None and isinstance(result, TrainResult | SweepResult):
        output.save_report(html, lambda report: report.of_run(result))


def _data(result: Any) -> None:
    """Print a result as JSON: its own, or its fields."""
    from meshwise.catalogue import records

    output.data(result.to_json() if hasattr(result, "to_json") else records.plain(result))


def _serve(words: dict[str, Any], *, json: bool) -> None:
    """Start the engine, print its address and memory, and wait for Ctrl-C; its log goes to standard error."""
    from meshwise.run.serve.session import Serving

    engine = api.run(say=Bar(stderr=True, json=json).say, **words)
    if isinstance(engine, Serving):
        with engine:
            try:
                _announce(engine, json=json)
                engine.wait()
            except KeyboardInterrupt:
                Bar(json=json).say("stopping")
    elif json:
        _data(engine)
    else:
        _dry_run(engine)  # pyright: ignore[reportArgumentType]


def _announce(engine: "Serving", *, json: bool) -> None:
    # the memory is read before the address is printed: a script that sees the address may stop the engine at once
    rows = [] if engine.rpc_only else engine.memory()
    if json:
        _data({"url": "" if engine.rpc_only else engine.url, "memory": rows})
        return
    for line in engine.lines():
        output.emit(line)
    _memory(rows)


def _dry_run(dry_run: "ServeDryRun") -> None:
    for line in dry_run.commands:
        output.emit(line)
    _memory(dry_run.memory, source=dry_run.source)


def _memory(rows: Any, **source: str) -> None:
    if not rows:
        return
    from meshwise.ui.views.bench import memory_view
    from meshwise.ui.views.tables import console

    out = console()
    out.print(memory_view(rows, out.width, **source), soft_wrap=True)
