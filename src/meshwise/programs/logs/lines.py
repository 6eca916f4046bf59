"""Numbered lines of a text file of any length, with terminal colors removed and overlong lines truncated."""

import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, TextIO

from meshwise.catalogue import files
from meshwise.errors import UserError, quoted

MAX_LINE_CHARS = 1 << 16  # characters read from one line; the rest is dropped and the line marked as cut
HEAD_CHARS = 1 << 16  # characters from which the format of a file is recognized

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Line(NamedTuple):
    number: int
    text: str
    cut: bool = False  # longer than MAX_LINE_CHARS, or the last line of a file without a final line break


def plain(text: str) -> str:
    """Remove colors, control characters and the line break; keep only the last state of a progress bar."""
    text = text.rstrip("\r\n")
    if text.isprintable():  # neither colors nor control characters
        return text
    text = _ANSI.sub("", text)
    return _CONTROL.sub("", text.rsplit("\r", 1)[-1])


def lines(stream: TextIO) -> Iterator[Line]:
    """Yield the lines of a file, cleaned by `plain`."""
    number = 0
    while text := stream.readline(MAX_LINE_CHARS):
        number += 1
        whole = text.endswith("\n")
        rest = text
        while not whole and len(rest) == MAX_LINE_CHARS:  # read the dropped tail in pieces
            rest = stream.readline(MAX_LINE_CHARS)
            whole = rest.endswith("\n") or not rest
        yield Line(number, plain(text), cut=not text.endswith("\n"))


def open_text(path: Path) -> tuple[str, TextIO]:
    """Open a file as UTF-8 or UTF-16; return its head and the file from its beginning; a pipe is read once, invalid bytes are replaced."""
    if path.is_dir():
        raise UserError(f"{quoted(str(path), 200)} is a folder; give the files in it, or the folder of a run with --predicted")
    file = files.open_file(path)
    try:
        begin = file.peek(HEAD_CHARS)
    except OSError as error:
        file.close()
        raise files.unreadable(path, error) from None
    coding = "utf-16" if begin[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    head = begin.decode(coding, "replace")[:HEAD_CHARS].replace("\r\n", "\n")
    return head, TextIOWrapper(file, encoding=coding, errors="replace", newline="\n")
