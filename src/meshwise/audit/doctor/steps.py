"""Find the steps of a trace: when each began on the device, and when the host launched what ran there."""

from dataclasses import dataclass

import numpy as np

from meshwise.audit.doctor.intervals import Cover
from meshwise.audit.doctor.timeline import Floats, Lane, Timeline

OPTIMIZER = r"^Optimizer\.step|^optimizer$|optimizer_step"
GRAPH = r"GraphLaunch"
PART_OF_STEP = 0.5  # share of the usual step below which what is after the last mark is not one


@dataclass(frozen=True)
class Steps:
    """Bounds of the steps on the device; the first step begins at bounds[0]."""

    bounds: Floats
    found_by: str

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    @property
    def seconds(self) -> Floats:
        return np.diff(self.bounds)

    @property
    def whole(self) -> float:
        return float(self.bounds[-1] - self.bounds[0])


def launched(timeline: Timeline) -> Floats:
    """Return when the host launched each operation of the GPU; its own start where the trace does not say."""
    calls, gpu = timeline.calls, timeline.gpu
    if not len(calls):
        return gpu.start
    order = np.argsort(calls.link, kind="stable")
    keys = calls.link[order]
    at = np.minimum(np.searchsorted(keys, gpu.link), len(keys) - 1)
    known = (keys[at] == gpu.link) & (gpu.link != 0)
    return np.where(known, np.minimum(calls.start[order][at], gpu.start), gpu.start)


def find(timeline: Timeline, launches: Floats, updates: Cover) -> Steps:
    """Return the steps: by the profiler's marks, by the optimizer's, by graphs that are replayed, by updates of weights, or the
    whole trace as one."""
    work = timeline.gpu if timeline.on_gpu else timeline.ops
    first, last = float(work.start[0]), float(work.end.max())
    for ends, found_by in [*_marks(timeline), *([(updates.end, "updates of weights")] if len(updates.end) > 1 else [])]:
        bounds = _bounds(timeline, work, launches, ends, first, last)
        if bounds is not None:
            return Steps(bounds, found_by)
    return Steps(np.array([first, last]), "whole trace")


def _marks(timeline: Timeline) -> list[tuple[Floats, str]]:
    """Return the times on the host at which steps end, by each way to find them."""
    found: list[tuple[Floats, str]] = []
    marked = timeline.named(timeline.marks, r"^ProfilerStep#")
    if len(marked):
        found.append((marked.end, "the profiler's steps"))
    updates = timeline.named(timeline.marks, OPTIMIZER)
    if len(updates):
        counts = np.bincount(updates.name)
        rarest = int(np.argmin(np.where(counts > 0, counts, len(updates) + 1)))
        found.append((updates.take(updates.name == rarest).end, "updates of the optimizer"))
    graphs = timeline.named(timeline.calls, GRAPH)
    if len(graphs) > 1:
        found.append((graphs.end, "replayed graphs"))
    return found


def _bounds(timeline: Timeline, work: Lane, launches: Floats, ends: Floats, first: float, last: float) -> Floats | None:
    """Return bounds on the device for steps that end on the host at `ends`; None where nothing ran between them."""
    if timeline.on_gpu:
        order = np.argsort(launches, kind="stable")
        reach = np.maximum.accumulate(work.end[order])
        index = np.searchsorted(launches[order], ends, side="right") - 1
        ends = reach[index[index >= 0]]
    bounds = np.unique(np.concatenate([[first], ends[(ends > first)]]))
    if len(bounds) < 2:
        return None
    lengths = np.diff(bounds)
    if len(lengths) > 2 and lengths[0] < PART_OF_STEP * np.median(lengths):
        bounds = bounds[1:]  # the trace began inside a step
    rest = last - bounds[-1]
    if len(ends) == 1 and rest > PART_OF_STEP * np.median(np.diff(bounds)):
        return np.array([first, last])
    return bounds
