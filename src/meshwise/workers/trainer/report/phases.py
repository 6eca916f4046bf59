"""Seconds of a step by part, timed without making the device wait."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter, process_time

import torch
from torch.profiler import record_function

Clock = tuple[float, float]
"""Seconds on the wall, and of the processor."""
Mark = Clock | torch.cuda.Event


@dataclass(frozen=True)
class Parts:
    """What one step recorded; read it once the device is past the step."""

    marks: tuple[tuple[str, Mark, Mark], ...]

    def seconds(self) -> dict[str, float]:
        """Seconds by part; of a GPU, as its stream saw them. Nothing of a part that the device has not passed yet."""
        return self._added(0)

    def cpu_seconds(self) -> dict[str, float]:
        """Seconds that the processor worked, by part: waiting for another rank costs none. Nothing on a GPU."""
        return self._added(1)

    def _added(self, which: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, begun, ended in self.marks:
            if isinstance(begun, tuple) and isinstance(ended, tuple):
                found[name] = found.get(name, 0.0) + ended[which] - begun[which]
            elif isinstance(begun, torch.cuda.Event) and isinstance(ended, torch.cuda.Event) and which == 0 and ended.query():
                found[name] = found.get(name, 0.0) + begun.elapsed_time(ended) / 1e3
        return found


class Phases:
    """`with phases("forward"):` around each part of a step, `phases.end()` behind it. Parts of one name add up.

    On a GPU each is two events of its stream: what the host prepares while the device works costs nothing there, and what the device
    waits for shows. While a CUDA graph is captured nothing is recorded, for its events would say nothing when it is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Mark, Mark]] = []
        self.traced = False
        """Whether the profiler is to see the parts too, by name."""

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        with record_function(name) if self.traced else nullcontext():
            begun = self._mark()
            yield
            ended = self._mark()
        if begun is not None and ended is not None:
            self._marks.append((name, begun, ended))

    def _mark(self) -> Mark | None:
        if not self._cuda:
            return perf_counter(), process_time()
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self) -> Parts:
        """What was recorded since the last end."""
        found, self._marks = Parts(tuple(self._marks)), []
        return found
