"""Whether anybody still waits for an answer: a server sets it, and long searches look at it between their blocks."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


_still_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("still_wanted", default=None)


@contextmanager
def while_wanted(still: Callable[[], bool]) -> Generator[None]:
    """Let searches inside this context, in this thread, end with Abandoned once `still` returns False."""
    token = _still_wanted.set(still)
    try:
        yield
    finally:
        _still_wanted.reset(token)


def check() -> None:
    """Raise Abandoned where nobody waits for the answer any more."""
    still = _still_wanted.get()
    if still is not None and not still():
        raise Abandoned
