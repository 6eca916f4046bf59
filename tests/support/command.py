"""What a command or an error tells a user, and what is checked of every one of them."""

import csv
import io
from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


def rows(text: str) -> list[dict[str, str]]:
    """What a CSV says, by column."""
    return list(csv.DictReader(io.StringIO(text)))


def one_line(error: BaseException) -> str:
    """The message of an error, once it is seen to be one line that a terminal can print."""
    message = str(error)
    assert message.isprintable()
    return message


def refused(done: Done, code: int = 2) -> str:
    """What a command that refused says, once it is seen to be one line on standard error and nothing else."""
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("meshwise: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    return done.err
