"""Timing of calls: the median of repeats with its spread, within a time budget."""

# pyright: reportUnknownMemberType=false
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_REPEATS, MAX_REPEATS = 3, 60  # repeats of a measurement
SAMPLE_SECONDS = 1e-3  # seconds that one sample on a CPU should take: clock and scheduler disturb shorter ones
FLUSH_BYTES = 256 * 2**20
"""Bytes written before each sample on a GPU, so that operands come from memory, as in training, and not from a cache (H200: 60 MiB)."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, and the bounds of the middle half of the repeats."""

    seconds: float
    low: float
    high: float
    repeats: int

    @staticmethod
    def of(samples: list[float]) -> "Timing":
        ordered = sorted(samples)
        quarter = len(ordered) // 4
        return Timing(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flush: Tensor | None = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device) if device.type == "cuda" else None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def once(self, work: Callable[[], object]) -> float:
        """Return seconds of a single call, by the host's clock."""
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - began

    def time(self, work: Callable[[], object], seconds: float) -> Timing:
        """Time a call on the device, with as many repeats as fit in `seconds`."""
        work()
        first = self.once(work)
        if self.device.type == "cuda":
            return self._by_events(work, self._repeats(first + FLUSH_BYTES / 2e12, seconds))
        inside = max(1, round(SAMPLE_SECONDS / max(first, 1e-7)))
        return Timing.of([self._block(work, inside) for _ in range(self._repeats(first * inside, seconds))])

    def host(self, work: Callable[[], object], seconds: float, inside: int = 50) -> Timing:
        """Time the launch of a call on the host: `inside` calls in a row, by the host's clock."""
        first = self._block(work, inside) * inside
        return Timing.of([self._block(work, inside) for _ in range(self._repeats(first, seconds))])

    def _repeats(self, first: float, seconds: float) -> int:
        return max(MIN_REPEATS, min(MAX_REPEATS, int(seconds / max(first, 1e-7))))

    def _block(self, work: Callable[[], object], inside: int) -> float:
        def calls() -> None:
            for _ in range(inside):
                work()

        return self.once(calls) / inside

    def _by_events(self, work: Callable[[], object], repeats: int) -> Timing:
        """Time by the device's own clock. The flush keeps it busy while the host launches the call, which hides the launch overhead."""
        assert self.flush is not None
        pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        for _ in range(repeats):
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flush.zero_()
            pair[0].record()
            work()
            pair[1].record()
            pairs.append(pair)
        self.wait()
        return Timing.of([begin.elapsed_time(end) / 1000 for begin, end in pairs])
