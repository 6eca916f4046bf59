"""Record: what was seen of every request, and of all copies over time. Four numbers of four bytes are kept of a request."""

import math
from array import array
from collections.abc import Sequence

from meshwise.replay.engine.job import Job

WINDOWS = 60  # windows over the time of a trace
NO_TOKENS = -1.0


class Window:
    """Sums over the requests that arrived in a window, and samples of the copies."""

    __slots__ = ("arrived", "computed", "copies", "filled", "output", "preempted", "prompt", "running", "samples", "waiting")

    def __init__(self) -> None:
        self.arrived = self.prompt = self.computed = self.output = self.preempted = 0
        self.samples = 0
        self.waiting = self.running = self.copies = self.filled = 0.0


class Record:
    """Latencies of all requests, in the order in which they end."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, 1e-6)
        self.at, self.ttft, self.e2e, self.tpot = (array("f") for _ in range(4))
        self.windows = [Window() for _ in range(WINDOWS)]
        self.queued = self.prefilled = self.generated = self.transferred = 0.0
        """Seconds of all requests: before they are admitted, until their first token, after it, and on the way between pools."""
        self.prompt = self.reused = self.output = self.preempted = self.rejected = self.retried = 0
        self.last = 0.0
        self.recent: list[float] = []
        """TTFT of requests since a policy looked last; kept only where `looks`."""
        self.looks = False

    def window(self, at: float) -> Window:
        return self.windows[min(WINDOWS - 1, int(at / self.seconds * WINDOWS))]

    def finish(self, job: Job, now: float, prompt: int) -> None:
        """Add a request that is done; `prompt`: its tokens as they were sent."""
        ttft, e2e = job.first - job.arrived, now - job.arrived
        self.at.append(job.arrived)
        self.ttft.append(ttft)
        self.e2e.append(e2e)
        self.tpot.append((e2e - ttft) / (job.total - 1) if job.total > 1 else NO_TOKENS)
        self.queued += job.admitted - job.arrived
        self.prefilled += job.first - job.admitted
        self.generated += e2e - ttft
        self.prompt += prompt
        self.reused += job.reused
        self.output += job.total
        self.preempted += job.preempted > 0
        window = self.window(job.arrived)
        window.prompt += prompt
        window.computed += prompt - job.reused
        window.output += job.total
        window.preempted += job.preempted > 0
        self.last = max(self.last, now)
        if self.looks:
            self.recent.append(ttft)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, by the definition of cost/serve/load/requests.py."""
    last = len(ordered) - 1
    return ordered[min(last, math.ceil(share * last))] if ordered else 0.0
