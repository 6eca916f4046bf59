"""The verb `preflight`."""

import typer

from meshwise import api
from meshwise.run.preflight.ask import PreflightAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Given, Json, verb
from meshwise.ui.cli.progress import Bar

app = typer.Typer()


@verb(app, "preflight", PreflightAsk)
def preflight(given: Given, json: Json = False) -> None:
    """Finds nodes, devices and links and writes cluster.toml; times each node, pairs and rings; and names what is slower than predicted,
    than its neighbours or than before. Exit code 1: something is sick."""
    with Bar(stderr=True) as bar:
        done = api.preflight(say=bar.say, progress=bar.progress, **given.of(PreflightAsk))
    if done is None:
        return
    output.show(done, json=json)
    if done.stopped:
        raise KeyboardInterrupt
    raise typer.Exit(done.exit_code)
