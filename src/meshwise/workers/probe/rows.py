"""Rows of a probe: one JSON object per line, each with its kind of measurement, shape, seconds and spread."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from meshwise.workers.probe.clock import Timing

Value = float | int | str
Row = dict[str, Value]


def row(kind: str, timing: Timing, **shape: Value) -> Row:
    return {"kind": kind, **shape, **asdict(timing)}


@dataclass
class Results:
    """The rows measured so far, including failures with their reason, and the time left."""

    seconds: float  # time budget of the whole probe
    say: Callable[[str], None]
    rows: list[Row] = field(default_factory=list[Row])
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    def missing(self, what: str, why: str) -> None:
        self.rows.append({"kind": "missing", "what": what, "why": why})

    def measure(
        self, what: str, share: float, work: Callable[[float], Iterator[Row]], until: float = 0.0, *, whole: bool = False
    ) -> None:
        """Add the rows of one kind, within `share` of the budget, and leave the share `until` for others. A failure is a row too. With
        `whole`, the work checks the clock itself: when several ranks measure together, none may stop before the others."""
        done = 1 - max(0.0, self.left) / self.seconds
        self.say(f"{100 * done:3.0f}%  {what}")
        stop = min(time.monotonic() + share * self.seconds, self.began + self.seconds * (1 - until))
        count = 0
        try:
            for row in work(stop):
                self.rows.append(row)
                count += 1
                if time.monotonic() > stop and not whole:
                    break
        except (RuntimeError, NotImplementedError) as error:  # not supported by this device, driver or build of torch
            self.missing(what, str(error).splitlines()[0][:200])
        if not count and not any(row["kind"] == "missing" and row["what"] == what for row in self.rows):
            self.missing(what, "no time was left")

    def write(self, path: Path) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")
