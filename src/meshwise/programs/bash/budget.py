"""One budget of steps and seconds for reading launch files, so that no file takes for ever or fills the memory."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

MAX_STEPS, MAX_SECONDS = 6_000_000, 3.0
"""Of all files that are read together: pieces that are made, characters that are compared, nodes that are visited; seconds of CPU time. A
launch file takes a hundredth of it."""
MAX_SCRIPT_STEPS, MAX_SCRIPT_SECONDS = 2_000_000, 2.0  # of following one script: what was found until then is kept
STEPS_PER_LOOK = 500  # steps between looks at the clock


class TooLong(Exception):
    """A file takes more steps or seconds to read than a launch file does."""


class Budget:
    """Steps and seconds that are left for reading a file."""

    def __init__(self, steps: int, end: float) -> None:
        self.given = self.left = steps
        self.look, self.end = steps - STEPS_PER_LOOK, end

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left > self.look:
            return
        self.look = self.left - STEPS_PER_LOOK
        if self.left < 0 or time.thread_time() > self.end:
            raise TooLong


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited(steps: int = MAX_STEPS, seconds: float = MAX_SECONDS) -> Generator[None]:
    """Give a budget to what is read inside this context: no more than is left of the one outside, which pays for it."""
    outer, end = _budget.get(), time.thread_time() + seconds
    inner = Budget(steps, end) if outer is None else Budget(min(steps, outer.left), min(end, outer.end))
    token = _budget.set(inner)
    try:
        yield
    finally:
        _budget.reset(token)
        if outer is not None:
            outer.left -= inner.given - inner.left


def spend(steps: int = 1) -> None:
    """Count work. TooLong where the budget is spent."""
    budget = _budget.get()
    if budget is not None:
        budget.spend(steps)
