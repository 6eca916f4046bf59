"""The verbs `mcp` and `skill`: for agents."""

import re
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from meshwise import api
from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Json, plain_verb

app = typer.Typer()
PACKAGES = ("mcp", "jsonschema", "jinja2")  # packages of the extra `mcp`
MADE_BY_COG = re.compile(r"<!-- \[\[\[(cog.*?\]\]\]|end\]\]\]) -->\n*", re.DOTALL)


@plain_verb(app, "mcp")
def mcp(
    http: Annotated[bool, Option("--http", help="Answer over HTTP on loopback instead of standard input and output.")] = False,
    port: Annotated[int, Option(metavar="N", help="Port of --http; 0 takes a free one.", min=0, max=65535)] = 8766,
    token: Annotated[str, Option(metavar="TEXT", envvar="MESHWISE_TOKEN",
        help="Secret that requests over HTTP must carry as a bearer.")] = "",
) -> None:  # fmt: skip
    """Tools: plan, serve, count, check, audit, explain, replay, show. Reads no files and sends nothing anywhere; answers are resources."""
    output.require(PACKAGES, "the door for agents needs", "mcp")
    from meshwise.ui.mcp import server

    if http:
        server.serve_http(port, token, output.emit)
    else:
        server.serve_pipe()


@plain_verb(app, "skill")
def skill(
    out: Annotated[Path | None, Option(metavar="DIR", help="Write it as DIR/meshwise/SKILL.md, instead of printing it.")] = None,
    json: Json = False,
) -> None:
    """A page that tells an agent when and how to call meshwise, with worked examples."""
    text = MADE_BY_COG.sub("", files.text_of(files.BUILT_IN / "skill.md"))
    path = out / "meshwise" / "SKILL.md" if out is not None else None
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder {path.parent}: {error.strerror}") from None
        api.write(path, text)
    if json:
        output.data({"path": str(path) if path else None, "text": text})
    else:
        output.emit(f"wrote {path}" if path else text.rstrip("\n"))
