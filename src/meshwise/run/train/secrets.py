"""The secret of a run, with which its processes sign what they tell each other: made for one machine, shared by several in their folder."""

import os
import secrets
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from meshwise.errors import UserError
from meshwise.run.train.hosts import Hosts
from meshwise.workers.secret import SECRET

FILE = ".secret"  # its file in the folder of a run on several machines, which only its owner can read
LENGTH = 64  # its characters, of 4 bits each
WRITTEN_SECONDS = 5.0  # seconds in which another node that makes the file has written it


def of_run(out: Path, hosts: Hosts, environment: Mapping[str, str]) -> str:
    """Return the user's secret from the environment; else a new one on one machine, and that of the shared folder on several."""
    if given := environment.get(SECRET):
        return given
    if hosts.rendezvous or hosts.worker:
        return _shared(out / FILE)
    return secrets.token_hex(LENGTH // 2)


def _shared(path: Path) -> str:
    """Return the secret in a file, which whichever node comes first makes."""
    try:
        if not os.path.lexists(path):
            _make(path)
        return _read(path)
    except OSError as error:
        raise UserError(
            f"the secret of the run, {path}, cannot be read or made ({error.strerror}); or set {SECRET} on all nodes"
        ) from None


def _make(path: Path) -> None:
    """Write a new secret, unless another node does at this moment."""
    with (
        suppress(FileExistsError),
        open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file,
    ):
        file.write(secrets.token_hex(LENGTH // 2))


def _read(path: Path) -> str:
    """Return the secret in a file of this user alone; one that another node is writing is waited for."""
    until = time.monotonic() + WRITTEN_SECONDS
    while True:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="ascii", errors="replace") as file:
            held, text = os.fstat(file.fileno()), ""
            if stat.S_ISREG(held.st_mode):
                text = file.read(LENGTH + 1).strip()
        if held.st_mode & 0o077:
            raise UserError(f"the secret of the run, {path}, can be read by others; remove it, and a new one will be made")
        if len(text) == LENGTH:
            return text
        if time.monotonic() > until:
            raise UserError(
                f"the secret of the run, {path}, is not one that meshwise made; remove it, and a new one will be made"
            )
        time.sleep(0.1)
