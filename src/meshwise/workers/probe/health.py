"""`python -m meshwise.workers.probe.health FOLDER SECONDS [cuda|cpu] [FACTS]`, one process per device: measure this node, then its links.

Each rank first measures alone. Then ranks meet, in pairs and in rings. What is slower than its neighbours is measured again while the
others wait. Rows are written as they come: those of this rank to rank-N.jsonl, those of all to rows.jsonl of the first rank.
"""

# pyright: reportUnknownMemberType=false
import json
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwise.workers.probe import compare, kernels, links
from meshwise.workers.probe.__main__ import machine, warm_up
from meshwise.workers.probe.clock import Clock
from meshwise.workers.probe.counters import Counters
from meshwise.workers.probe.figures import figures
from meshwise.workers.probe.meeting import Meeting, Place
from meshwise.workers.probe.pairs import Pair, Pairs, schedule
from meshwise.workers.probe.rows import Results

ALONE_SHARE, RINGS_SHARE, AGAIN_SHARE = 0.4, 0.15, 0.25
"""Shares of the time: each rank alone, rings, and what is measured again; pairs take what they need."""
MAX_SUSPECTS, TURNS = 6, 3  # what is measured again of each figure at most, and how often
PATIENCE = 45.0  # seconds that ranks wait for each other, at least

Line = dict[str, Any]


