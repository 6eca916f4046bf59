"""The verb `pick`."""

import typer

from meshwise import api
from meshwise.plan.pick.ask import PickAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Csv, Given, Json, Verbose, verb

app = typer.Typer()


@verb(app, "pick", PickAsk)
def pick(given: Given, verbose: Verbose = False, json: Json = False, csv: Csv = False) -> None:
    """Ranked by published scores at the speed and context asked for. Exit code 1: nothing fits."""
    from meshwise.plan.pick.answer import Pick
    from meshwise.ui.views.pick import command_lines

    found = api.pick(**given.of(PickAsk))
    commands = command_lines(found, verbose=verbose) if isinstance(found, Pick) else []
    output.show(found, json=json, csv=csv, before=commands, verbose=verbose)
