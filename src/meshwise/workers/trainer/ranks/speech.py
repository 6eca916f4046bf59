"""Saying something where perhaps nobody reads any more: a run goes on without `head` or `less`, in silence. No torch here."""

import os
import sys
from collections.abc import Callable
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """A line, at once, on standard output or another stream."""
    out = stream or sys.stdout
    try:
        print(text, file=out, flush=True)
    except BrokenPipeError:
        hush(out)


def flush() -> None:
    """What is not out yet on both streams, where anyone reads it: at Python's own end it would be an error."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # none where it was closed from the start
        try:
            stream.flush()
        except BrokenPipeError:
            hush(stream)


def hush(stream: TextIO) -> None:
    """Send the rest of a stream nowhere, what is still in its buffer too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def unheard(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same way to say something, harmless when nobody reads any more."""

    def said(text: str) -> None:
        try:
            say(text)
        except BrokenPipeError:
            hush(sys.stdout)

    return said
