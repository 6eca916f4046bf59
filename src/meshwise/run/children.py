"""Child processes that end with their parent, together with everything they started."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from meshwise.workers.trainer.contract.process.parent import die_with
from meshwise.workers.trainer.contract.process.stop import stop_signals


def with_parent() -> Callable[[], None] | None:
    """Return the `preexec_fn` that ties a child's life to this process, where the system has one."""
    parent = os.getpid()
    return (lambda: die_with(parent)) if sys.platform == "linux" else None


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Generator[None]:
    """Handle signals while the block runs. Does nothing outside the main thread, where Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def interrupt_on_stop() -> contextlib.AbstractContextManager[None]:
    """Treat SIGTERM, and the signals of a lost terminal unless they are ignored, as Ctrl-C, so that `finally` blocks run."""
    return handle_signals(_interrupt, *(number for number in stop_signals() if number != signal.SIGINT))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does now: asyncio, for one, ends its tasks in order."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, as in the background of a shell
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def end_tree(process: "subprocess.Popen[Any]", grace: float) -> None:
    """Ask a process and its descendants, in whatever session, to end (SIGTERM), and kill those that run after `grace` seconds."""
    family = [process.pid, *descendants(process.pid)] if process.poll() is None else []
    _signal(family, signal.SIGTERM)
    end = time.monotonic() + grace
    while time.monotonic() < end and (process.poll() is None or running(family[1:])):
        time.sleep(0.02)
    _signal([*family, *(child for pid in family for child in descendants(pid))], signal.SIGKILL)
    process.wait()


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in dict.fromkeys(pids):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on (Linux; elsewhere none)."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid_below for child in children for pid_below in (child, *descendants(child))]


def running(pids: Iterable[int]) -> list[int]:
    """Return the processes that still run; zombies, which only wait for their parent to notice, do not."""

    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if alive(pid)]
