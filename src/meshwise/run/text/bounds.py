"""Bounds on the time and memory of a text that somebody else wrote and we evaluate, such as a chat template."""

import resource
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TooLong(Exception):
    """The block took more CPU time than it may."""


@contextmanager
def bounded(seconds: float, more: int) -> Generator[None]:
    """Raise TooLong after this much CPU time of the block (in the main thread), and MemoryError after so much growth (on Linux)."""
    timed, limits = threading.current_thread() is threading.main_thread(), resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, _late) if timed else None
    try:
        if (most := _size() + more) > more and (limits[0] == resource.RLIM_INFINITY or most < limits[0]):
            resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _late(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _size() -> int:
    """Return the bytes of this process's address space; 0 where the kernel does not tell."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
