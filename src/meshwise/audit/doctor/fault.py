"""Fault: something that makes a run slower than it should be, with what it costs and what to change."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshwise.audit.finding import Certainty

WEIGHTS = {"certain": 1.0, "likely": 0.7, "unusual": 0.35}
"""By certainty: how much a second that a fault seems to cost counts in the order of faults."""


@dataclass(frozen=True)
class Fault:
    """One thing to change."""

    name: str
    certainty: Certainty
    """certain: the trace shows it; likely: one reading is much simpler than the others; unusual: may be meant so."""
    seconds: float  # seconds per step that the change is expected to save
    message: str
    change: str
    evidence: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def weight(self) -> float:
        return self.seconds * WEIGHTS[self.certainty]


def ordered(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return faults with what costs most first; each name once for all ranks that have it."""
    best: dict[str, Fault] = {}
    ranks: dict[str, set[int]] = {}
    for fault in faults:
        ranks.setdefault(fault.name, set()).update(fault.ranks)
        if fault.name not in best or fault.weight > best[fault.name].weight:
            best[fault.name] = fault
    merged = [replace(fault, ranks=tuple(sorted(ranks[fault.name]))) for fault in best.values()]
    return tuple(sorted(merged, key=lambda fault: -fault.weight))


def milliseconds(seconds: float) -> str:
    """Write a time in a sentence: '12.3 ms'."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
