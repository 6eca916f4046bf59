"""One run at a time in a folder: `.lock`, with a heartbeat where locks do not reach other hosts, and no worker left of the run before."""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.run.callbacks import Say, ignore
from meshwise.run.train.launch import Launch
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.process.lease import LOCK, WORKERS, describe, open_lock

HEARTBEAT_SECONDS = 3.0  # seconds between heartbeats in `.lock`
LEASE_SECONDS = 4 * HEARTBEAT_SECONDS  # seconds without a heartbeat after which a run on another host counts as gone
ENDING_SECONDS = 30.0
"""Seconds to wait for workers of an earlier run to end: those whose store or peers are gone notice within a few."""
QUIET_SECONDS = 1.0  # seconds of waiting before a line is printed

_held: list[int] = []


def descriptors() -> tuple[int, ...]:
    """Return the open files of the locks that this process holds: an agent inherits them, and holds the locks as well."""
    return tuple(_held)


@contextmanager
def lock(out: Path, ready: Launch | None = None, say: Say = ignore) -> Generator[None]:
    """Lock a folder while the block runs; of several nodes, or workers that another program started, only the first one locks it."""
    if ready and (ready.hosts.rank or int(ready.hosts.worker.get("RANK", "0"))):
        yield
        return
    refuse_links(out)
    handle = _open(out)
    over = threading.Event()
    try:
        _take(handle, out, say)
        _held.append(handle)
        becomes_worker = bool(ready and ready.hosts.worker)
        # where another program starts the workers, this process becomes one and must keep the lock; it has no thread for a heartbeat
        os.set_inheritable(handle, True)
        describe(handle, **({} if becomes_worker else {"beat": 0}))
        if not becomes_worker:
            threading.Thread(target=_beat, args=(handle, over), name="lock", daemon=True).start()
        wait_for_workers(out, say)
        reach("launcher locked")
        yield
    finally:
        over.set()
        if handle in _held:
            _held.remove(handle)
            with suppress(OSError):
                os.ftruncate(handle, 0)
        os.close(handle)


def refuse_links(out: Path) -> None:
    """Refuse a folder with links to files: a run writes into its own files, and a folder that somebody packed may link them elsewhere."""
    try:
        entries = list(os.scandir(out))
    except OSError:
        return  # not there yet, or `_open` says why not
    for entry in sorted(entries, key=lambda each: each.name):
        if entry.is_symlink() and not entry.is_dir():
            raise UserError(f"--out {out}: {entry.name} is a link, and a run would write into what it points to; remove it")


def _take(handle: int, out: Path, say: Say) -> None:
    if not _alone(handle):
        raise _taken(out, handle)
    holder = _description(handle)
    if "beat" not in holder or holder.get("host") == socket.gethostname():
        return  # released, or of this host, where a lock is all that counts
    say(f"--out {out}: waiting {LEASE_SECONDS:g} s to see whether {_name(holder)} still runs in it")
    until = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < until:
        if (now := _description(handle)) != holder and now:
            raise _taken(out, handle)
        time.sleep(min(HEARTBEAT_SECONDS / 2, LEASE_SECONDS / 4))


def _taken(out: Path, handle: int) -> UserError:
    return UserError(f"--out {out}: {_name(_description(handle))} is running in it; wait for it to end, or choose another --out")


def _beat(handle: int, over: threading.Event) -> None:
    count = 0
    while not over.wait(HEARTBEAT_SECONDS):
        count += 1
        describe(handle, beat=count)


def wait_for_workers(out: Path, say: Say = ignore) -> None:
    """Wait until no worker of an earlier run is left in a folder, here or on another host; refuse the folder if one stays."""
    path = out / WORKERS
    if not path.exists():
        return
    handle = _open(out, WORKERS)
    try:
        begun, reported = time.monotonic(), False
        while not _alone(handle):
            waited = time.monotonic() - begun
            if waited > ENDING_SECONDS:
                raise UserError(
                    f"--out {out}: workers of an earlier run, such as {_name(_description(handle))}, still run in it; "
                    "end them, or choose another --out"
                )
            if waited > QUIET_SECONDS and not reported:
                say(f"waiting for the workers of an earlier run in {out} to end, such as {_name(_description(handle))}")
                reported = True
            time.sleep(0.1)
    finally:
        os.close(handle)


def _alone(handle: int) -> bool:
    """Lock a file; return whether no other run, or worker with a share of the lock, holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def _open(out: Path, name: str = LOCK) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        return open_lock(out / name)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None


def _description(handle: int) -> dict[str, Any]:
    try:
        holder: object = json.loads(os.pread(handle, 1000, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", holder) if isinstance(holder, dict) else {}


def _name(holder: dict[str, Any]) -> str:
    process, host = holder.get("process"), holder.get("host")
    return f"process {process} on {host}" if isinstance(process, int) and isinstance(host, str) else "another run"
