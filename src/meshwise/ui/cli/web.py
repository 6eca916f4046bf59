"""The verb `ui`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise.ui.cli import output
from meshwise.ui.cli.options import Json, plain_verb

app = typer.Typer()


@plain_verb(app, "ui")
def ui(
    files: Annotated[list[Path] | None, Argument(metavar="[FILE]...",
        help="A plan.json, folders of runs, results of bench, or logs to show.")] = None,
    port: Annotated[int, Option(metavar="N", help="Port; 0 takes a free one.", min=0, max=65535)] = 8765,
    host: Annotated[str,
        Option(metavar="ADDRESS", help="Address to listen on. Others than loopback need --token.")] = "127.0.0.1",
    token: Annotated[str, Option(metavar="TEXT", envvar="MESHWISE_TOKEN",
        help="Secret that the address of the page must carry. Other users see it in the list of processes, but not in the variable.")] = "",
    browser: Annotated[bool, Option(help="Open a browser, where there is a screen.")] = True,
    json: Json = False,
) -> None:  # fmt: skip
    """The page runs on this machine alone, sends nothing anywhere, and reads no files but those named here."""
    output.require_page()
    from meshwise.ui.web import named, server

    given = named.read(files or [])

    def say(where: str) -> None:
        output.data({"url": where}) if json else output.emit(f"meshwise ui: {where}  (Ctrl-C stops it)")

    server.serve(given, named.first_page(given), host=host, port=port, token=token, browser=browser, say=say)
