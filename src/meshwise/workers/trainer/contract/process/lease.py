"""The locks of a run's folder: its launcher holds `.lock`, and every worker a share of `.workers`. No torch.

The kernel releases a lock however its process ends. A new run waits until no worker of an earlier one holds a share: a worker that outlived
its launcher, on this host or on another that shares the folder, would write into the same files.
"""

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

LOCK = ".lock"
WORKERS = ".workers"
_shares: list[int] = []  # open files whose locks last as long as this process


def open_lock(path: Path) -> int:
    """Open a file to lock; it is created if need be. A link is not followed: describing the lock empties the file."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def describe(handle: int, **more: object) -> None:
    """Write who holds a lock into its file."""
    with suppress(OSError):  # a full disk: the lock holds without a description
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"process": os.getpid(), "host": socket.gethostname()} | more).encode(), 0)


def share(folder: Path) -> None:
    """Hold a share of `.workers` until this process ends. A worker calls it before it writes anything."""
    try:
        handle = open_lock(folder / WORKERS)
    except OSError:
        return  # nothing can be written there: the run will report it
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_SH)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        describe(handle)
    _shares.append(handle)
