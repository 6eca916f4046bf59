"""Callbacks with which functions that take long report to their caller: the command line, a notebook, a test."""

from collections.abc import Callable

Say = Callable[[str], None]  # called with each line of output
Progress = Callable[[str, float, float], None]  # called with a description of the current work, the amount done, and the total


def ignore(*_: object) -> None:
    """A callback that drops everything."""
