"""The verb `share`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Json, plain_verb

app = typer.Typer()


@plain_verb(app, "share")
def share(
    report: Annotated[Path, Argument(metavar="REPORT", help="A report that bench --out wrote.")],
    folder: Annotated[Path, Option(metavar="FOLDER", help="Folder for the file; 'meshwise validate FOLDER' scores it.")] = Path(
        "shared-runs"
    ),
    yes: Annotated[bool, Option("--yes", help="Write what was shown.")] = False,
    json: Json = False,
) -> None:
    """Shows the rows; with --yes, writes them as a file that anybody can validate and add by a pull request."""
    output.show(api.share(report, folder, write=yes), json=json)
