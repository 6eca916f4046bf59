"""A constant load on one copy: the referee of the formulas in cost/serve/load."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from meshwise.cost.serve.load.estimate import estimate
from meshwise.cost.serve.load.requests import NOTHING_SERVED, Limits, Load, Report, gaps, percentiles, weighted
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.replay.engine.clock import Clock, Engine, Fleet
from meshwise.replay.engine.copy import MIXED, Copy, Shape
from meshwise.replay.engine.job import Job
from meshwise.replay.engine.record import Record
from meshwise.replay.engine.times import PassTimes
from meshwise.replay.traces.request import Request


class _Watched(Copy):
    """A copy that notes how long its requests wait between tokens, the integral of running requests, and the tokens that it generates."""

    between: list[tuple[float, float]]
    area = made = 0.0

    def end(self, now: float) -> list[Job]:
        seconds = now - self.since
        depth = self.shape.depth
        self.area += self.count * seconds
        self.made += self.count * self.number * self.shape.gained
        self.made += sum(job.done + size == job.prompt + depth for job, size in self.pieces)
        if self.number and self.count:
            self.between.append((seconds / self.number, float(self.number * self.count)))
        elif self.action == MIXED and self.count:
            self.between.append((seconds, 0.0))
        return super().end(now)


@dataclass(frozen=True, kw_only=True)
class _WatchedEngine(Engine):
    made: list[_Watched] = field(default_factory=list[_Watched])

    def copy(self) -> Copy:
        copy = _Watched(self.times, self.limits, self.shape)
        copy.between = []
        self.made.append(copy)
        return copy


@dataclass
class Users:
    """Users who each wait for an answer before they ask again, or requests at a rate; and when the steady state began and ended."""

    lengths: list[tuple[int, int]]
    users: int
    warm: int
    copy: _Watched | None = None
    sent: int = 0
    done: int = 0
    began: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)
    """When the warm-up ended, with the integral of running requests, the tokens and the number of token times until then."""
    until: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)
    """When the last request was done while others still arrived, with that integral, the tokens, and how many were done."""

    def next(self, now: float) -> Request | None:
        if self.sent >= len(self.lengths):
            return None
        prompt, output = self.lengths[self.sent]
        self.sent += 1
        return Request(now, prompt, max(1, output))

    def followed(self, job: Job, now: float) -> Request | None:
        assert self.copy
        self.done += 1
        if self.sent < len(self.lengths):
            self.until = (now, self.copy.area, self.copy.made, self.done)
        if self.done == self.warm:
            self.began = (now, self.copy.area, self.copy.made, len(self.copy.between))
        return self.next(now) if self.users else None


def simulate(cost: PassCost, load: Load, limits: Limits, *, requests: int = 2000, seed: int = 0) -> Report:
    """Simulate `requests` requests to one copy, after a warm-up of three times as many as are in flight. At least twice as many as that
    are simulated, so that there is a steady state to report."""
    expected = estimate(cost, load, limits, detailed=False)
    in_flight = load.users or (math.ceil(expected.running + expected.waiting) if expected else math.ceil(limits.running(load)))
    warm = max(3 * in_flight, requests // 10) if requests > 1 else 0
    rng, total = random.Random(seed), max(requests, 6 * in_flight) + warm
    lengths = list(zip(load.prompt.draw(rng, total), load.output.draw(rng, total), strict=True))
    if load.users and warm:  # users are at any point of their answers when the steady state begins
        lengths[: load.users] = [(prompt, rng.randint(1, output)) for prompt, output in lengths[: load.users]]
    waits = gaps(rng, total, load.rate, load.burst) if load.rate else []
    return run(cost, load, limits, lengths, list(accumulate(waits)), warm)


def run(cost: PassCost, load: Load, limits: Limits, lengths: list[tuple[int, int]], times: list[float], warm: int) -> Report:
    """Run requests of these lengths through one copy: at these times, or as its users ask."""
    users, record = serve(cost, load, limits, lengths, times, warm)
    return _report(users, record, load)


def serve(
    cost: PassCost, load: Load, limits: Limits, lengths: list[tuple[int, int]], times: list[float], warm: int = 0
) -> tuple[Users, Record]:
    """Run requests through one copy, and return what was seen of it."""
    shape = Shape(gained=load.gained, draft=load.draft, depth=load.depth, prefix=load.prefix)
    engine = _WatchedEngine(times=PassTimes(cost, load.draft), limits=limits, shape=shape)
    users, record = Users(lengths, 0 if load.rate else load.users, warm), Record(1.0)
    clock = Clock(Fleet(engine=engine, copies=1), record, users.followed)
    users.copy = engine.made[0]
    clock.run(_sent(users, times, load))
    return users, record


def _sent(users: Users, times: list[float], load: Load) -> Iterator[Request]:
    """Yield requests at their times, or the first one of each user."""
    for at in times if load.rate else [0.0] * load.users:
        request = users.next(at)
        if request is not None:
            yield request


def _report(users: Users, record: Record, load: Load) -> Report:
    """Return the rates after the warm-up, and the percentiles of the requests that ended after it."""
    copy, warm = users.copy, users.warm
    assert copy
    begin, area, made, first = users.began
    end, last_area, last_made, done = users.until
    if done <= warm or end <= begin:  # too few requests for a steady state: all of them count
        end, last_area, last_made, done = record.last, copy.area, copy.made, users.done
    seconds, number = end - begin, done - warm
    if number < 1 or seconds <= 0:
        return NOTHING_SERVED
    e2e, ttft = record.e2e[warm:], record.ttft[warm:]
    rate = number / seconds
    running = (last_area - area) / seconds
    in_engine = load.users if not load.rate else rate * sum(e2e) / len(e2e)
    return Report(
        requests=rate, output_rate=(last_made - made) / seconds, input_rate=rate * load.prompt.mean, running=running,
        waiting=max(0.0, in_engine - running), ttft=percentiles(ttft), tpot=percentiles([one for one in record.tpot[warm:] if one >= 0]),
        itl=weighted(copy.between[first:]), e2e=percentiles(e2e), preempted=record.preempted / max(1, users.done),
    )  # fmt: skip
