"""Starting torchrun and staying with it: a signal asks the workers to stop, a second one ends them, and none is left behind."""

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from meshwise.workers.trainer.ranks.speech import say

STOP_FILE = "MESHWISE_STOP"


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    beside: Callable[["subprocess.Popen[str]"], None] | None = None,
    **streams: Any,
) -> tuple[int, bool]:
    """The exit code of a command, and whether it was asked to stop. It has a session of its own: a terminal's Ctrl-C reaches only us.

    `streams` say where its output goes, and `beside` reads it where it comes to us.
    """
    with TemporaryDirectory(prefix="meshwise-") as folder:
        stop = Path(folder, "stop")
        process = subprocess.Popen(
            command,
            env=dict(environment) | {STOP_FILE: str(stop)},
            start_new_session=True,
            text=True,
            errors="replace",
            **streams,
        )

        def asked(number: int, frame: FrameType | None) -> None:
            if stop.exists():
                process.kill()
                return
            stop.touch()
            say(f"meshwise: {signal.Signals(number).name}: stopping when the step is done; once more ends it at once", sys.stderr)

        before = {one: signal.signal(one, asked) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            if beside is not None:
                beside(process)
            return process.wait(), stop.exists()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
            if process.poll() is None:
                process.kill()
                process.wait()
