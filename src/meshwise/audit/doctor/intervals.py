"""Arithmetic of time spans: unions, what is left of spans where others are, and how much of a span a union covers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def disjoint(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return spans, sorted by start, without what an earlier one covers; what is covered wholly has no length."""
    if not len(start):
        return start, end
    reach = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    begins = np.maximum(start, reach)
    return begins, np.maximum(end, begins)


@dataclass(frozen=True)
class Cover:
    """A union of spans."""

    start: Floats
    end: Floats
    before: Floats  # covered seconds before each span

    @staticmethod
    def of(start: Floats, end: Floats) -> "Cover":
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if len(start):
            reach = np.maximum.accumulate(end)
            first = np.concatenate([[True], start[1:] > reach[:-1]])
            last = np.concatenate([first[1:], [True]])
            start, end = start[first], reach[last]
        lengths = end - start
        return Cover(start, end, np.concatenate([[0.0], np.cumsum(lengths)[:-1]]) if len(start) else start)

    def until(self, at: Floats | float) -> Floats:
        """Return the covered seconds before each time."""
        at = np.asarray(at, dtype=float)
        if not len(self.start):
            return np.zeros_like(at)
        index = np.maximum(0, np.searchsorted(self.start, at, side="right") - 1)
        inside = np.clip(at, self.start[index], self.end[index]) - self.start[index]
        return self.before[index] + np.where(at < self.start[0], 0.0, inside)

    def inside(self, start: Floats | float, end: Floats | float) -> Floats:
        """Return the covered seconds of each span."""
        return np.maximum(0.0, self.until(end) - self.until(start))

    def holds(self, at: Floats) -> NDArray[np.bool_]:
        """Return whether each time is covered."""
        if not len(self.start):
            return np.zeros(len(at), dtype=bool)
        index = np.searchsorted(self.start, at, side="right") - 1
        return (index >= 0) & (at < self.end[np.maximum(index, 0)])

    def gaps(self, first: float, last: float) -> tuple[Floats, Floats]:
        """Return the uncovered spans between two times."""
        start = np.concatenate([[first], np.clip(self.end, first, last)])
        end = np.concatenate([np.clip(self.start, first, last), [last]])
        kept = end > start
        return start[kept], end[kept]

    @property
    def total(self) -> float:
        return float(self.before[-1] + self.end[-1] - self.start[-1]) if len(self.start) else 0.0
