"""The verb `check`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.audit.check.ask import CheckAsk
from meshwise.errors import UserError
from meshwise.ui.cli import output
from meshwise.ui.cli.help import OUTPUT
from meshwise.ui.cli.options import Given, Json, Verbose, verb

app = typer.Typer()


@verb(app, "check", CheckAsk)
def check(
    given: Given,
    files: Annotated[list[Path] | None, Argument(metavar="FILE...",
        help="A launch script or configuration, and the files that it names.")] = None,
    fix: Annotated[Path | None, Option(metavar="PATH", help="Write a copy with the best layout, everything else byte for byte.",
        rich_help_panel=OUTPUT)] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print one line.", rich_help_panel=OUTPUT)] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Reads scripts and configurations of Megatron, DeepSpeed, torchtitan, accelerate, Trainer, Axolotl, LLaMA-Factory, nanotron, MaxText,
    NeoX, vLLM, SGLang, TensorRT-LLM and llama.cpp; nothing is executed. Exit code 1: it does not fit or cannot start; 2: it cannot be
    read."""
    if not files:
        raise UserError("missing FILE: a launch script or configuration")
    verdict = api.check(*files, **given.of(CheckAsk))
    if quiet and not json:
        output.emit(verdict.line)
    else:
        output.show(verdict, json=json, verbose=verbose)
    if fix is not None:
        for path in verdict.save(fix):
            if not json:
                output.emit(f"wrote {path}")
    raise typer.Exit(verdict.code)
