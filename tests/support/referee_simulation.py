"""A discrete-event simulation of continuous batching: the referee of the formulas in cost/serve/load/estimate.py.

Every pass computes one token (or draft and token) of each running request and, with what is left of the token budget, pieces of waiting
prompts, first come first served. Steps without an event are taken at once: their seconds are linear in the cached tokens, so the mean of
the first and the last is exact. Paged caches run out: then the youngest request loses its place and is computed again.
"""

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwise.cost.serve.load.estimate import estimate
from meshwise.cost.serve.load.requests import NO_TIMES, Limits, Load, Report, gaps, percentiles, weighted
from meshwise.cost.serve.passes.speed import Batch, PassCost

BLOCK = 16
"""Tokens of a block of paged cache."""


class Job(NamedTuple):
    """A request that waits for its prompt, or for the rest of it."""

    arrived: float
    prompt: int
    """Prompt tokens to compute."""
    cached: int
    """Tokens before them in the cache."""
    output: int
    first: float = -1.0
    """When its first token was there, if it was preempted after that."""
    made: int = 0
    """Output tokens that it had by then."""


@dataclass
class Running:
    """A request that generates tokens."""

    job: Job
    held: float
    """Tokens in the cache when decoding began."""
    since: int
    """Step at which decoding began."""
    first: float
    gone: bool = False


