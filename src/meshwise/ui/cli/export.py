"""The verb `export`."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from meshwise import api
from meshwise.errors import UserError
from meshwise.programs.ask import ExportAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Given, Json, verb

if TYPE_CHECKING:
    from meshwise.programs.write import Exported

app = typer.Typer()


@verb(app, "export", ExportAsk, argument="PLAN")
def export(
    given: Given,
    out: Annotated[Path | None, Option(help="Write the files into this folder, instead of printing them.", metavar="DIR",
        rich_help_panel=OUTPUT)] = None,
    list: Annotated[bool, Option("--list", help="List programs and launchers, and stop.", rich_help_panel=OUTPUT)] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """A layout that the program cannot express is refused, with the nearest one that it can. Data, tokenizer and paths are placeholders
    that stop the program until they are set."""
    if list:
        from meshwise.ui.views.launch_files import programs_view
        from meshwise.ui.views.tables import console

        console().print(programs_view())
        return
    words = given.of(ExportAsk)
    if not words.get("plan") or not words.get("to"):
        raise UserError("missing PLAN or --to: meshwise export plan.json --to megatron ('--list' lists programs)")
    made = _exported(words)
    if json:
        output.data(made.to_json())
    elif out is None:
        for name, text in made.files.items():
            output.emit(f"==> {name} <==\n{text.rstrip()}\n")
    if out is not None:
        paths = made.save(out)
        if not json:
            output.emit("\n".join(str(path) for path in paths))
            output.emit(f"start: cd {out} && {made.start}")


def _exported(words: dict[str, Any]) -> "Exported":
    """Export the plan that is named, or '-' for a plan on standard input: meshwise plan ... --json | meshwise export - --to megatron."""
    plan = words.pop("plan")
    if plan != "-":
        return api.export(plan, **words)
    with TemporaryDirectory(prefix="meshwise-") as folder:
        file = Path(folder, "plan.json")
        file.write_text(sys.stdin.read(), encoding="utf-8")
        return api.export(file, **words)
