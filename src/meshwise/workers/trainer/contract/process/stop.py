"""The launcher's request that a run stops: a file that is empty until then. No torch."""

import os
import signal
from pathlib import Path

STOP_FILE = "MESHWISE_STOP"  # path of the file. Its launcher owns it, so it is gone when the launcher is.
SIGNAL = "stop"  # content of the file after a signal; else it has the reason in words
STOPS = (signal.SIGTERM, signal.SIGINT)  # signals that ask a run to stop, whatever was inherited for them
CUT_OFF = 75  # exit code of an agent that cannot reach the node with the store, which may come back: EX_TEMPFAIL of sysexits.h
LOST_TERMINAL = (signal.SIGHUP, signal.SIGQUIT)
"""Signals of a terminal that is gone; they ask a run to stop too, unless they are ignored, as under nohup."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop."""
    return (*STOPS, *(number for number in LOST_TERMINAL if signal.getsignal(number) is not signal.SIG_IGN))


def stop_file() -> Path | None:
    """Return the file of the launcher that started this process; None if another program started it."""
    return Path(os.environ[STOP_FILE]) if STOP_FILE in os.environ else None


def reason(file: Path) -> str:
    """Return why the launcher asks to stop."""
    try:
        written = file.read_text(encoding="utf-8", errors="replace")[:200]
    except OSError:
        written = ""
    return written if written not in ("", SIGNAL) else "a signal"


def requested(file: Path) -> bool:
    """Return whether the launcher asks to stop."""
    try:
        return file.stat().st_size > 0
    except OSError:
        return False
