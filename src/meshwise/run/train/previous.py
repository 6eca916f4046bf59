"""The run folder: a lock against concurrent runs, and whether to resume from or refuse earlier checkpoints."""

import fcntl
import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from meshwise.errors import UserError
from meshwise.run.train.launch import Launch
from meshwise.workers.trainer.marker import Trained, all_damaged, complete_steps, damaged_steps, read_marker, resume_refusal

LOCK = ".lock"
"""A file whose lock counts, not its existence: the kernel releases the lock however its process ends."""


@contextmanager
def lock(out: Path, ready: Launch | None = None) -> Generator[None]:
    """Lock a folder while the block runs. With several nodes, or workers that another program started, only the first one locks it."""
    if ready and (ready.hosts.rank or int(ready.hosts.worker.get("RANK", "0"))):
        yield
        return
    handle = _open(out)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--out {out}: {_holder(handle)} is running in it; wait for it to end, or choose another --out"
            ) from None
        except OSError:
            pass  # a file system without locks
        with suppress(OSError):  # a full disk: the lock holds without a description
            os.truncate(handle, 0)
            os.write(handle, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        os.close(handle)


def _open(out: Path) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    # where another program starts the workers, this process becomes one and must keep the lock
    os.set_inheritable(handle, True)
    return handle


def _holder(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 1000, 0))
        return f"process {holder['process']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


def check(ready: Launch, out: Path) -> None:
    """Refuse a run that would overwrite the steps of an earlier one, or resume it with samples in another order."""
    folder, s = out / "checkpoints", ready.settings
    steps, damaged = complete_steps(folder), damaged_steps(folder)
    if not s.checkpoint_every:
        if steps or damaged:
            raise UserError(
                f"--out {out} holds checkpoints of an earlier run, up to step {max(steps + damaged)}: "
                "resume it with --checkpoint-every, or choose another --out"
            )
        return
    if damaged and not steps:
        raise UserError(all_damaged(folder, damaged))
    markers = filter(None, (read_marker(folder / f"step-{step}") for step in steps))
    if refused := resume_refusal(folder, Trained.read(next(markers, dict[str, Any]())), s):
        raise UserError(refused)
