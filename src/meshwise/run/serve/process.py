"""Programs of an engine: started together, watched until one answers, and all gone when meshwise is, whatever ends it."""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import FrameType

from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.run.bench import client

KEPT = 1000
"""Lines of a log that are kept, for the reason why a program ended."""
GRACE = 10.0
"""Seconds to end in, before a program is killed."""
PR_SET_PDEATHSIG = 1
INSECURE = "llama.cpp calls its RPC experimental and insecure: never open it to a network that others can reach"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One process of an engine."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    host: str = "127.0.0.1"
    port: int = 0
    health: str = "/health"
    """What to ask for; empty: it is up when it listens."""


class Running:
    """A process in a group of its own, and the end of its log."""

    def __init__(self, program: Program, tell: Callable[[str], None]) -> None:
        self.program = program
        self.log: deque[str] = deque(maxlen=KEPT)
        self.tell = tell
        self.process = subprocess.Popen(
            program.command,
            env=dict(os.environ) | program.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            self.log.append(line)
            self.tell(f"{self.program.name}: {line}")

    def stop(self) -> None:
        """Asked to end, and killed with all its children if it does not."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self.process.wait()
        self._signal(signal.SIGKILL)  # children of its own that outlived it
        self.reader.join(2)
        if self.process.stdout:
            self.process.stdout.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _die_with_parent() -> None:
    """The kernel ends the process when meshwise itself is killed (prctl(2)): nothing else could."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def started(programs: Sequence[Program], tell: Callable[[str], None], patience: float) -> Generator[list[Running]]:
    """All programs up and answering, the last one last; none of them is left when the block is."""
    for program in programs:
        check_port(program)
    running: list[Running] = []
    before = signal.signal(signal.SIGTERM, _stopped) if threading.current_thread() is threading.main_thread() else None
    try:
        for program in programs:
            try:
                running.append(Running(program, tell))
            except OSError as error:
                raise UserError(f"{quoted(program.command[0], 200)} cannot be started: {error.strerror or error}") from None
            wait(running[-1], patience)
        yield running
    finally:
        for one in reversed(running):
            one.stop()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _stopped(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def check_port(program: Program) -> None:
    """Taken ports are told before anything is loaded: some engines share a port in silence."""
    family = socket.AF_INET6 if ":" in program.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((program.host, program.port))
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "name another with --port" if program.health else "end what listens there"
            raise UserError(f"{program.name} cannot listen on {program.host}:{program.port}: {reason}; {hint}") from None


def run_to_end(program: Program, hear: Callable[[str], None]) -> Running:
    """Every line that it prints is heard; nothing of it is left, however that ends."""
    running = Running(program, hear)
    try:
        running.process.wait()
        running.reader.join()
    except subprocess.SubprocessError as error:
        raise DoesNotFit(f"{program.name}: {error}") from None
    finally:
        running.stop()
    return running


def says(command: Sequence[str]) -> str:
    """What a program prints and ends; nothing where it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def private(address: str) -> str:
    """An address that RPC may be bound to: loopback, or a private one by name. Never all of them."""
    try:
        found = ip_address("127.0.0.1" if address in ("loopback", "localhost") else address)
    except ValueError:
        raise UserError(
            f"{quoted(address)} is no IP address; give loopback or a private one of this machine. {INSECURE}"
        ) from None
    if found.is_unspecified or not (found.is_loopback or found.is_private):
        raise UserError(f"RPC is bound to loopback or to a private address, not to {found}. {INSECURE}")
    return str(found)


def wait(one: Running, patience: float) -> None:
    """Until it answers. What it says when it ends before that is told in one line."""
    program = one.program
    end = time.monotonic() + patience
    where = client.Address(host=program.host, port=program.port)
    while time.monotonic() < end:
        if one.process.poll() is not None:
            one.reader.join(2)
            raise failure(one)
        if program.health:
            seen = asyncio.run(client.ask(where, "GET", program.health, patience=2.0))
            if seen.status == 200:
                return
        elif _listens(program):
            return
        time.sleep(0.1)
    raise DoesNotFit(f"{program.name} did not answer within {patience:g} s; its last words: {_last(one.log)}")


def _listens(program: Program) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in program.host else socket.AF_INET) as trial:
        trial.settimeout(1.0)
        return trial.connect_ex((program.host, program.port)) == 0


MEMORY = ("out of memory", "failed to allocate", "unable to allocate", "cannot allocate", "failed to fit")
UNKNOWN = ("invalid argument", "unknown argument", "unrecognized argument", "error while handling argument")


class OutOfMemory(DoesNotFit):
    """The engine could not have the memory that it asked for."""


def failure(one: Running) -> UserError:
    """Why a program ended, in its own words, shortened."""
    name, lines = one.program.name, list(one.log)
    for line in lines:
        lowered = line.lower()
        if any(words in lowered for words in MEMORY):
            return OutOfMemory(f"{name} ran out of memory: {_short(line)}")
        if any(words in lowered for words in UNKNOWN):
            return UserError(f"this {name} does not know a flag that the plan needs ({_short(line)}); take a newer build")
    bad = [line for words in ("error", "failed to") for line in lines if words in line.lower()]
    told = bad[0] if bad else _last(lines)
    code = one.process.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return DoesNotFit(f"{name} {how}: {_short(told)}")


def _last(lines: Sequence[str]) -> str:
    return _short(next((line for line in reversed(lines) if line.strip()), "it said nothing"))


def _short(line: str) -> str:
    """Without the clock and level that llama.cpp begins lines with, or the file of its sources."""
    words = line.split()
    words = words[1:] if words and "/" in words[0] and words[0].endswith(":") else words
    while words and (words[0].replace(".", "").isdigit() or words[0] in ("E", "W", "I", "D")):
        words.pop(0)
    return " ".join(words)[:240]
