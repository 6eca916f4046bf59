"""Print through a closed pipe, a lost terminal or a full disk without an error. The standard library alone: workers print with it too."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once, on standard output or another stream."""
    out = stream or sys.stdout
    try:
        print(text, file=out, flush=True)
    except (OSError, ValueError):  # ValueError: the stream was closed
        silence(out)


def flush() -> None:
    """Flush both streams; what cannot be written would raise an error when Python exits."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it was closed from the start
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(stream)


def silence(stream: TextIO) -> None:
    """Redirect a stream to nowhere, including the content of its buffer."""
    try:
        target = stream.fileno()
    except (OSError, ValueError):  # a stream of a notebook or a test, or a closed one
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)


class Drawn:
    """A result that a notebook shows as a terminal does. Views stand above results, so theirs are imported by name."""

    def _repr_html_(self) -> str:
        return import_module("meshwise.ui.views.notebook").html(self)


def ignore_broken_pipe(call: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function that prints, so that output that is closed, lost or full raises nothing."""

    def wrapped(*values: Any) -> None:
        try:
            call(*values)
        except OSError:
            silence(sys.stdout)

    return wrapped
