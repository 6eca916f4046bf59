"""Seconds of a step by phase, timed without making the device wait."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter, process_time

import torch
from torch.profiler import record_function

Clock = tuple[float, float]  # wall-clock and CPU seconds
Mark = Clock | torch.cuda.Event


@dataclass(frozen=True)
class PhaseTimes:
    """The marks that one step recorded; read them once the device has finished the step."""

    marks: tuple[tuple[str, Mark, Mark], ...]

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase; on a GPU as its stream measured them. Phases that the device has not finished are left out."""
        return self._sum(0)

    def cpu_seconds(self) -> dict[str, float]:
        """Return CPU seconds by phase, which do not grow while a rank waits for another. Empty on a GPU."""
        return self._sum(1)

    def _sum(self, which: int) -> dict[str, float]:
        sums: dict[str, float] = {}
        for name, began, ended in self.marks:
            if isinstance(began, tuple) and isinstance(ended, tuple):
                sums[name] = sums.get(name, 0.0) + ended[which] - began[which]
            elif isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event) and which == 0 and ended.query():
                sums[name] = sums.get(name, 0.0) + began.elapsed_time(ended) / 1e3
        return sums


class Phases:
    """Times the phases of a step: `with phases("forward"):` around each, `phases.end()` after the step. Equal names add up. On a GPU each
    phase is two events in its stream: host work that overlaps the device costs nothing there, and device waits are visible. Nothing is
    recorded while a CUDA graph is captured, since its events would have no time when it is replayed."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Mark, Mark]] = []
        self.traced = False
        """Whether to name the phases in the profiler's trace."""

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        with record_function(name) if self.traced else nullcontext():
            began = self._mark()
            yield
            ended = self._mark()
        if began is not None and ended is not None:
            self._marks.append((name, began, ended))

    def _mark(self) -> Mark | None:
        if not self._cuda:
            return perf_counter(), process_time()
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self) -> PhaseTimes:
        """Return the marks recorded since the last call."""
        times, self._marks = PhaseTimes(tuple(self._marks)), []
        return times
