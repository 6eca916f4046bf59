"""The result of a run as a person tells it: the path of its log, its time, or how it failed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.run.callbacks import Say
from meshwise.tune.belief.observation import Failure
from meshwise.tune.loop.journal import Run
from meshwise.tune.loop.reading import Outcome
from meshwise.tune.loop.subject import Subject

FAILURES = ("oom", "crash", "hang", "timeout")
SKIP = "skip"

Prompt = Callable[[str], str]  # asks a person, and returns what was typed; EOFError where nobody answers


def ask(subject: Subject, row: int, run: Run, folder: Path, say: Say, answer: Prompt) -> Outcome:
    """Show a candidate, and ask for the result of its run until the answer can be used."""
    for line in (*subject.words(row), f"its files are in {folder}"):
        say(f"  {line}")
    while True:
        text = answer(f"run {run.number}: its log, its time ('3.2s'), {', '.join(FAILURES)}, or {SKIP}: ").strip()
        try:
            return understood(subject, row, text)
        except UserError as error:
            say(str(error))


def understood(subject: Subject, row: int, text: str) -> Outcome:
    """Return the result that a person typed. UserError where it cannot be understood."""
    if text == SKIP:
        return Outcome(rejected="skipped")
    if text in FAILURES:
        return Outcome(failure=cast(Failure, text), note="as told")
    if text and Path(text).expanduser().is_file():
        return subject.read_log(row, Path(text).expanduser())
    try:
        seconds = units.parse(text, "seconds")
    except UserError:
        raise UserError(f"{quoted(text)} is no file, no time such as 3.2s, and none of {', '.join(FAILURES)}, {SKIP}") from None
    if not 0 < seconds < math.inf:
        raise UserError(f"{quoted(text)}: the time of a step is above zero: give one such as 3.2s")
    return Outcome(seconds=seconds, note="as told")
