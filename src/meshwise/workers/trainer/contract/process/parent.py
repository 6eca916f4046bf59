"""Ends this process with the one that started it. No torch: importing it takes seconds, in which a parent may die."""

import ctypes
import os
import signal
import sys

AGENT = "MESHWISE_AGENT"  # process id of the agent that started a worker
PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, and end now if it is gone already. Elsewhere than on Linux only the latter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def die_with_agent() -> None:
    """End with the agent that started this worker. Under torchrun itself, which sets no variable of ours, with the parent it has now."""
    if AGENT in os.environ:
        die_with(int(os.environ[AGENT]))
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        die_with(os.getppid())


def orphaned() -> bool:
    """Return whether the agent that started this worker is gone. The heartbeat asks, for systems without a death signal."""
    return AGENT in os.environ and os.getppid() != int(os.environ[AGENT])
