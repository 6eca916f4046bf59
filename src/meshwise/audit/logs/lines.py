"""Lines of a file of any length, with their numbers: colours taken out, a line without end cut off."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from meshwise.errors import UserError, quoted

LONGEST = 1 << 16
"""Characters of one line that are read; the rest of it is dropped, and the line is marked as cut."""
HEAD = 1 << 16
"""Characters in which a format is recognised."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Line(NamedTuple):
    number: int
    text: str
    cut: bool = False
    """Longer than LONGEST, or the last of a file that does not end in a line break."""


def plain(text: str) -> str:
    """Without colours, control characters and the line break. Of a progress bar only what was drawn last is left."""
    text = _ANSI.sub("", text.rstrip("\r\n"))
    return _CONTROL.sub("", text.rsplit("\r", 1)[-1])


def lines(stream: TextIO) -> Iterator[Line]:
    number = 0
    while text := stream.readline(LONGEST):
        number += 1
        whole = text.endswith("\n")
        rest = text
        while not whole and len(rest) == LONGEST:  # the tail of an endless line, in pieces
            rest = stream.readline(LONGEST)
            whole = rest.endswith("\n") or not rest
        yield Line(number, plain(text), cut=not text.endswith("\n"))


def open_text(path: Path) -> TextIO:
    """UTF-8 with or without its mark, or UTF-16 with one; bytes that are neither become a sign of their own."""
    try:
        with path.open("rb") as file:
            mark = file.read(2)
        coding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return path.open(encoding=coding, errors="replace", newline="\n")
    except IsADirectoryError:
        raise UserError(f"{quoted(str(path), 200)} is a folder; give its files, or --predicted for the folder of a run") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {getattr(error, 'strerror', None) or error}") from None


def head(path: Path) -> str:
    with open_text(path) as file:
        return file.read(HEAD)
