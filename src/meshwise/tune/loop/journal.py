"""The journal of a tuning folder: tune.jsonl, one line per event, on disk before the next thing happens. The state is a fold over it.

A run goes through: chosen (its number and layout), started (written before its command is), ended, and then measured or rejected. A loop
that is killed between two lines finds the run in its last state, and goes on from there.
"""

import fcntl
import json
import os
import socket
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any, Literal

from meshwise.errors import UserError
from meshwise.tune.belief.observation import Failure
from meshwise.workers.trainer.contract.rows import read_rows

FILE, LOCK = "tune.jsonl", ".lock"
State = Literal["chosen", "started", "ended", "measured", "rejected"]
STATES: tuple[State, ...] = ("chosen", "started", "ended", "measured", "rejected")
FORMAT_VERSION = 1

Event = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run of the journal, as far as it got."""

    number: int
    setting: str  # digest of the question that it belongs to: model, cluster, batch, program
    candidate: dict[str, Any]  # the layout and options, in the words of the space
    name: str
    devices: int = 1
    predicted: float | None = None  # seconds that were expected when it was chosen
    predicted_memory: float | None = None
    expected_gain: float = 0.0
    why: str = ""
    state: State = "chosen"
    began: float = 0.0  # when it was started, in seconds since 1970
    wall: float = 0.0  # seconds from the start of its processes to their end
    end: dict[str, Any] = field(default_factory=dict[str, Any])  # how it ended
    seconds: float | None = None
    memory: float | None = None
    failure: Failure = ""  # oom, crash, hang or timeout; '' if it ran
    note: str = ""  # why it was rejected, or a remark
    unread: bool = False  # whether it was rejected since its log could not be read. It may be measured later.

    @property
    def folder(self) -> str:
        return f"run-{self.number:03d}"

    @property
    def counts(self) -> bool:
        """Whether it has used up one of the runs: everything but a launch that failed."""
        return self.end.get("how") != "launch"

    @property
    def ran(self) -> bool:
        return self.state == "measured" and not self.failure


def fold(events: Iterable[Event]) -> dict[int, Run]:
    """Return the runs by number. Unknown events, and events of unknown runs, are ignored."""
    runs: dict[int, Run] = {}
    for event in events:
        kind, number = event.get("event"), event.get("run")
        if kind not in STATES or not isinstance(number, int):
            continue
        values: Event = {name: value for name, value in event.items() if name in Run.__dataclass_fields__}
        if kind == "chosen":
            values["number"] = number
            runs.setdefault(number, Run(**values))
        elif number in runs:
            run = runs[number]
            read_at_last = kind == "measured" and run.state == "rejected" and run.unread
            if STATES.index(kind) <= STATES.index(run.state) and not read_at_last:
                continue
            began = {"began": event.get("time", 0.0)} if kind == "started" else {}
            runs[number] = replace(run, **(values | began), state=kind)
    return runs


class Journal:
    """The open journal of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE
        self.events: list[Event] = read_rows(self.path)
        others = [event for event in self.events if event.get("event") == "setting" and event.get("format") != FORMAT_VERSION]
        if others:
            raise UserError(
                f"{self.path}: its format is {others[0].get('format')}, and this version writes {FORMAT_VERSION}; choose another --folder"
            )
        self.runs = fold(self.events)

    def add(self, kind: str, **values: Any) -> None:
        """Append an event, and return once it is on disk."""
        event = {"event": kind, **values, "time": time()}
        self.write(event)
        self.events.append(event)
        self.runs = fold(self.events)

    def write(self, event: Event) -> None:
        """Append a line. What a killed process left of a line stays a line of its own, which readers ignore."""
        with self.path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            cut_short = bool(end) and (file.seek(end - 1), file.read(1))[1] != b"\n"
            file.write(b"\n" * cut_short + json.dumps(event, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def settings(self) -> list[str]:
        """Return the digests of the questions that the folder has runs of, the newest last."""
        return [str(event["id"]) for event in self.events if event.get("event") == "setting" and "id" in event]

    @property
    def next_number(self) -> int:
        return max(self.runs, default=0) + 1


@contextmanager
def opened(folder: Path) -> Generator[Journal]:
    """Open the journal of a folder, which no other process may tune in meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"--folder {folder}: cannot be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode("utf-8", errors="replace").strip() or "another process"
            raise UserError(
                f"--folder {folder}: {holder} is tuning in it; wait for it to end, or choose another --folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield Journal(folder)
    finally:
        os.close(handle)
