"""Printing that survives a closed pipe: a run goes on when `head` or `less` has ended. No torch."""

import os
import sys
from collections.abc import Callable
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once, on standard output or another stream."""
    out = stream or sys.stdout
    try:
        print(text, file=out, flush=True)
    except BrokenPipeError:
        silence(out)


def flush() -> None:
    """Flush both streams; a closed pipe would raise an error when Python exits."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it was closed from the start
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)


def silence(stream: TextIO) -> None:
    """Redirect a stream to nowhere, including the content of its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def ignore_broken_pipe(say: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap `say` so that a closed pipe (head, less) does not end the run."""

    def wrapped(text: str) -> None:
        try:
            say(text)
        except BrokenPipeError:
            silence(sys.stdout)

    return wrapped
