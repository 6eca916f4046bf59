"""The load of a served model: lengths of requests, users who wait or a rate of arrivals, limits of an engine; and reports about it."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts or outputs: a mean with a spread, or a list of lengths to draw from."""

    mean: float
    spread: float = 0.0  # standard deviation over the mean, of a gamma distribution
    samples: tuple[int, ...] = ()

    @classmethod
    def of(cls, samples: Sequence[int]) -> "Lengths":
        """Return the distribution of measured lengths."""
        mean = sum(samples) / len(samples)
        variance = sum((sample - mean) ** 2 for sample in samples) / len(samples)
        return cls(mean, math.sqrt(variance) / mean if mean else 0.0, tuple(samples))

    @property
    def fixed(self) -> bool:
        return not self.spread

    @property
    def biased(self) -> float:
        """Mean length of the requests that are running at a moment: long ones run longer."""
        return self.mean * (1 + self.spread**2)

    def draw(self, rng: random.Random, number: int) -> list[int]:
        """Return `number` lengths of exactly this mean, except for rounding; at least 1 each unless all are 0."""
        if not self.mean:
            return [0] * number
        if self.samples:
            drawn = [float(rng.choice(self.samples)) for _ in range(number)]
        elif self.spread:
            shape = 1 / self.spread**2
            drawn = [rng.gammavariate(shape, self.mean / shape) for _ in range(number)]
        else:
            drawn = [self.mean] * number
        scale = self.mean * number / sum(drawn)
        return [max(1, round(value * scale)) for value in drawn]


def gaps(rng: random.Random, number: int, rate: float, burst: float) -> list[float]:
    """Return `number` times between arrivals whose mean is exactly 1 / rate."""
    shape = 1 / burst**2
    drawn = [rng.gammavariate(shape, 1.0) for _ in range(number)]
    scale = number / rate / sum(drawn)
    return [value * scale for value in drawn]


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests to one replica: `users` who each wait for an answer before they ask again, or `rate` requests per second."""

    prompt: Lengths
    output: Lengths
    users: int = 0
    rate: float = 0.0
    burst: float = 1.0  # standard deviation of the time between arrivals over its mean: 1 is a Poisson process, more are bursts
    requests: int = 0  # number of requests of a benchmark; 0: endless. Without users, all of them are sent at once.
    depth: int = 0  # cached tokens before the prompt: earlier turns of a chat
    prefix: float = 0.0  # share of the prompt that the engine finds in its cache
    draft: int = 0  # tokens that speculative decoding proposes per step
    accept: float = 0.0  # probability that a proposed token is accepted

    @property
    def computed(self) -> float:
        """Mean prompt tokens that are computed."""
        return self.prompt.mean * (1 - self.prefix)

    @property
    def gained(self) -> float:
        """Mean tokens of a decode step: the proposed ones up to the first that is rejected, and one of the model itself. Worked: 3
        proposed, each accepted with 0.7: 1 + 0.7 + 0.49 + 0.343 = 2.53."""
        return sum(self.accept**i for i in range(self.draft + 1))

    @property
    def steps(self) -> float:
        """Mean decode steps of a request; the first token comes with the prompt."""
        return max(0.0, self.output.mean - (self.prompt.mean > 0)) / self.gained


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that an engine computes at once."""

    sequences: int  # the most requests at once
    tokens: int  # the most tokens of a pass
    cache: float = math.inf  # tokens of KV cache that fit
    fixed: float = 0.0  # cache of a request besides its tokens (windows, states), in tokens
    reserves: bool = False  # whether a request is admitted only if its whole output fits
    chunked: bool = True  # whether a pass computes decode tokens and pieces of prompts together
    poll_passes: int = 1  # passes between two looks for new requests
    ahead: int = 0  # passes that are scheduled before the one that runs has ended

    def held(self, load: Load) -> float:
        """Return the mean tokens that a running request occupies. A shared prefix is stored once for all."""
        output = load.output.biased
        own = load.depth + load.prompt.mean * (1 - load.prefix) + self.fixed
        return own + (output if self.reserves else output / 2)

    def running(self, load: Load) -> float:
        """Return the most requests that can run at once, on average."""
        room = self.cache - load.prompt.mean * load.prefix
        held = self.held(load)
        return max(0.0, min(float(self.sequences), room / held if held else math.inf))


@dataclass(frozen=True)
class Percentiles:
    """A time in seconds over all requests: its mean and QUANTILES."""

    mean: float
    p50: float
    p95: float
    p99: float

    def at(self, quantile: str) -> float:
        """Return the value at 'p95', or the mean."""
        return float(getattr(self, quantile))

    def plus(self, other: "Percentiles") -> "Percentiles":
        return Percentiles(self.mean + other.mean, self.p50 + other.p50, self.p95 + other.p95, self.p99 + other.p99)


NO_TIMES = Percentiles(math.inf, math.inf, math.inf, math.inf)


def percentiles(values: Sequence[float]) -> Percentiles:
    """Return mean and quantiles of values of equal weight."""
    if not values:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    last = len(ordered) - 1
    return Percentiles(sum(ordered) / len(ordered), *(ordered[min(last, math.ceil(q * last))] for q in QUANTILES))


def weighted(values: Sequence[tuple[float, float]]) -> Percentiles:
    """Return mean and quantiles of (value, weight)."""
    ordered = sorted(values)
    total = sum(weight for _, weight in ordered)
    if not total:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    found: list[float] = []
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        while len(found) < len(QUANTILES) and seen >= QUANTILES[len(found)] * total * (1 - 1e-12):
            found.append(value)
    return Percentiles(sum(value * weight for value, weight in ordered) / total, *found)


@dataclass(frozen=True, kw_only=True)
class Report:
    """One replica at a load. Tokens per second count the whole time, prompts included."""

    requests: float  # finished requests per second
    output_rate: float  # output tokens per second
    input_rate: float  # prompt tokens per second, cached ones included
    running: float  # mean requests that generate tokens
    waiting: float  # mean requests that wait for their prompt or compute it
    ttft: Percentiles
    tpot: Percentiles  # time per output token of a request, after its first
    itl: Percentiles  # time between two tokens of a stream
    e2e: Percentiles
    preempted: float = 0.0  # share of requests that lost their place in the cache and were computed again


NOTHING_SERVED = Report(
    requests=0.0, output_rate=0.0, input_rate=0.0, running=0.0, waiting=0.0, ttft=NO_TIMES, tpot=NO_TIMES, itl=NO_TIMES,
    e2e=NO_TIMES,
)  # fmt: skip
"""The report of a layout that cannot serve the load."""


@dataclass(frozen=True)
class Target:
    """A bound on a latency at a quantile."""

    seconds: float
    quantile: str = "p95"


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Latency targets; None where there is none."""

    ttft: Target | None = None
    tpot: Target | None = None
    e2e: Target | None = None

    def __bool__(self) -> bool:
        return any((self.ttft, self.tpot, self.e2e))

    @cached_property
    def named(self) -> dict[str, Target]:
        known = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        return {name: target for name, target in known.items() if target}

    def missed(self, report: Report) -> float:
        """Return the factor by which a report misses its worst target; 1 where it meets all."""
        values = (getattr(report, name).at(target.quantile) / target.seconds for name, target in self.named.items())
        return max(1.0, *values) if self else 1.0
