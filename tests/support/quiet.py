"""A guard on what a command may do: no socket, no process, nothing written, no code of others loaded, and no file read
that a test does not allow."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import meshwise

FORBIDDEN = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn", "os.startfile",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime",
    "os.setxattr", "shutil.rmtree", "shutil.move", "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp", "sqlite3.connect",
    "pickle.find_class", "marshal.loads", "ctypes.dlopen", "os.kill", "signal.pthread_kill",
)  # fmt: skip
"""Audit events of Python (docs.python.org/3/library/audit_events.html) that a command which only reads has no reason for."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OWN = tuple({str(Path(path).resolve()) for path in (sys.prefix, sys.base_prefix, Path(meshwise.__file__).parent)})
"""Where modules come from: Python, installed packages, meshwise."""


LISTS = ("os.listdir", "os.scandir", "glob.glob")
"""Events of listing a folder; those of Python's own path are listed to find plugins."""


class _Guard:
    on = False
    reads: Path | None = None
    """The folder that may be read beside those of Python and meshwise; None: all."""
    seen: list[str] = []  # noqa: RUF012


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _Guard.on:
        return
    if event == "open":
        path, _, flags = arguments
        written = isinstance(flags, int) and flags & WRITES
        if written and not isinstance(path, int) and str(path) != os.devnull and not _compiled(str(path)):
            _Guard.seen.append(f"writes {path}")
        elif not isinstance(path, int) and not _may_read(str(path)):
            _Guard.seen.append(f"reads {path}"[:200])
    elif (
        event in LISTS
        and arguments[0] not in sys.path
        and not isinstance(arguments[0], int)
        and not _may_read(str(arguments[0] or "."))
    ):
        _Guard.seen.append(f"lists {arguments[0]}"[:200])
    elif event in FORBIDDEN and not _of_import(event) and not (event == "sqlite3.connect" and "?mode=ro" in str(arguments[0])):
        _Guard.seen.append(f"{event} {arguments[:1]}"[:200])


def _may_read(path: str) -> bool:
    """Return whether a file or folder, behind its links, is where the block may read; what an import reads is no data."""
    if _Guard.reads is None or path in (os.devnull, "<unknown>"):  # CPython looks for the source of a text that ast.parse refuses
        return True
    found = Path(os.path.realpath(path))
    return any(found.is_relative_to(folder) for folder in (_Guard.reads, *OWN)) or _importing()


def _compiled(path: str) -> bool:
    """Return whether a file is one that Python itself keeps of a module that it compiled."""
    return "__pycache__" in path and str(Path(path).resolve()).startswith(OWN)


def _of_import(event: str) -> bool:
    """Return whether an event comes from the import of a module of ours or of a package: byte code, native libraries."""
    return event in ("marshal.loads", "ctypes.dlopen", "os.mkdir", "os.rename") and _importing()


def _importing() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


sys.addaudithook(_hook)


@contextmanager
def quiet(reads: Path | None = None) -> Iterator[None]:
    """Fail where the block reaches a host, starts a process, writes or removes a file, loads code as data, or reads outside of a folder."""
    _Guard.on, _Guard.reads, _Guard.seen = True, reads and reads.resolve(), []
    try:
        yield
    finally:  # also where the block refuses its input
        _Guard.on = False
        assert _Guard.seen == [], _Guard.seen
