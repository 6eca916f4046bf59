"""Option: one layout of a served model with its memory, its speed, and its report at a load."""

import math
from dataclasses import dataclass

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.load.estimate import estimate, highest_rate
from meshwise.cost.serve.load.pools import PromptPool, highest_pooled_rate, pooled
from meshwise.cost.serve.load.requests import Limits, Load, Report
from meshwise.cost.serve.memory.buffers import Footprint
from meshwise.cost.serve.memory.placement import Placement
from meshwise.cost.serve.passes.speed import PassCost, Speed


@dataclass(frozen=True, kw_only=True)
class Option:
    """One layout with its memory needs and its speed. Memory is for one replica; requests and throughput are for all replicas."""

    layout: ServeLayout
    placement: Placement
    footprints: tuple[Footprint, ...]  # bytes needed in host memory, then on each device
    rooms: tuple[float, ...]  # bytes available on each device
    users: int  # concurrent requests to all replicas
    limits: Limits  # limits of one replica
    most_users: int  # requests that all replicas run at once
    fits: bool
    """Whether weights, buffers and the cache of what must run fit: of a paged engine, one request with its whole context."""
    cost: PassCost | None = None  # the seconds of passes; None where it does not fit
    speed: Speed | None = None  # a decode step and a prompt by part; None where it does not fit
    pool: PromptPool | None = None  # the replicas that compute prompts, where those of the layout only generate (layout.prefill)
    report: Report | None = None  # one replica at its share of the load; None where it does not fit or cannot serve the rate

    def at(self, load: Load, *, limits: Limits | None = None, detailed: bool = True) -> Report | None:
        """Return throughput and latency of one replica at this load, with its share of the replicas for prompts."""
        assert self.cost
        limits = limits or self.limits
        if self.pool:
            return pooled(self.cost, load, limits, self.pool, detailed=detailed)
        return estimate(self.cost, load, limits, detailed=detailed)

    def highest(self, load: Load) -> float:
        """Return the most requests per second of one replica."""
        assert self.cost
        if self.pool:
            return highest_pooled_rate(self.cost, load, self.limits, self.pool)
        return highest_rate(self.cost, load, self.limits)

    @property
    def spares(self) -> tuple[float, ...]:
        """Free bytes on each device; negative where it is too small."""
        return tuple(
            room - need.weights - need.cache - need.compute for room, need in zip(self.rooms, self.footprints[1:], strict=True)
        )

    @property
    def spare(self) -> float:
        """Free bytes on the fullest device."""
        return min(self.spares)

    @property
    def per_user(self) -> float:
        """Tokens per second of one request after its first token, at the load."""
        return 1 / self.report.tpot.mean if self.report and self.report.tpot.mean else self.speed.per_user if self.speed else 0.0

    @property
    def throughput(self) -> float:
        """Output tokens per second of all replicas at the load, prompts included."""
        return self.report.output_rate * self.layout.replicas if self.report else 0.0

    @property
    def input_rate(self) -> float:
        """Prompt tokens per second of all replicas at the load."""
        return self.report.input_rate * self.layout.replicas if self.report else 0.0

    @property
    def requests(self) -> float:
        """Requests per second of all replicas at the load."""
        return self.report.requests * self.layout.replicas if self.report else 0.0

    @property
    def ttft(self) -> float:
        """Median time to first token at the load."""
        return self.report.ttft.p50 if self.report else math.inf


@dataclass(frozen=True)
class Found:
    """Options that fit, best first, and options that do not, nearest first."""

    options: tuple[Option, ...]
    misses: tuple[Option, ...]