class Health:
    """One rank of a preflight."""

    def __init__(self, folder: Path, seconds: float, device: torch.device, facts: Path | None) -> None:
        self.folder, self.seconds, self.device, self.facts = folder, seconds, device, facts
        self.place = Place.here()
        self.rates: dict[str, float] = {}
        self.file = (folder / f"rank-{self.place.rank}.jsonl").open("w", encoding="utf-8", buffering=1)

    def write(self, rows: list[Line]) -> None:
        for row in rows:
            self.file.write(json.dumps({**row, "rank": self.place.rank, "node": self.place.node}) + "\n")

    def say(self, done: float, what: str) -> None:
        if self.place.local == 0:
            print(f"{100 * done:3.0f}%  {what}", flush=True)

    def alone(self) -> list[Line]:
        """Measure this rank without the others; return its rows."""
        self.say(0.0, "each device alone")
        rows: list[Line] = [machine(self.device, self.place.world) | {"nodes": self.place.world // self.place.per_node}]
        rows[0] |= {"host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(), "local": self.place.local,
            "load": os.getloadavg()[0]}  # fmt: skip
        if self.facts is not None and self.place.local == 0:
            rows.append({"kind": "facts", **json.loads(self.facts.read_text(encoding="utf-8"))})
        self.write(rows)
        clock, counters = Clock(self.device), Counters(self.device)
        warm_up(clock)
        wanted = figures(self.device, first=self.place.local == 0)
        each = 0.5 * ALONE_SHARE * self.seconds / len(wanted)
        for what, measure in wanted.items():
            if what == "matrix products":
                counters.start(each / 2)
            self.rates[what] = measure(clock, each)
            rows.append({"kind": "figure", "what": what, "rate": self.rates[what]})
            self.write(rows[-1:])
        results = Results(0.5 * ALONE_SHARE * self.seconds, lambda _: None)
        shapes = {"matrix products": (0.6, kernels.products), "memory": (0.4, kernels.copies)}
        for what, (share, work) in shapes.items() if self.place.local == 0 else ():
            results.measure(what, share, partial(work, clock))
        more = [*counters.rows(), *results.rows]
        self.write(more)
        return [*rows, *more]

    def together(self, meeting: Meeting) -> list[Line]:
        """Measure pairs, rings, and again what is slow; return the rows of this rank."""
        clock = Clock(self.device)
        self.say(ALONE_SHARE, "pairs")
        pairs, found = Pairs(clock, meeting), list[tuple[str, Line]]()
        for kind, met in schedule(meeting.present, self.place.per_node):
            found += [(kind, row) for row in pairs.measure(met)]
        rows = [{**row, "what": kind} for kind, row in found]
        self.write(rows)
        self.say(1 - RINGS_SHARE - AGAIN_SHARE, "rings")
        rings = [dict(row) for row in links.collectives(clock, time.monotonic() + RINGS_SHARE * self.seconds, to_all=True)]
        rows += rings if self.place.rank == meeting.present[0] else []
        self.write(rings)
        self.say(1 - AGAIN_SHARE, "what is slow, again")
        return rows + self._figures_again(clock, meeting) + self._pairs_again(pairs, meeting, rows)

    def _figures_again(self, clock: Clock, meeting: Meeting) -> list[Line]:
        """Measure slow figures again, in turns with a usual neighbour while all others wait; return the rows of this rank's."""
        wanted, rows = figures(self.device, first=self.place.local == 0), list[Line]()
        meeting.tell("rates", [{"rank": self.place.rank, **self.rates}])
        told = meeting.told("rates") if self.place.rank == meeting.present[0] else []
        plan: list[tuple[str, list[int], int]] = []
        for what in figures(self.device, first=True):
            rates = {int(row["rank"]): float(row[what]) for row in told if what in row}
            slow = compare.suspects(rates, compare.limit(what, self.device.type), MAX_SUSPECTS) if len(rates) > 1 else []
            plan += [(what, slow, _usual(rates, slow))] if slow else []
        each = min(0.5, AGAIN_SHARE * self.seconds / max(1, sum(TURNS * (len(slow) + 1) for _, slow, _ in plan)))
        for what, slow, healthy in meeting.announce("figures", [*plan]):
            best = 0.0
            for _ in range(TURNS):
                for rank in (*slow, healthy):
                    if rank == self.place.rank:
                        best = max(best, wanted[what](clock, each))
                    dist.barrier()
            if best:
                rows.append({"kind": "again", "what": what, "rate": best, "usual": self.place.rank == healthy})
        self.write(rows)
        return rows

    def _pairs_again(self, pairs: Pairs, meeting: Meeting, rows: list[Line]) -> list[Line]:
        """Measure slow links again, in turns with a usual one while all others wait; return the rows of links from this rank."""
        meeting.tell("links", [row | {"from": self.place.rank} for row in rows if row["kind"] == "link"])
        told = meeting.told("links") if self.place.rank == meeting.present[0] else []
        plan: list[tuple[str, list[Pair], Pair]] = []
        for kind in ("inside", "between"):
            slow: set[Pair] = set()
            of_kind = [row for row in told if row["what"] == kind]
            for name, value in (("send", "rate"), ("latency", "latency")):
                rates = {(int(r["from"]), int(r["to"])): r[value] if name == "send" else 1 / r[value] for r in of_kind}
                below = compare.limit(f"{name} {kind}", self.device.type)
                slow |= {_sorted(pair) for pair in (compare.suspects(rates, below, 2 * MAX_SUSPECTS) if len(rates) > 2 else ())}
            if slow:
                rates = {(int(row["from"]), int(row["to"])): float(row["rate"]) for row in of_kind}
                plan.append((kind, sorted(slow), _usual(rates, [way for a, b in slow for way in ((a, b), (b, a))])))
        again: list[Line] = []
        for kind, slow, healthy in meeting.announce("pairs", plan):
            for _ in range(TURNS):
                for pair in (*slow, healthy):
                    usual = sorted(pair) == sorted(healthy)
                    again += [
                        row | {"kind": "again", "what": kind, "usual": usual} for row in pairs.measure([(pair[0], pair[1])])
                    ]
        self.write(again)
        return again


def _sorted(pair: Pair) -> Pair:
    return min(pair), max(pair)


def _usual(rates: "dict[Any, float]", slow: "list[Any]") -> Any:
    """Return the key of a usual rate that is not suspected itself; of the best one where all are."""
    left = {key: rate for key, rate in rates.items() if key not in slow}
    middle = compare.usual(left) if left else max(rates.values())
    return min(left or rates, key=lambda key: abs(rates[key] - middle))


def take_part(health: Health, meeting: Meeting, rows: list[Line], problem: str) -> None:
    """Meet, measure together, and have the first rank write the rows of all."""
    place = health.place
    absent = meeting.gather(problem)
    if place.rank == 0:
        (health.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in absent), encoding="utf-8")
    if place.rank not in meeting.present:
        return
    _collect(health, meeting, "alone", rows)
    if len(meeting.present) > 1:
        try:
            meeting.join(health.device)
            rows = health.together(meeting)
        except (RuntimeError, ValueError) as error:  # a link that is dead, or a driver
            rows = [{"kind": "missing", "what": "pairs and rings", "why": str(error).splitlines()[0][:300]}]
        _collect(health, meeting, "together", rows)
    health.say(1.0, "done")
    meeting.leave()


def _collect(health: Health, meeting: Meeting, what: str, rows: list[Line]) -> None:
    """Publish rows of this rank; the first rank adds those of all to its file."""
    meeting.tell(what, [{**row, "rank": health.place.rank, "node": health.place.node} for row in rows])
    if health.place.rank == meeting.present[0]:
        with (health.folder / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in meeting.told(what))


def main(arguments: list[str]) -> None:
    began = time.monotonic()
    kind = arguments[2] if len(arguments) > 2 else "cuda" if torch.cuda.is_available() else "cpu"
    place = Place.here()
    device = torch.device(kind, place.local) if kind == "cuda" else torch.device("cpu")
    health = Health(Path(arguments[0]), float(arguments[1]), device, Path(arguments[3]) if len(arguments) > 3 else None)
    rows, problem = list[Line](), ""
    try:
        if kind == "cuda":
            torch.cuda.set_device(device)
        rows = health.alone()
    except (RuntimeError, OSError) as error:  # a device that is broken or gone; its neighbours name it
        problem = str(error).splitlines()[0][:300] or type(error).__name__
        health.write([{"kind": "absent", "why": problem}])
    patience = max(PATIENCE, 2 * (time.monotonic() - began))  # on busy machines others are late too
    take_part(health, Meeting(place, patience), rows, problem)
    sys.stdout.flush()
    os._exit(0)  # no destructor of a broken process group may hang


if __name__ == "__main__":
    main(sys.argv[1:])
