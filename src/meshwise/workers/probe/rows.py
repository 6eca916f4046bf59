"""Rows of a probe: one JSON object a line, each a kind of measurement with its shape, seconds and spread."""

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
class Notebook:
    """What was measured so far, what was not and why, and the time that is left."""

    seconds: float
    """For all of it."""
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
        """Rows of one kind, in `share` of all the time; `until` is what must be left for others. A failure is a row too.

        What is `whole` looks at the clock itself: of several ranks that measure together none may stop before the others.
        """
        done = 1 - max(0.0, self.left) / self.seconds
        self.say(f"{100 * done:3.0f}%  {what}")
        stop = min(time.monotonic() + share * self.seconds, self.began + self.seconds * (1 - until))
        count = 0
        try:
            for found in work(stop):
                self.rows.append(found)
                count += 1
                if time.monotonic() > stop and not whole:
                    break
        except (RuntimeError, NotImplementedError) as error:  # what this device, driver or build of torch cannot do
            self.missing(what, str(error).splitlines()[0][:200])
        if not count and not any(one["kind"] == "missing" and one["what"] == what for one in self.rows):
            self.missing(what, "no time was left")

    def write(self, path: Path) -> None:
        path.write_text("".join(json.dumps(one) + "\n" for one in self.rows), encoding="utf-8")
