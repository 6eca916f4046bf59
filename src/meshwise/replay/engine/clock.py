"""Clock: all copies of a deployment in one time, with arrivals, a router, pools, start-up times, scaling and failures."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from meshwise import wanted
from meshwise.cost.serve.load.requests import Limits
from meshwise.replay.engine.cache import NO_TIERS, PrefixCache, Tiers
from meshwise.replay.engine.copy import Copy, Shape
from meshwise.replay.engine.job import Job
from meshwise.replay.engine.policy import Policy, Scaler, Seen
from meshwise.replay.engine.record import WINDOWS, Record, quantile
from meshwise.replay.engine.router import Router, router
from meshwise.replay.engine.times import PassTimes
from meshwise.replay.traces.request import Request

SAMPLES = 10  # looks at the copies in each window of the record
CHECKED_EVERY = 4096  # events after which it is asked whether anybody still waits for the answer


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The setting that every copy of a pool shares."""

    times: PassTimes
    limits: Limits
    shape: Shape = field(default_factory=Shape)
    block: int = 0  # tokens of a block of cached prefixes; 0 where none are kept
    tiers: Tiers = NO_TIERS
    longest: int = 0  # tokens of a request at most; 0: any

    def copy(self) -> Copy:
        return Copy(
            self.times, self.limits, self.shape, PrefixCache(self.block, self.tiers) if self.block else None, self.longest
        )


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A deployment: copies, or pools for prompts and for outputs."""

    engine: Engine
    copies: int
    prompts: Engine | None = None  # the engine of copies that compute prompts only
    prompt_copies: int = 0
    token_seconds: float = 0.0  # seconds in which the cache of one prompt token moves to the other pool
    router: str = "least-loaded"
    policy: Policy | None = None
    start_up: float = 0.0  # seconds until a new copy serves
    mtbf: float = 0.0  # mean seconds between failures of one copy; 0: none
    seed: int = 0


@dataclass(eq=False)
class Slot:
    """A copy, and since when it is paid for."""

    copy: Copy
    since: float
    draining: bool = False
    starting: bool = False


@dataclass
class Pool:
    """Copies of one engine behind a router."""

    engine: Engine
    route: Router
    slots: list[Slot] = field(default_factory=list[Slot])
    serving: list[Copy] = field(default_factory=list[Copy])  # copies that take requests
    backlog: deque[Job] = field(default_factory=deque[Job])  # requests that no copy can take yet
    starting: int = 0
    paid: float = 0.0  # seconds of copies that are gone
    gone: list[Copy] = field(default_factory=list[Copy])

    def settle(self) -> None:
        self.serving = [slot.copy for slot in self.slots if not slot.draining and not slot.starting]


class Clock:
    """Runs requests through a fleet. `followed` is called with every request that is done, and may return the next one of its user."""

    def __init__(self, fleet: Fleet, record: Record, followed: "Callable[[Job, float], Request | None] | None" = None) -> None:
        self.fleet, self.record, self.followed = fleet, record, followed
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        """The events that are due: when, in which order, and what to call with the time."""
        self.events = 0
        self.rng = random.Random(fleet.seed)
        self.outputs = Pool(fleet.engine, router(fleet.router))
        self.prompts = Pool(fleet.prompts, router(fleet.router)) if fleet.prompts else None
        self.scaler = Scaler(fleet.policy) if fleet.policy and fleet.policy.kind != "static" else None
        self.arrived = 0
        self.open = 0
        """Requests that have arrived and are not done."""
        self.more = True
        first = fleet.policy.first if fleet.policy else fleet.copies
        for pool, number in ((self.outputs, first), (self.prompts, fleet.prompt_copies)):
            for _ in range(number if pool else 0):
                assert pool
                self._add(pool, 0.0, up=True)
        if self.scaler:
            record.looks = True
            assert fleet.policy
            self._push(fleet.policy.interval, self._look)
        self._push(record.seconds / WINDOWS / SAMPLES / 2, self._sample)

    def _push(self, at: float, happens: "Callable[[float], None]") -> None:
        self.events += 1
        heapq.heappush(self.heap, (at, self.events, happens))

    # Copies.

    def _add(self, pool: Pool, now: float, *, up: bool = False) -> None:
        """Start a copy; it serves at once where it is `up`, or after its start-up time."""
        slot = Slot(pool.engine.copy(), now, starting=not up)
        pool.slots.append(slot)
        if up:
            self._serves(pool, slot, now)
        else:
            pool.starting += 1
            self._push(now + self.fleet.start_up, partial(self._started, pool, slot))

    def _serves(self, pool: Pool, slot: Slot, now: float) -> None:
        slot.starting = False
        pool.settle()
        if self.fleet.mtbf:
            self._push(now + self.rng.expovariate(1 / self.fleet.mtbf), partial(self._fails, pool, slot))
        while pool.backlog and pool.serving:
            self._join(pool, pool.backlog.popleft(), now)

    def _started(self, pool: Pool, slot: Slot, now: float) -> None:
        pool.starting -= 1
        if slot in pool.slots:
            self._serves(pool, slot, now)

    def _scale(self, now: float, number: int) -> None:
        """Start or stop copies until there are `number`."""
        pool = self.outputs
        active = [slot for slot in pool.slots if not slot.draining]
        for slot in (one for one in pool.slots if one.draining):
            if len(active) >= number:
                break
            slot.draining = False
            active.append(slot)
        for _ in range(number - len(active)):
            self._add(pool, now)
        fewest = sorted(active, key=lambda slot: (not slot.starting, slot.copy.load))
        for slot in fewest[: max(0, len(active) - number)]:
            slot.draining = True
        for slot in [one for one in pool.slots if one.draining and not one.copy.load]:
            self._stop(pool, slot, now)
        pool.settle()

    def _stop(self, pool: Pool, slot: Slot, now: float) -> None:
        pool.slots.remove(slot)
        pool.paid += now - slot.since
        pool.gone.append(slot.copy)

    def _fails(self, pool: Pool, slot: Slot, now: float) -> None:
        """Let a copy fail: its requests are sent again, and it starts anew."""
        if slot not in pool.slots or not (self.open or self.more):
            return
        lost = slot.copy.drop_all()
        slot.starting = True
        pool.starting += 1
        pool.settle()
        self._push(now + self.fleet.start_up, partial(self._started, pool, slot))
        self.record.retried += len(lost)
        for job in lost:
            self._join(pool, job, now)

    # Requests.

    def run(self, requests: Iterable[Request]) -> Record:
        """Run until all requests are done."""
        source, heap, record = iter(requests), self.heap, self.record
        # every request reaches its engine a constant time after its user sent it
        late = (self.prompts or self.outputs).engine.times.request
        upcoming = next(source, None)
        due = upcoming.at + late if upcoming else math.inf
        while upcoming is not None or self.open:
            self.events += 1
            if not self.events % CHECKED_EVERY:
                wanted.check()
            if heap and heap[0][0] <= due:
                self.now, _, happens = heapq.heappop(heap)
                happens(self.now)
                continue
            assert upcoming is not None
            self.now = due
            self.arrived += 1
            record.window(upcoming.at).arrived += 1
            self.arrive(upcoming, due)
            upcoming = next(source, None)
            due = upcoming.at + late if upcoming else math.inf
            self.more = upcoming is not None
        record.last = max(record.last, record.seconds)
        return record

    def arrive(self, request: Request, now: float) -> None:
        """Send a request to its pool, or reject one that no copy can ever hold."""
        at, prompt, output, blocks = request
        engine, pool = self.outputs.engine, self.prompts or self.outputs
        if engine.longest and prompt + output > engine.longest:
            self.record.rejected += 1
            return
        job = Job(at, prompt, output, blocks if pool.engine.block else ())
        if self.prompts:
            job.output, job.later = 1, output - 1
        self.open += 1
        self._join(pool, job, now)

    def _join(self, pool: Pool, job: Job, now: float) -> None:
        if not pool.serving:
            pool.backlog.append(job)
            return
        copy = pool.serving[0] if len(pool.serving) == 1 else pool.route(pool.serving, job)
        if copy.join(job, now):
            if copy.until == math.inf:
                copy.begin(now)
            else:
                copy.version += 1
            self._push(copy.until, partial(self._ends, pool, copy, copy.version))

    def _ends(self, pool: Pool, copy: Copy, version: int, now: float) -> None:
        """Let a pass of a copy end, unless it was cut short since."""
        if copy.version != version:
            return
        for job in copy.end(now):
            self._done(pool, job, now)
        if copy.begin(now) != math.inf:
            self._push(copy.until, partial(self._ends, pool, copy, copy.version))

    def _done(self, pool: Pool, job: Job, now: float) -> None:
        """Record a request that is done, or send its cache to the pool that generates the rest."""
        if job.later and pool is self.prompts:
            prompt = job.prompt + job.output - 1
            moving = self.fleet.token_seconds * prompt
            self.record.transferred += moving
            rest = Job(job.arrived, prompt, job.later, job.blocks if self.outputs.engine.block else ())
            rest.first, rest.admitted, rest.reused, rest.preempted = job.first + moving, job.admitted, job.reused, job.preempted
            rest.total, rest.have = job.later + 1, prompt
            self._push(now + moving, partial(self._join, self.outputs, rest))
            return
        self.open -= 1
        self.record.finish(job, now, job.prompt + job.output - job.total + (job.have > 0))
        if self.followed:
            following = self.followed(job, now)
            if following is not None:
                self.open += 1
                again = Job(following.at, following.prompt, following.output, following.blocks)
                self._push(following.at + pool.engine.times.request, partial(self._join, pool, again))

    # Looks.

    def _look(self, now: float) -> None:
        """Let the policy decide."""
        assert self.scaler
        serving, recent = self.outputs.serving, sorted(self.record.recent)
        self.record.recent = []
        seen = Seen(
            copies=sum(not slot.draining for slot in self.outputs.slots), arrived=self.arrived,
            waiting=sum(len(copy.waiting) for copy in serving) + len(self.outputs.backlog),
            running=sum(copy.load - len(copy.waiting) for copy in serving),
            filled=sum(copy.filled for copy in serving) / max(1, len(serving)), ttft=quantile(recent, 0.95),
        )  # fmt: skip
        self.arrived = 0
        self._scale(now, self.scaler.copies(now, seen))
        if self.more or self.open:
            self._push(now + self.scaler.policy.interval, self._look)

    def _sample(self, now: float) -> None:
        """Note how many requests wait and run, and how many copies there are."""
        record = self.record
        window = record.window(now)
        window.samples += 1
        for pool in filter(None, (self.outputs, self.prompts)):
            window.waiting += len(pool.backlog) + sum(len(slot.copy.waiting) for slot in pool.slots)
            window.running += sum(slot.copy.load - len(slot.copy.waiting) for slot in pool.slots)
            window.copies += len(pool.slots)
        window.filled += sum(copy.filled for copy in self.outputs.serving) / max(1, len(self.outputs.serving))
        step = record.seconds / WINDOWS / SAMPLES
        if now + step <= record.seconds and (self.more or self.open):
            self._push(now + step, self._sample)

    def paid(self, pool: Pool) -> float:
        """Return the seconds of all copies of a pool, until the last request was done."""
        return pool.paid + sum(self.record.last - slot.since for slot in pool.slots)
