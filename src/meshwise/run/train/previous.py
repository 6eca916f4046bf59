"""Earlier: what other runs have to do with a folder. One run at a time, and what a run before it left is gone on from or left alone."""

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
"""Held, not merely there: the kernel gives it back however its process ends."""


@contextmanager
def alone(out: Path, ready: Launch | None = None) -> Generator[None]:
    """Keep others out of a folder while this lasts. Of several nodes, or of workers that others started, the first does it for all."""
    if ready and (ready.hosts.rank or int(ready.hosts.worker.get("RANK", "0"))):
        yield
        return
    handle = _opened(out)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--out {out}: {_holder(handle)} runs in it; wait for its end, or give another --out") from None
        except OSError:
            pass  # a file system without locks is no reason not to train
        with suppress(OSError):  # a full disk: the lock holds without its words
            os.truncate(handle, 0)
            os.write(handle, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        os.close(handle)


def _opened(out: Path) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    # where workers are started by others, this process becomes one, and holds on to it
    os.set_inheritable(handle, True)
    return handle


def _holder(handle: int) -> str:
    try:
        found = json.loads(os.pread(handle, 1000, 0))
        return f"process {found['process']} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


def check(ready: Launch, out: Path) -> None:
    """Refuse a run that would write over the steps of an earlier one, or read its samples in another order."""
    folder, s = out / "checkpoints", ready.settings
    steps, damaged = complete_steps(folder), damaged_steps(folder)
    if not s.checkpoint_every:
        if steps or damaged:
            raise UserError(
                f"--out {out} holds checkpoints of an earlier run, up to step {max(steps + damaged)}: "
                "--checkpoint-every goes on with it, another --out leaves it as it is"
            )
        return
    if damaged and not steps:
        raise UserError(all_damaged(folder, damaged))
    markers = filter(None, (read_marker(folder / f"step-{step}") for step in steps))
    if refused := resume_refusal(folder, Trained.read(next(markers, dict[str, Any]())), s):
        raise UserError(refused)
