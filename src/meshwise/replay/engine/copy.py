"""Copy: one engine with continuous batching. Every pass computes one token (or draft and token) of each running request and, with what is
left of the token budget, pieces of waiting prompts, first come first served.

Steps without an event are taken at once: their seconds are linear in the cached tokens, so the mean of the first and the last is exact.
Paged caches run out: then the youngest request loses its place and is computed again.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

from meshwise.cost.serve.load.requests import Limits
from meshwise.replay.engine.cache import PrefixCache
from meshwise.replay.engine.job import Job
from meshwise.replay.engine.times import PassTimes

IDLE, STEPS, MIXED = 0, 1, 2


@dataclass(frozen=True)
class Shape:
    """The setting that all requests have in common."""

    gained: float = 1.0  # mean tokens of a decode step
    draft: int = 0
    depth: int = 0  # cached tokens before each prompt
    prefix: float = 0.0  # share of each prompt that is in the cache, where requests state no blocks


class Copy:
    """One engine. `begin` starts its next pass or steps and returns when they end; `end` then returns the requests that are done."""

    def __init__(
        self, times: PassTimes, limits: Limits, shape: Shape, cache: PrefixCache | None = None, longest: int = 0
    ) -> None:
        self.times, self.limits, self.shape, self.cache = times, limits, shape, cache
        self.keeps = limits.cache if math.isfinite(limits.cache) else float(limits.sequences * (longest or 2**20))
        """Tokens that fit; of an engine without pages, those of all its slots."""
        self.waiting: deque[Job] = deque()
        self.partial: Job | None = None
        """A prompt that is computed in part."""
        self.ends: list[tuple[int, int, Job]] = []
        """A heap of running requests by the step of their last token."""
        self.order: list[Job] = []
        """Running requests, the oldest first; those that are gone are skipped."""
        self.count = 0
        """Running requests."""
        self.step = 0
        self.used = 0.0
        """Tokens of cache that running requests hold."""
        self.pledged = 0.0
        self.context = 0.0
        """Tokens that running requests read in a step."""
        self.action, self.since, self.until, self.number, self.each = IDLE, 0.0, math.inf, 0, 0.0
        self.pieces: list[tuple[Job, int]] = []
        self.version = self.sequence = 0
        self.preemptions = 0
        self.stepping = self.mixing = self.stalled = self.loading = 0.0
        """Seconds of passes without and with prompts; seconds that requests waited for the prompts of others; seconds of loading."""
        self.stepped = self.decoded = 0
        """Passes without prompts, and the requests in all of them."""

    @property
    def load(self) -> int:
        """Requests that it has."""
        return self.count + len(self.waiting) + (self.partial is not None) + len(self.pieces)

    @property
    def filled(self) -> float:
        """Share of its cache, or of its places, that running requests hold."""
        if math.isfinite(self.limits.cache):
            return min(1.0, self.used / self.limits.cache)
        return (self.count + len(self.pieces)) / max(1, self.limits.sequences)

    # Arrivals.

    def join(self, job: Job, now: float) -> bool:
        """Queue a request; return whether the copy must begin, or has cut its steps short, so that `until` has changed."""
        job.since = now
        self.waiting.append(job)
        if self.action == IDLE:
            return True
        if self.action != STEPS or len(self.waiting) > 1 or not self._admits(job, 0):
            return False
        number = max(1, math.ceil((now - self.since) / self.each - 1e-9)) + self.limits.ahead
        if number >= self.number:
            return False
        self.number, self.until = number, self.since + number * self.each
        return True

    # Admission.

    def _need(self, job: Job) -> float:
        """Return the tokens of cache that a request must find free."""
        shape = self.shape
        own = job.prompt + shape.depth + self.limits.fixed
        if self.cache is not None and job.blocks:
            own -= self.cache.shared(job.blocks)
        elif shape.prefix and not job.have:
            own -= round(shape.prefix * job.prompt)
        return own + (job.output if self.limits.reserves else 0)

    def _admits(self, job: Job, taken: int) -> bool:
        """Return whether a request may join those that run and the `taken` ones of the next pass."""
        limits, others = self.limits, self.count + (self.partial is not None) + taken
        if others >= limits.sequences:
            return False
        if limits.cache == math.inf:
            return True
        free = limits.cache - (self.pledged if limits.reserves else self.used)
        return not others or self._need(job) <= free

    def _admit(self, job: Job, now: float) -> float:
        """Give a request its place in the cache; return the seconds to load what it finds in other tiers."""
        shape, seconds, shared = self.shape, 0.0, 0
        job.ready = job.have + shape.depth
        if self.cache is not None and job.blocks:
            self.cache.trim(self.keeps - self.used)
            found = self.cache.take(job.blocks, job.prompt)
            if not job.have:
                job.ready, seconds = found.tokens + shape.depth, found.seconds
            shared = found.shared
        elif shape.prefix and not job.have:
            shared = round(shape.prefix * job.prompt)
            job.ready += shared
        job.own = job.prompt + shape.depth + self.limits.fixed - shared
        self.used += job.own
        self.pledged += job.own + job.output
        if self.cache is not None and job.blocks:
            self.cache.trim(self.keeps - self.used)
        job.done = job.ready
        if job.admitted < 0:
            job.admitted = now
            job.reused = 0 if job.have else max(0, job.ready - shape.depth)
        return seconds

    def _take_pieces(self, now: float) -> float:
        """Fill the token budget of the next pass with pieces of prompts; return the seconds of loading cached ones."""
        left = self.limits.tokens - (self.count * (1 + self.shape.draft) if self.limits.chunked else 0)
        loading, depth = 0.0, self.shape.depth
        while left > 0:
            if self.partial is not None:
                job, self.partial = self.partial, None
            elif self.waiting and self._admits(self.waiting[0], len(self.pieces)):
                job = self.waiting.popleft()
                loading += self._admit(job, now)
            else:
                break
            size = min(left, job.prompt + depth - job.done)
            self.pieces.append((job, size))
            left -= max(size, 1)
            if job.done + size < job.prompt + depth:
                break
        return loading

    # Passes.

    def begin(self, now: float) -> float:
        """Start the next pass, or steps until something happens, and return when it ends; infinity where there is nothing to do."""
        self.since = now
        self.version += 1
        if self.waiting or self.partial is not None:
            loading = self._take_pieces(now)
            if self.pieces:
                self._start_pass(loading)
                return self.until
        if self.count:
            self._start_steps()
            return self.until
        self.action, self.until = IDLE, math.inf
        if not self.waiting:  # no rounding errors remain
            self.used = self.pledged = self.context = 0.0
        return math.inf

    def _start_pass(self, loading: float) -> None:
        depth, pieces = self.shape.depth, self.pieces
        ends = sum(job.done + size == job.prompt + depth for job, size in pieces)
        decodes = self.count if self.limits.chunked else 0
        seconds = self.times.mixed(decodes, self.context, [(job.done, size) for job, size in pieces], ends, len(pieces) - ends)
        if self.count:
            self.stalled += self.count * (seconds - (self.times.step(decodes, self.context) if decodes else 0.0))
        self.loading += max(0.0, loading - seconds)
        seconds = max(seconds, loading)  # layers load while others are computed
        self.mixing += seconds
        self.action, self.number, self.until = MIXED, 1 if decodes else 0, self.since + seconds

    def _start_steps(self) -> None:
        """Take decode steps until a request ends or the cache is full; the youngest request is preempted where not one step fits."""
        limits, gained = self.limits, self.shape.gained
        while True:
            while self.ends[0][2].turn != self.ends[0][1]:
                heapq.heappop(self.ends)
            number = self.ends[0][0] - self.step
            if limits.reserves or limits.cache == math.inf:
                break
            fitting = int((limits.cache - self.used) // (self.count * gained))
            if fitting >= 1 or self.count == 1:
                number = max(1, min(number, fitting))
                break
            self._preempt()
        before = self.times.step(self.count, self.context)
        after = self.times.step(self.count, self.context + self.count * (number - 1) * gained) if number > 1 else before
        self.each = (before + after) / 2
        self.action, self.number, self.until = STEPS, number, self.since + number * self.each

    def end(self, now: float) -> list[Job]:
        """Finish what was begun, and return the requests that are done."""
        finished: list[Job] = []
        if self.action == STEPS:
            self.stepping += now - self.since
            self.stepped += self.number
            self.decoded += self.number * self.count
        if self.number:
            self.step += self.number
            grown = self.count * self.number * self.shape.gained
            self.used += grown
            self.context += grown
            while self.ends and self.ends[0][0] <= self.step:
                _, turn, job = heapq.heappop(self.ends)
                if job.turn == turn:  # not preempted since
                    self._leave(job)
                    finished.append(job)
        if self.pieces:
            pieces, self.pieces = self.pieces, []
            for job, size in pieces:
                job.done += size
                if job.done < job.prompt + self.shape.depth:
                    self.partial = job
                else:
                    self._generate(job, now, finished)
        return finished

    def _generate(self, job: Job, now: float, finished: list[Job]) -> None:
        """Let a request generate whose prompt is done: its first token is there, unless it came with it."""
        fresh = 0 if job.have and not job.preempted else 1
        job.made += fresh
        if job.first < 0:
            job.first = now
        left = job.output - fresh
        if left <= 0:
            self._release(job, 0.0)
            finished.append(job)
            return
        self.count += 1
        self.sequence += 1
        self.context += job.prompt + self.shape.depth
        job.start, job.turn = self.step, self.sequence
        if len(self.order) > 2 * self.count + 64:
            self.order = [one for one in self.order if one.turn]
        self.order.append(job)
        heapq.heappush(self.ends, (self.step + math.ceil(left / self.shape.gained - 1e-9), self.sequence, job))

    def _leave(self, job: Job) -> float:
        """Take a request out of those that run; return the tokens that it has generated here."""
        grown = (self.step - job.start) * self.shape.gained
        job.turn = 0
        self.count -= 1
        self.context -= job.prompt + self.shape.depth + grown
        self._release(job, grown)
        return grown

    def _release(self, job: Job, grown: float) -> None:
        self.used -= job.own + grown
        self.pledged -= job.own + job.output
        if self.cache is not None and job.blocks:
            self.cache.give(job.blocks)

    def _preempt(self) -> None:
        """Put the youngest request back to the front of the queue; it computes its prompt and what it has generated again."""
        while not self.order[-1].turn:
            self.order.pop()
        job = self.order.pop()
        grown = round(self._leave(job))
        self.preemptions += 1
        job.preempted += 1
        made = grown + 1
        job.prompt, job.output, job.made, job.have = job.prompt + made, max(1, job.output - made), job.made + grown, 0
        self.waiting.appendleft(job)

    def drop_all(self) -> list[Job]:
        """Take all requests out of a copy that fails. What they had generated is lost with its cache: their users send them again."""
        running = [job for job in self.order if job.turn]
        lost = [*running, *(job for job, _ in self.pieces), *([self.partial] if self.partial else []), *self.waiting]
        for job in lost:
            if not job.have:
                job.prompt, job.output = job.prompt + job.output - job.total, job.total
            job.made = job.done = job.have = job.turn = 0
        self.waiting.clear()
        self.ends, self.order, self.pieces, self.partial = [], [], [], None
        self.count, self.used, self.pledged, self.context = 0, 0.0, 0.0, 0.0
        self.action, self.until = IDLE, math.inf
        self.version += 1
        if self.cache is not None:
            self.cache = PrefixCache(self.cache.block, self.cache.tiers)
        return lost
