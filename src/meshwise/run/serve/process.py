"""Programs of an engine: start them together, wait until each answers, and stop all of them when meshwise ends, however it ends."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.run.bench import client
from meshwise.run.callbacks import Say
from meshwise.run.children import interrupt_on_stop, with_parent

KEPT_LINES = 1000  # lines of a log that are kept, to find the reason when a program ends
GRACE_SECONDS = 10.0  # seconds that a program has to end before it is killed
INSECURE = "llama.cpp calls its RPC experimental and insecure: never open it to a network that others can reach"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One process of an engine."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    host: str = "127.0.0.1"
    port: int = 0
    health: str = "/health"  # HTTP path that answers once the program is ready; empty: it is ready when it listens


class Running:
    """A process in a process group of its own, and the end of its log."""

    def __init__(self, program: Program, say: Say) -> None:
        self.program = program
        self.log: deque[str] = deque(maxlen=KEPT_LINES)
        self.say = say
        self.process = subprocess.Popen(
            program.command, env=dict(os.environ) | program.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=with_parent(),
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            self.log.append(line)
            self.say(f"{self.program.name}: {line}")

    def stop(self) -> None:
        """Ask it to end, and kill it with all its children if it does not."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self.process.wait()
        self._signal(signal.SIGKILL)  # children that outlived it
        self.reader.join(2)
        if self.process.stdout:
            self.process.stdout.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def check(self) -> None:
        """Raise the reason if the process has ended."""
        if self.process.poll() is not None:
            self.reader.join(2)
            raise failure(self)


@contextlib.contextmanager
def started(programs: Sequence[Program], say: Say, patience: float) -> Generator[list[Running]]:
    """Start programs in order, each when the one before it answers. All are stopped when the block ends."""
    for program in programs:
        check_port(program)
    running: list[Running] = []
    with interrupt_on_stop():
        try:
            for program in programs:
                try:
                    running.append(Running(program, say))
                except OSError as error:
                    raise UserError(f"{quoted(program.command[0], 200)} cannot be started: {error.strerror or error}") from None
                wait(running[-1], patience)
            yield running
        finally:
            for process in reversed(running):
                process.stop()


def check_port(program: Program) -> None:
    """Refuse a port that is in use, before anything is loaded: some engines silently share a port."""
    family = socket.AF_INET6 if ":" in program.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((program.host, program.port))
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "choose another with --port" if program.health else "stop the program that listens there"
            raise UserError(f"{program.name} cannot listen on {program.host}:{program.port}: {reason}; {hint}") from None


def run_to_end(program: Program, say: Say) -> Running:
    """Run a program to its end and pass on every line that it prints. It is stopped if this is interrupted."""
    running = Running(program, say)
    try:
        running.process.wait()
        running.reader.join()
    except subprocess.SubprocessError as error:
        raise DoesNotFit(f"{program.name}: {error}") from None
    finally:
        running.stop()
    return running


def output_of(command: Sequence[str]) -> str:
    """Return everything that a short program prints; '' if it fails to run."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def private_address(address: str) -> str:
    """Return an address that RPC may be bound to, loopback or a private one; refuse all others, and all interfaces at once."""
    try:
        ip = ip_address("127.0.0.1" if address in ("loopback", "localhost") else address)
    except ValueError:
        raise UserError(
            f"{quoted(address)} is not an IP address; give loopback or a private one of this machine. {INSECURE}"
        ) from None
    if ip.is_unspecified or not (ip.is_loopback or ip.is_private):
        raise UserError(f"RPC is bound to loopback or to a private address, not to {ip}. {INSECURE}")
    return str(ip)


def wait(running: Running, patience: float) -> None:
    """Wait until a program answers; raise the reason if it ends before that, or does not answer within `patience` seconds."""
    program = running.program
    end = time.monotonic() + patience
    where = client.Address(host=program.host, port=program.port)
    while time.monotonic() < end:
        running.check()
        if program.health:
            reply = asyncio.run(client.ask(where, "GET", program.health, patience=2.0))
            if reply.status == 200:
                return
        elif _listens(program):
            return
        time.sleep(0.1)
    raise DoesNotFit(f"{program.name} did not answer within {patience:g} s; last line of its log: {_last(running.log)}")


def _listens(program: Program) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in program.host else socket.AF_INET) as trial:
        trial.settimeout(1.0)
        return trial.connect_ex((program.host, program.port)) == 0


OUT_OF_MEMORY_WORDS = ("out of memory", "failed to allocate", "unable to allocate", "cannot allocate", "failed to fit")
UNKNOWN_FLAG_WORDS = ("invalid argument", "unknown argument", "unrecognized argument", "error while handling argument")


class OutOfMemory(DoesNotFit):
    """The engine could not allocate the memory that it asked for."""


def failure(running: Running) -> UserError:
    """Return why a program ended, in its own words, shortened."""
    name, lines = running.program.name, list(running.log)
    for line in lines:
        lowered = line.lower()
        if any(words in lowered for words in OUT_OF_MEMORY_WORDS):
            return OutOfMemory(f"{name} ran out of memory: {_short(line)}")
        if any(words in lowered for words in UNKNOWN_FLAG_WORDS):
            return UserError(f"this {name} does not know a flag that the plan needs ({_short(line)}); install a newer build")
    errors = [line for words in ("error", "failed to") for line in lines if words in line.lower()]
    reason = errors[0] if errors else _last(lines)
    code = running.process.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return DoesNotFit(f"{name} {how}: {_short(reason)}")


def _last(lines: Sequence[str]) -> str:
    return _short(next((line for line in reversed(lines) if line.strip()), "it printed nothing"))


def _short(line: str) -> str:
    """Drop the time and level, or the source file, that a line of llama.cpp's log starts with."""
    words = line.split()
    words = words[1:] if words and "/" in words[0] and words[0].endswith(":") else words
    while words and (words[0].replace(".", "").isdigit() or words[0] in ("E", "W", "I", "D")):
        words.pop(0)
    return " ".join(words)[:240]
