"""Run the command line in this process, and check the form of its answers and errors."""

import csv
import functools
import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from meshwise.ui.cli.main import main

SMALL = ["plan", "llama-debug", "--on", "1x8xh100-sxm", "--batch", "64", "--seq", "512"]
BLOOM = ["plan", "bloom-176b", "--on", "jean-zay:48", "--batch", "2048", "--seq", "2k", "--framework", "megatron-deepspeed"]
POD = ["plan", "llama-3-70b", "--on", "tpu-v5p:16x20x28", "--batch", "4M"]
"""The question of How to Scale Your Model, part 6: 1024 sequences of 4096 tokens on 8,960 chips."""


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]
TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")
"""Variables that describe the width and abilities of a terminal."""


def meshwise(*arguments: str, columns: int | None = None) -> Done:
    """Run `meshwise` with some arguments, in this process and without a terminal; as wide as `columns`, if given."""
    out, err = io.StringIO(), io.StringIO()
    kept = {name: value for name, value in os.environ.items() if name not in TERMINAL}
    wide = {"COLUMNS": str(columns)} if columns else {}
    code = 0
    with (
        mock.patch.dict(os.environ, kept | wide, clear=True),
        mock.patch.object(sys, "argv", ["meshwise", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


once = functools.cache(meshwise)
"""Run a command once, however many tests read its answer. Only for commands that read the built-in catalogues and write nothing."""


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV, by column."""
    return list(csv.DictReader(io.StringIO(text)))


def one_line(error: BaseException) -> str:
    """Return the message of an error, which must be one line that a terminal can print."""
    message = str(error)
    assert message.isprintable()
    return message


def refused(done: Done, code: int = 2) -> str:
    """Return the message of a command that refused: one line on standard error and nothing else."""
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("meshwise: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    return done.err


def flowing(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def with_option(base: list[str], option: str, value: str) -> list[str]:
    """Return the command with another value of one of its options, or with one more option."""
    if option not in base:
        return [*base, option, value]
    return [value if base[i - 1] == option else word for i, word in enumerate(base)]
