"""Pairs of ranks: one-way bandwidth and latency of each link, in rounds in which every rank has one partner."""

# pyright: reportUnknownMemberType=false
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from meshwise.workers.probe.clock import Clock
from meshwise.workers.probe.meeting import Meeting

MESSAGE_BYTES = {"cuda": 2**26, "cpu": 2**21}
REPEATS, PINGS = 3, 8
MAX_ROUNDS = 11  # partners of a rank on other nodes, at most; of twelve nodes each meets each

Pair = tuple[int, int]


def rounds(players: Sequence[int]) -> Iterator[list[Pair]]:
    """Yield rounds in which everybody has one partner, until each has met each: the circle method of tournaments."""
    circle: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        yield [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True) if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def schedule(present: Sequence[int], per_node: int) -> Iterator[tuple[str, list[Pair]]]:
    """Yield rounds of pairs: inside all nodes at once, then between nodes, where ranks of the same place meet, as rails join them."""
    nodes: dict[int, list[int]] = {}
    for rank in present:
        nodes.setdefault(rank // per_node, []).append(rank)
    inside = [list(rounds(ranks)) for ranks in nodes.values() if len(ranks) > 1]
    for number in range(max(map(len, inside), default=0)):
        yield "inside", [pair for node in inside if number < len(node) for pair in node[number]]
    for number, met in enumerate(rounds(sorted(nodes)) if len(nodes) > 1 else ()):
        if number == MAX_ROUNDS:
            return
        yield "between", [(a, b) for one, other in met for a in nodes[one] for b in nodes[other] if a % per_node == b % per_node]


class Pairs:
    """Messages between the present ranks."""

    def __init__(self, clock: Clock, meeting: Meeting) -> None:
        self.clock, self.meeting, self.rank = clock, meeting, meeting.place.rank
        self.number = {rank: number for number, rank in enumerate(meeting.present)}
        self.data = torch.zeros(MESSAGE_BYTES[clock.device.type], dtype=torch.uint8, device=clock.device)
        self.small = torch.zeros(1, dtype=torch.uint8, device=clock.device)

    def measure(self, pairs: Iterable[Pair]) -> list[dict[str, Any]]:
        """Measure pairs at the same time; return the rows of the links from this rank. Every rank calls it with the same pairs."""
        rows: list[dict[str, Any]] = []
        for a, b in pairs:
            if self.rank in (a, b):
                first = self._one_way(a, b)
                second = self._one_way(b, a)
                there = first if self.rank == a else second
                latency = self._latency(a, b)
                rows.append(
                    {"kind": "link", "from": self.rank, "to": b if self.rank == a else a, "rate": there, "latency": latency}
                )
        dist.barrier()
        return rows

    def _one_way(self, source: int, target: int) -> float:
        """Return bytes per second from one rank to another on both: the best of a few messages, each with a short answer."""
        self._message(source, target, self.small)  # connects
        return len(self.data) / min(self._message(source, target, self.data) for _ in range(REPEATS))

    def _latency(self, a: int, b: int) -> float:
        return min(self._message(a, b, self.small) / 2 for _ in range(PINGS))

    def _message(self, source: int, target: int, data: torch.Tensor) -> float:
        self.clock.wait()
        began = time.perf_counter()
        if self.rank == source:
            dist.send(data, self.number[target])
            dist.recv(self.small, self.number[target])
        else:
            dist.recv(data, self.number[source])
            dist.send(self.small, self.number[source])
        self.clock.wait()
        return time.perf_counter() - began