@dataclass
class Simulation:
    """The state of one replica."""

    cost: PassCost
    load: Load
    limits: Limits
    requests: int
    warm: int
    lengths: list[tuple[int, int]]
    """Prompt and output of each request."""
    waits: list[float]
    """Times between arrivals of an open loop."""
    now: float = 0.0
    step: int = 0
    """Decode steps so far."""
    jobs: deque[Job] = field(default_factory=deque[Job])
    partial: deque[tuple[Job, int]] = field(default_factory=deque[tuple[Job, int]])
    """Prompts that are computed in part, with the tokens that are done."""
    ends: list[tuple[int, int, Running]] = field(default_factory=list[tuple[int, int, Running]])
    """A heap of running requests by the step of their last token."""
    order: deque[Running] = field(default_factory=deque[Running])
    """Running requests, the oldest first; preempted and finished ones are skipped."""
    count: int = 0
    """Running requests."""
    cached: float = 0.0
    """Tokens of running requests in the cache."""
    pledged: float = 0.0
    """Tokens that admitted requests will need at most, where the engine reserves them."""
    entering: int = 0
    """Requests whose prompts are in the pass that ends now: they hold cache although they do not run yet."""
    upcoming: float = math.inf
    """Time of the next arrival at the engine, `request` seconds after its user sent it."""
    returning: list[float] = field(default_factory=list[float])
    """A heap of later arrivals of a closed loop."""
    started: int = 0
    done: int = 0
    preempted: int = 0
    began: float = -1.0
    """When the requests of the warm-up were done."""
    until: tuple[float, int] = (0.0, 0)
    """When the last request was done while others still arrived, and how many were done then: the end of the steady state."""
    finished: list[tuple[float, float, float, int, int]] = field(default_factory=list[tuple[float, float, float, int, int]])
    """TTFT, time per token, end to end, prompt and output of each request after the warm-up."""
    between: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    areas: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Integrals over time of running and of waiting requests, and of output tokens."""
    began_areas: tuple[float, float, float] = (0.0, 0.0, 0.0)
    steady: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The same when the warm-up ended, and at the end of the steady state."""

    # Arrivals.

    def arrive(self) -> None:
        """Add the requests that have arrived by now."""
        while self.upcoming <= self.now:
            self._join(self.upcoming - self.cost.request)
            self.upcoming = self._next()

    def _next(self) -> float:
        """Return the time of the next arrival: of an open loop, a gap after the one before; of a closed one, when a user asks again."""
        if self.load.rate:
            return self.upcoming + self.waits.pop() if self.waits else math.inf
        return heapq.heappop(self.returning) if self.returning else math.inf

    def _ask(self, at: float) -> None:
        """Let a user of a closed loop ask at this time."""
        if math.isfinite(self.upcoming):
            heapq.heappush(self.returning, self.upcoming)
        self.upcoming = heapq.heappushpop(self.returning, at + self.cost.request)

    def _join(self, at: float) -> None:
        if self.started >= self.requests:
            return
        prompt, output = self.lengths[self.started]
        self.started += 1
        shared = round(prompt * self.load.prefix)
        self.jobs.append(Job(at, prompt - shared, self.load.depth + shared, max(1, output)))

    # Admission.

    def _need(self, job: Job) -> float:
        """Return the tokens of cache that a request must find free to be admitted."""
        own = job.cached - round(self.load.prefix * (job.prompt + job.cached - self.load.depth)) + job.prompt + self.limits.fixed
        return own + (job.output if self.limits.reserves else 0.0)

    def _admits(self, job: Job, taken: int) -> bool:
        """Return whether a request may join those that run and the `taken` ones of the next pass."""
        if self.count + len(self.partial) + taken >= self.limits.sequences:
            return False
        free = self.limits.cache - (self.pledged if self.limits.reserves else self.cached)
        return self._need(job) <= free or not (self.count or self.partial or taken)

    def chunk(self, budget: float) -> tuple[list[tuple[Job, int, int]], float]:
        """Take pieces of prompts for the next pass: (job, tokens before the piece, tokens of the piece)."""
        pieces: list[tuple[Job, int, int]] = []
        whole = 0
        left = budget
        while left > 0:
            if self.partial:
                job, done = self.partial.popleft()
            elif self.jobs and self._admits(self.jobs[0], whole):
                job, done = self.jobs.popleft(), 0
                self.pledged += self._need(job) if self.limits.reserves else 0.0
                self.cached += self._need(job) - (job.output if self.limits.reserves else 0.0)
            else:
                break
            size = int(min(left, job.prompt - done))
            pieces.append((job, done, size))
            left -= max(size, 1)
            if done + size < job.prompt:
                break
            whole += 1
        return pieces, budget - left

    # Passes.

    def run(self) -> None:
        """Simulate until all requests are done."""
        load = self.load
        if load.rate:
            self.upcoming = self.cost.request
            self.upcoming = self._next()
        else:
            for _ in range(load.users):
                self._ask(0.0)
        while self.done < self.requests:
            self.arrive()
            pieces, taken = self._next_pieces()
            if pieces:
                self._mixed(pieces, taken)
            elif self.count:
                self._steps()
            elif self.upcoming < math.inf:
                self._advance(self.upcoming - self.now, 0)
            else:
                break

    def _next_pieces(self) -> tuple[list[tuple[Job, int, int]], float]:
        room = self.limits.tokens - (self.count * (1 + self.load.draft) if self.limits.chunked else 0)
        return self.chunk(max(room, 0)) if self.jobs or self.partial else ([], 0.0)

    def _batch(self, decodes: int, cached: float, tokens: float = 0.0, pairs: tuple[float, ...] = (), ends: int = 0) -> Batch:
        if decodes:
            shared = self.load.prompt.mean * self.load.prefix
            reached = self.cost.d.reached(shared + cached / decodes - self.limits.fixed)
            contexts = tuple(decodes * context for context in reached)
        else:
            contexts = (0.0,) * len(self.cost.d.windows)
        groups = min(self.cost.d.pipeline, max(1, decodes + len(self.partial) + ends))
        return Batch(decodes, contexts, tokens, pairs, ends, groups, self.load.draft if decodes else 0)

    def _mixed(self, pieces: list[tuple[Job, int, int]], taken: float) -> None:
        """Compute one pass with pieces of prompts."""
        d = self.cost.d
        pairs = [0.0] * len(d.windows)
        for job, done, size in pieces:
            for i, number in enumerate(d.prompt_pairs(size, job.cached + done, size=size)):
                pairs[i] += number
        ending = [job for job, done, size in pieces if done + size == job.prompt]
        decodes = self.count if self.limits.chunked else 0
        tokens = float(sum(size for _, _, size in pieces))
        batch = self._batch(decodes, self._decoding(), tokens, tuple(pairs), len(ending))
        seconds = self.cost.seconds(batch) if batch.rows else 0.0  # prompts that are in the cache start at once
        self._advance(seconds, 1 if decodes else 0, len(pieces))
        self.entering = len(pieces)
        if decodes:
            self._retire()
        elif self.count:
            self.between.append((seconds, 0.0))
        last, done, size = pieces[-1]
        if done + size < last.prompt:
            self.partial.appendleft((last, done + size))
        for job in ending:
            self._begin(job)
        self.entering = 0

    def _decoding(self) -> float:
        """Return the cached tokens of the requests that generate."""
        waiting = sum(self._need(job) - (job.output if self.limits.reserves else 0.0) for job, _ in self.partial)
        return max(0.0, self.cached - waiting)

    def _begin(self, job: Job) -> None:
        """Start decoding a request whose prompt is done: its first token is there."""
        made = job.made + 1
        self.areas[2] += 1
        first = job.first if job.first >= 0 else self.now
        left = job.output - 1
        held = float(job.cached + job.prompt)
        running = Running(job._replace(first=first, made=made), held, self.step, first)
        if left <= 0:
            self._finish(running)
            return
        self.count += 1
        self.order.append(running)
        heapq.heappush(self.ends, (self.step + math.ceil(left / self.load.gained), id(running), running))

    def _steps(self) -> None:
        """Take decode steps until a request ends, one arrives that can be admitted, or the cache is full."""
        while self.ends and self.ends[0][2].gone:
            heapq.heappop(self.ends)
        number = self.ends[0][0] - self.step
        room = self.limits.cache - self.cached
        if not self.limits.reserves:
            growth = self.count * self.load.gained
            number = min(number, int(room // growth))
            if number < 1:
                if self.count > 1:
                    self._preempt()
                    return
                number = 1
        before = self.cost.seconds(self._batch(self.count, self.cached))
        after = self.cost.seconds(self._batch(self.count, self.cached + self.count * number * self.load.gained))
        each = (before + after) / 2
        if self.upcoming < math.inf and self.count + len(self.partial) < self.limits.sequences:
            number = max(1, min(number, math.ceil((self.upcoming - self.now) / before)))
            each = before + (after - before) * 0.5 * number / max(1, self.ends[0][0] - self.step)
        self._advance(each * number, number)
        self._retire()

    def _advance(self, seconds: float, steps: int, prompts: int = 0) -> None:
        """Let time pass while all running requests make `steps` steps and `prompts` others compute their prompts."""
        self.areas[0] += self.count * seconds
        on_the_way = 0 if self.load.rate else len(self.returning) + math.isfinite(self.upcoming)
        self.areas[1] += (len(self.jobs) + len(self.partial) + prompts + on_the_way) * seconds
        self.now += seconds
        if steps:
            self.step += steps
            self.cached += self.count * steps * self.load.gained
            self.areas[2] += self.count * steps * self.load.gained
            if self.began >= 0:
                self.between.append((seconds / steps, float(steps * self.count)))

    def _retire(self) -> None:
        """Finish the requests whose last token has been made."""
        while self.ends and (self.ends[0][0] <= self.step or self.ends[0][2].gone):
            _, _, running = heapq.heappop(self.ends)
            if running.gone:
                continue
            running.gone = True
            self.count -= 1
            self._finish(running)

    def _release(self, running: Running) -> None:
        job = running.job
        own = self._need(job) - (job.output if self.limits.reserves else 0.0)
        self.cached -= own + (self.step - running.since) * self.load.gained
        self.pledged -= self._need(job) if self.limits.reserves else 0.0
        if not (self.count or self.partial or self.entering):  # no rounding errors remain
            self.cached = self.pledged = 0.0

    def _finish(self, running: Running) -> None:
        job = running.job
        self._release(running)
        self.done += 1
        if self.started < self.requests:
            self.until = (self.now, self.done)
            self.steady = (self.areas[0], self.areas[1], self.areas[2])
        total = job.made + job.output - 1
        if self.began >= 0:
            per_token = (self.now - running.first) / (total - 1) if total > 1 else 0.0
            self.finished.append((running.first - job.arrived, per_token, self.now - job.arrived, job.prompt, total))
        elif self.done >= self.warm:
            self.began = self.now
            self.began_areas = (self.areas[0], self.areas[1], self.areas[2])
        if not self.load.rate:
            self._ask(self.now)

    def _preempt(self) -> None:
        """Put the youngest request back to the front of the queue; it computes its prompt and what it has generated again."""
        while self.order[-1].gone:
            self.order.pop()
        running = self.order.pop()
        running.gone = True
        self.count -= 1
        self.preempted += 1
        self._release(running)
        job, made = running.job, round((self.step - running.since) * self.load.gained)
        again = job._replace(prompt=job.prompt + made + 1, output=max(1, job.output - made - 1), made=job.made + made)
        self.jobs.appendleft(again)


def report_of(done: Simulation) -> Report:
    """Return the rates after the warm-up, and the percentiles of the requests that ended after it."""
    seconds = done.until[0] - done.began
    number = done.until[1] - done.warm
    if number < 1 or seconds <= 0:  # too few requests for a steady state: all of them count
        seconds, number = done.now - done.began, done.done - done.warm
        done.steady = (done.areas[0], done.areas[1], done.areas[2])
    if not done.finished or seconds <= 0:
        return Report(
            requests=0.0,
            output_rate=0.0,
            input_rate=0.0,
            running=0.0,
            waiting=0.0,
            ttft=NO_TIMES,
            tpot=NO_TIMES,
            itl=NO_TIMES,
            e2e=NO_TIMES,
        )
    running, waiting, made = (end - start for end, start in zip(done.steady, done.began_areas, strict=True))
    return Report(
        requests=number / seconds,
        output_rate=made / seconds,
        input_rate=number * done.load.prompt.mean / seconds,
        running=running / seconds,
        waiting=waiting / seconds,
        ttft=percentiles([row[0] for row in done.finished]),
        tpot=percentiles([row[1] for row in done.finished if row[4] > 1]),
        itl=weighted(done.between),
        e2e=percentiles([row[2] for row in done.finished]),
        preempted=done.preempted / max(1, done.done),
    )


def simulate(cost: PassCost, load: Load, limits: Limits, *, requests: int = 2000, seed: int = 0) -> Report:
    """Simulate `requests` requests to one replica, after a warm-up of three times as many as are in flight. At least twice as many as that
    are simulated, so that there is a steady state to report."""
    expected = estimate(cost, load, limits, detailed=False)
    in_flight = load.users or (math.ceil(expected.running + expected.waiting) if expected else math.ceil(limits.running(load)))
    warm = max(3 * in_flight, requests // 10) if requests > 1 else 0
    rng, total = random.Random(seed), max(requests, 6 * in_flight) + warm
    lengths = list(zip(load.prompt.draw(rng, total), load.output.draw(rng, total), strict=True))
    if load.users and warm:  # users are at any point of their answers when the steady state begins
        lengths[: load.users] = [(prompt, rng.randint(1, output)) for prompt, output in lengths[: load.users]]
    waits = gaps(rng, total, load.rate, load.burst) if load.rate else []
    simulation = Simulation(cost, load, limits, total, warm, lengths, waits)
    if not warm:
        simulation.began = 0.0
    simulation.run()
    return report_of(simulation)
