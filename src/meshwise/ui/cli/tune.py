"""The verb `tune`."""

import sys
from typing import Any

import typer

from meshwise import api
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.fields import flag_of, spec
from meshwise.tune.ask import TuneAsk
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Csv, Given, Json, verb
from meshwise.ui.cli.progress import Bar

app = typer.Typer()
REPLAYED = ("replay", "runs", "seeds", "calibration")  # flags that --replay takes


@verb(app, "tune", TuneAsk, argument="PLAN")
def tune(given: Given, json: Json = False, csv: Csv = False) -> None:
    """Chooses the run that promises most, writes its launch files, starts it, reads its log, learns from it, and chooses again, until
    a further run would not pay. Killed at any moment, the same command goes on. Exit code 1: no run was measured."""
    words = given.of(TuneAsk)
    if words.get("replay"):
        _replay(words, json=json, csv=csv)
        return
    result = api.tune(words.pop("what", ""), say=Bar(stderr=csv, json=json).say, answer=_answer, **words)
    output.show(result, json=json, csv=csv)
    if result.best is None:
        raise DoesNotFit(f"no run was measured: {result.stopped}")


def _answer(prompt: str) -> str:
    """Ask a person, or read the next line of a pipe. The prompt goes to standard error, since standard output may be JSON."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _replay(words: dict[str, Any], *, json: bool, csv: bool) -> None:
    """Show the time lost by number of runs on a table of measured runs."""
    others = [name for name in words if name not in REPLAYED]
    if others:
        about = spec(TuneAsk)[others[0]]
        given = "PLAN" if others[0] == "what" else flag_of(others[0], about)
        raise UserError(f"--replay takes a table of runs that were measured: drop {given}")
    ask = TuneAsk(**words)
    result = api.tune_on_table(ask.replay, runs=ask.runs if "runs" in words else 10, seeds=ask.seeds, calibration=ask.calibration)
    output.show(result, json=json, csv=csv)
