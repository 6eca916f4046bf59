"""The verb `run`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwise import api
from meshwise.run.serve.ask import ServeRun
from meshwise.run.train.ask import DEFAULT, TrainRun
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Given, verb
from meshwise.ui.cli.progress import Bar

if TYPE_CHECKING:
    from meshwise.run.serve.session import ServeDryRun, Serving

app = typer.Typer()


@verb(
    app,
    "run",
    TrainRun,
    ServeRun,
    examples=(
        "meshwise run llama-debug --dp-shard 2 --tp 2 --steps 20",
        "meshwise run plan.json --checkpoint-every 100",
        "meshwise run model.gguf --port 8080",
    ),
    argument="PLAN|MODEL",
)
def run(
    given: Given,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="With --dry-run: list every weight.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """A plan.json of 'meshwise plan' or a model is trained, measured and compared with the prediction; a plan.json of 'meshwise serve' or a
    .gguf is served until Ctrl-C."""
    what = str(given.words.get("what", ""))
    if api.serves(what):
        given.refuse_others(ServeRun, f"only applies to training; {what} is served")
        _serve(given.of(ServeRun))
        return
    given.refuse_others(TrainRun, f"only applies to serving; {what or DEFAULT} is trained")
    from meshwise.run.train.dry_run import DryRun

    with Bar() as bar:
        found = api.run(say=bar.say, progress=bar.progress, **given.of(TrainRun))
    if isinstance(found, DryRun):
        output.emit(found.text(verbose=verbose))


def _serve(words: dict[str, Any]) -> None:
    """Start the engine, print where it answers and the memory it took, and wait for Ctrl-C; its log goes to standard error."""
    from meshwise.run.serve.session import Serving

    found = api.run(say=Bar(stderr=True).say, **words)
    if isinstance(found, Serving):
        with found:
            try:
                _announce(found)
                found.wait()
            except KeyboardInterrupt:
                output.emit("stopping")
    else:
        _dry_run(found)  # pyright: ignore[reportArgumentType]


def _announce(up: "Serving") -> None:
    # read before anything is printed: whoever sees the address may stop the engine at once
    rows = [] if up.rpc_only else up.memory()
    for line in up.lines():
        output.emit(line)
    _memory(rows)


def _dry_run(found: "ServeDryRun") -> None:
    for line in found.commands:
        output.emit(line)
    _memory(found.memory, source=found.source)


def _memory(rows: Any, **source: str) -> None:
    if not rows:
        return
    from meshwise.ui.views.bench import memory_view
    from meshwise.ui.views.tables import console

    out = console()
    out.print(memory_view(rows, out.width, **source), soft_wrap=True)
