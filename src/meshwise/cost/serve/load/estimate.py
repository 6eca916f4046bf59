"""Throughput and latency of a replica at a load, by formula. tests/support/steady.py is the referee.

In a steady state every finished request is followed by another one: for each decode token of a pass, prompt tokens pass in proportion to
their length. Passes with a piece of a prompt take longer than those without, and every request's token waits for either. Little's law
joins requests in flight, their time in the engine and the rate at which they finish; the queue of prompts gives the percentiles of TTFT.
"""

import math
import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshwise.cost.serve.load.queue import SAMPLED_REQUESTS, arrivals, queued
from meshwise.cost.serve.load.requests import NOTHING_SERVED, QUANTILES, Limits, Load, Percentiles, Report, percentiles, weighted
from meshwise.cost.serve.passes.speed import Batch, PassCost

FIXED_POINT_ROUNDS = 30  # steps of the fixed point
MAX_BUSY_SHARE = 0.98  # largest share of mixed passes in the queue of prompts, whose wait grows without end towards 1. A choice.
SHORT_SHARE, SHORT_STEP, LONG_SHARE, LONG_STEP = 0.8, 0.5, 0.2, 2.0
"""Shares of shorter and of longer pieces, and their distances from the mean in spreads. They keep mean and variance: 0.8 x 0.5 = 0.2 x 2,
and 0.8 x 0.5^2 + 0.2 x 2^2 = 1."""
BELOW_FULL_SHARE = 0.9
"""Share of the requests that fit at which a paged cache is not yet full, so that none is preempted. A choice."""
PIECE_TOLERANCE = 0.01  # a prompt that exceeds whole pieces by less than this share of one takes no further pass. A choice.
GOLDEN = 0.6180339887  # multiples of it, whole numbers taken off, lie evenly between 0 and 1
MIN_PIECE_SPREAD = 0.01  # relative spread of pieces below which one size stands for all of them. A choice.


class Passes(NamedTuple):
    """Passes of a replica with a constant number of generating requests."""

    plain: float  # seconds of a pass without prompts
    mixed: float  # seconds of a pass with a piece of `chunk` tokens of prompts
    chunk: float
    share: float  # share of passes with such a piece
    step: float  # mean seconds between two tokens of a request

    def capped(self) -> "Passes":
        """Return these passes with a share of at most 1: prompts that arrive faster than they are computed."""
        return self._replace(share=min(1.0, self.share))


@dataclass(frozen=True)
class Steady:
    """A steady state of one replica."""

    decodes: float  # mean requests that generate tokens
    rate: float  # finished requests per second
    passes: Passes
    prefill: float  # mean seconds from admission to the first token


@dataclass(frozen=True)
class Estimator:
    """Passes of one replica at a load."""

    cost: PassCost
    load: Load
    limits: Limits
    full: bool = False  # whether more requests wait than fit
    together: bool = False
    """Whether all requests start at once and are equally long: those that end together are followed by prompts that fill whole passes."""

    @property
    def flow(self) -> float:
        """Prompt tokens computed per request; where a paged cache is full, about as many as it generates are computed again."""
        bound = self.full and not self.limits.reserves and self.limits.running(self.load) < self.limits.sequences
        return self.load.computed + (self.load.output.mean if bound else 0.0)

    def batch(self, decodes: float, tokens: float) -> Batch:
        """Return a pass of `decodes` requests at their mean context, with `tokens` tokens of prompts at the mean position."""
        load, d = self.load, self.cost.d
        context = load.depth + load.prompt.mean + load.output.biased / 2
        contexts = tuple(decodes * reached for reached in d.reached(context))
        computed = load.computed
        if not tokens or not computed:
            return Batch(decodes, contexts, groups=self.groups(decodes), draft=load.draft if decodes else 0)
        # the pairs of a whole prompt, in proportion to the tokens of the piece; longer prompts have more pairs per token
        long = load.prompt.biased * (1 - load.prefix)
        whole = d.prompt_pairs(long, load.depth + load.prompt.mean * load.prefix, size=min(long, d.batch))
        pairs = tuple(tokens / long * number for number in whole)
        ends = tokens / computed
        return Batch(decodes, contexts, tokens, pairs, ends, self.groups(decodes + ends), load.draft if decodes else 0)

    @property
    def first_share(self) -> float:
        """Share of the requests of a benchmark that its users send at its start, all at once; 0 where it has no end."""
        load = self.load
        return min(1.0, load.users / load.requests) if load.users and load.requests else 0.0

    def groups(self, running: float) -> int:
        return min(self.cost.d.pipeline, max(1, math.floor(running)))

    def seconds(self, decodes: float, tokens: float) -> float:
        return self.cost.seconds(self.batch(decodes, tokens))

    def beside(self, decodes: float) -> float:
        """Return the requests that generate while a prompt is computed: of a closed loop, all but the one whose prompt it is."""
        if not self.limits.chunked:
            return 0.0
        users = self.load.users
        return min(decodes, max(0.0, min(users, self.limits.running(self.load)) - 1)) if users else decodes

    def chunk(self, decodes: float, room: float) -> float:
        """Return the mean prompt tokens of a pass that has any: the prompts that arrived during the one before it."""
        load = self.load
        if self.together:
            return min(room, min(load.users, max(1, room // load.computed)) * load.computed)
        arrived = decodes / max(load.steps, 1e-9) * self.limits.poll_passes
        several = arrived / -math.expm1(-arrived) if arrived > 1e-9 else 1.0
        return min(room, load.computed * (min(several, load.users) if load.users else several))

    def passes(self, decodes: float) -> Passes:
        """Return the passes of a replica in which this many requests generate tokens."""
        load, chunked = self.load, self.limits.chunked
        # fewer than one on average: none most of the time, and a whole one when a pass runs
        plain = self.seconds(max(1.0, decodes), 0.0) if decodes else 0.0
        room = max(1.0, self.limits.tokens - (decodes * (1 + load.draft) if chunked else 0.0))
        if not load.computed:
            return Passes(plain, plain, 0.0, 0.0, plain)
        piece = self.chunk(decodes, room)
        mixed, piece = self._mixed(self.beside(decodes), piece, room)
        if not load.steps:
            return Passes(plain, mixed, piece, 1.0, mixed)
        # a request of a closed loop meets the prompts of others, not its own
        others = 1 - 1 / min(load.users, max(1.0, self.limits.running(load))) if load.users else 1.0
        share = others * decodes / load.steps * self.flow / piece
        step = plain + share * (max(0.0, mixed - plain) if chunked else mixed)
        return Passes(plain, mixed, piece, share, step)

    def _mixed(self, decodes: float, piece: float, room: float) -> tuple[float, float]:
        """Return the mean seconds of a pass with a piece of about `piece` tokens, and its mean tokens. Seconds grow in steps with the waves
        of tiles, so a distribution of two sizes with the same mean and variance is averaged."""
        load = self.load
        number = max(1.0, piece / load.computed)
        spread = math.sqrt(((not self.together) * (number - 1) / number + load.prompt.spread**2) / number)
        if spread < MIN_PIECE_SPREAD or piece >= room:
            return self.seconds(decodes, piece), piece
        short, long = max(1.0, piece * (1 - SHORT_STEP * spread)), min(room, piece * (1 + LONG_STEP * spread))
        seconds = SHORT_SHARE * self.seconds(decodes, short) + LONG_SHARE * self.seconds(decodes, long)
        return seconds, SHORT_SHARE * short + LONG_SHARE * long

    def with_running(self, running: float) -> Steady:
        """Return the steady state with this many admitted requests: some generate, the others compute their prompts."""
        load = self.load
        if running <= 0:
            return Steady(0.0, 0.0, Passes(math.inf, math.inf, 0.0, 1.0, math.inf), math.inf)
        if not load.steps:
            return self._prompts_only()
        decodes = running
        for i in range(FIXED_POINT_ROUNDS):
            found = self.passes(decodes)
            seconds = self.prefill(found)
            after = running * load.steps * found.step / (load.steps * found.step + seconds)
            most = self._saturated()
            after = min(after, most)
            near = abs(after - decodes) < 1e-3 * running
            decodes = after if near or i < FIXED_POINT_ROUNDS // 2 else (decodes + after) / 2
            if near:
                break
        found = self.passes(decodes)
        rate = decodes / (load.steps * found.step)
        prefill = self.prefill(found)
        if load.users:  # prompts take no more than all of the time, and those that do not generate wait for theirs (Little's law)
            if found.chunk and rate * load.computed * found.mixed > found.chunk:
                room = max(found.chunk, self.limits.tokens - decodes * (1 + load.draft))
                rate = min(rate, max(found.chunk / found.mixed, room / self.seconds(decodes, room)) / load.computed)
            prefill = max(prefill, running / rate - load.steps * found.step)
        return Steady(min(decodes, rate * load.steps * found.step), rate, found.capped(), prefill)

    def _prompts_only(self) -> Steady:
        """Return the steady state of requests with one output token: passes full of prompts."""
        tokens = min(float(self.limits.tokens), max(1, self.load.users or 1) * self.load.computed)
        mixed = self.seconds(0.0, tokens)
        seconds = max(1.0, self.load.computed / tokens) * mixed
        return Steady(0.0, tokens / self.load.computed / mixed, Passes(0.0, mixed, tokens, 1.0, mixed), seconds)

    def _saturated(self) -> float:
        """Return the requests that generate when prompts fill the token budget of every pass."""
        load = self.load
        if not self.limits.chunked or not load.computed:
            return math.inf
        return self.limits.tokens / (1 + load.draft + self.flow / load.steps)

    def unseen(self, passes: Passes) -> float:
        """Return mean seconds until the engine looks for new requests, where it does not do so before every pass."""
        return (self.limits.poll_passes - 1) / 2 * passes.step if self.limits.poll_passes > 1 else 0.0

    def late(self, passes: Passes) -> float:
        """Return mean seconds of the passes that are scheduled when a request arrives; none where no other request generates."""
        beside = self.load.users - 1 if self.load.users else passes.share * self.load.steps * passes.chunk / max(1.0, self.flow)
        return -self.limits.ahead * math.expm1(-max(0.0, beside)) * passes.step

    def longer(self, passes: Passes) -> float:
        """Return seconds by which a piece of one prompt takes longer through all stages of a pipeline than the groups that follow it."""
        if self.cost.d.pipeline == 1 or not passes.chunk:
            return 0.0
        return max(0.0, self.seconds(0.0, passes.chunk) - passes.mixed)

    def prefill(self, passes: Passes) -> float:
        """Return mean seconds from admission to the first token: the passes of its own prompt, behind others that are queued."""
        request = self.cost.request + self.unseen(passes) + self.late(passes)
        if not self.load.computed:
            return request
        # a piece of several prompts ends all of them at once
        number, mixed = self.load.computed / passes.chunk, passes.mixed + self.longer(passes)
        if self.together:
            return request + max(1, math.ceil(number - PIECE_TOLERANCE)) * mixed
        busy = min(MAX_BUSY_SHARE, passes.share)
        own = mixed
        if number > 1:  # the last piece is shorter; the first begins somewhere within a piece of another prompt, an estimate
            last = passes.plain + (number - math.floor(number)) * (mixed - passes.plain)
            own = math.floor(number) * mixed + last + 0.5 * busy * mixed
        alone = min(1.0, passes.chunk / self.load.computed)
        # the wait in a queue of one server with random arrivals (Pollaczek-Khinchine)
        return request + own + (1 - alone) * 0.5 * (1 + self.load.prompt.spread**2) * busy / (1 - busy) * own


def estimate(cost: PassCost, load: Load, limits: Limits, *, detailed: bool = True) -> Report | None:
    """Return throughput and latency at a load; None beyond the highest rate. Percentiles are those of the queue if `detailed`, or means."""
    most = limits.running(load)
    if most < 1:
        return None
    if load.users and load.prompt.fixed and load.output.fixed and limits.reserves:
        most = float(math.floor(most))  # all requests need the same, and no other one fits beside these
    estimator = Estimator(cost, load, limits, full=load.users > most)
    if estimator.first_share == 1 and load.users <= most:
        return _at_once(estimator)
    if load.users:
        running = min(float(load.users), most)
        steady = estimator.with_running(running)
        if running > BELOW_FULL_SHARE * most:  # fewer end more slowly than those
            steady = _within(steady, highest_rate(cost, load, limits), load)
        return _report(estimator, steady, wait=_wait_of_users(load, steady, running), detailed=detailed)
    if load.rate >= highest_rate(cost, load, limits):
        return None
    steady = _at_rate(estimator, most)
    return _report(estimator, steady, wait=_wait_for_a_place(load, steady, most), detailed=detailed)


def _at_once(estimator: Estimator) -> Report:
    """Return a benchmark whose users all begin at once and ask no second time: their prompts, then steps of all of them."""
    load, first = estimator.load, _first_wave(estimator)
    plain = estimator.seconds(load.users, 0.0)
    seconds, ttft = first[-1] + load.steps * plain, percentiles(first)
    per_token = (seconds - ttft.mean) / load.steps / load.gained if load.steps else 0.0
    rate = load.users / seconds
    return Report(
        requests=rate, output_rate=rate * max(1.0, load.output.mean), input_rate=rate * load.prompt.mean, running=load.users,
        waiting=rate * ttft.mean, ttft=ttft, tpot=flat(per_token), itl=flat(plain), e2e=flat(seconds),
    )  # fmt: skip


def _within(steady: Steady, most: float, load: Load) -> Steady:
    """Return the steady state of a closed loop, whose requests end no faster than an open one can be served: all of it takes longer."""
    if steady.rate <= most or not load.steps:  # passes of prompts alone are fuller, the more users there are
        return steady
    longer = steady.rate / most
    passes = steady.passes._replace(step=steady.passes.step * longer)
    return replace(steady, rate=most, prefill=steady.prefill * longer, passes=passes)


def drained(cost: PassCost, load: Load, limits: Limits) -> float:
    """Return output tokens per second of a benchmark that queues `load.requests` requests at once and waits for the last of them. As many
    run as fit; what is left over at the end runs with fewer beside it, which takes longer per request. Worked: 3,000 requests of which
    2,048 fit: one full wave, and one of 952."""
    most = limits.running(load)
    if most < 1:
        return 0.0
    waves, rest = divmod(load.requests, max(1.0, most)) if load.requests else (1.0, 0.0)
    seconds = 0.0
    for number, running in ((waves * most, most), (rest, rest)):
        if number >= 1:
            full = load.requests > 2 * most or not load.requests
            users = replace(load, users=max(1, round(running)), rate=0.0, requests=0)
            together = load.prompt.fixed and load.output.fixed
            seconds += number / Estimator(cost, users, limits, full=full, together=together).with_running(running).rate
    done = load.requests or most
    return done * max(1.0, load.output.mean) / seconds


def highest_rate(cost: PassCost, load: Load, limits: Limits) -> float:
    """Return the most requests per second that a replica serves."""
    if limits.running(load) < 1:
        return 0.0
    most = limits.running(load)
    # a full cache computes outputs again, and tokens of drafts leave no room for prompts: fewer at once may be faster
    fewer = (BELOW_FULL_SHARE, 0.7, 0.5, 0.35, 0.25) if load.draft else (BELOW_FULL_SHARE,)
    return max(_rate_with(cost, load, limits, share * most, full=share == 1) for share in (1.0, *fewer))


def _rate_with(cost: PassCost, load: Load, limits: Limits, running: float, *, full: bool) -> float:
    """Return the requests per second that end where this many always run."""
    busy = replace(load, users=max(1, math.floor(running)), rate=0.0, requests=0)
    return Estimator(cost, busy, limits, full=full).with_running(running).rate if running >= 1 else 0.0


def _at_rate(estimator: Estimator, most: float) -> Steady:
    """Return the steady state in which requests finish as fast as they arrive: the fewest running ones, found by doubling and bisection.
    With more of them, tokens of drafts leave so little room for prompts that another, slower state may hold too."""
    rate = estimator.load.rate
    if not estimator.load.steps:
        return replace(estimator.with_running(most), rate=rate)

    def enough(decodes: float) -> bool:
        return decodes >= rate * estimator.load.steps * estimator.passes(decodes).step

    high = min(most, rate * estimator.load.steps * estimator.passes(1.0).step)
    while high < most and not enough(high):
        high = min(most, high * 1.5)
    low = high / 1.5
    for _ in range(FIXED_POINT_ROUNDS):
        decodes = (low + high) / 2
        low, high = (low, decodes) if enough(decodes) else (decodes, high)
        if high - low < 1e-4 * high:
            break
    found = estimator.passes(high)
    return Steady(high, rate, found.capped(), estimator.prefill(found))


def _wait_of_users(load: Load, steady: Steady, running: float) -> Percentiles:
    """Return the time until a user's request is admitted: those that do not fit wait for their turn."""
    before = load.users - running
    wait = before / steady.rate if steady.rate else math.inf
    if before <= 0:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    uneven = max(load.output.spread, load.prompt.spread) / math.sqrt(before)
    return Percentiles(wait, wait, wait * (1 + 1.645 * uneven), wait * (1 + 2.326 * uneven))


def _wait_for_a_place(load: Load, steady: Steady, most: float) -> Percentiles:
    """Return the time until a request finds a place among `most`, as in a queue with as many servers (Allen and Cunneen's formula)."""
    stay = steady.prefill + load.steps * steady.passes.step
    places = max(1, math.floor(most))
    busy = min(0.999, load.rate * stay / places)
    waits = _all_taken(places, busy * places)
    each = stay / (places * (1 - busy)) * (load.burst**2 + load.output.spread**2) / 2  # of those that wait
    if waits * each < 1e-6 * stay:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    return Percentiles(waits * each, *(max(0.0, math.log(waits / (1 - q))) * each for q in QUANTILES))


def _all_taken(places: int, offered: float) -> float:
    """Return the probability that all places are taken when a request arrives (Erlang C), by the recursion of Erlang B."""
    blocked = 1.0
    for number in range(1, places + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - (1 - blocked) * offered / places)


def _report(estimator: Estimator, steady: Steady, *, wait: Percentiles, detailed: bool) -> Report:
    load = estimator.load
    if not steady.rate or not math.isfinite(steady.passes.step):
        return NOTHING_SERVED
    first = _prompt_times(estimator, steady) if detailed else flat(_mean_prompt_time(estimator, steady))
    ttft = first.plus(wait)
    rate = steady.rate
    if estimator.first_share:  # the first wave takes longer than those after it
        decoding = load.steps * steady.passes.step
        rate *= min(1.0, (steady.prefill + wait.mean + decoding) / (ttft.mean + decoding))
    per_token = steady.passes.step / load.gained
    plain, mixed, share = steady.passes.plain, steady.passes.mixed, steady.passes.share
    apart = [(plain, 1 - share), (mixed if estimator.limits.chunked else plain + mixed, share)]
    tpot = _per_request(estimator, steady, apart) if detailed else flat(per_token)
    generating = _decode_times(load, tpot) if detailed else flat(load.steps * steady.passes.step)
    return Report(
        requests=rate, output_rate=rate * max(1.0, load.output.mean), input_rate=rate * load.prompt.mean,
        running=steady.decodes, waiting=rate * ttft.mean, ttft=ttft, tpot=tpot,
        itl=weighted(apart) if load.steps else flat(0.0), e2e=ttft.plus(generating),
    )  # fmt: skip


def flat(value: float) -> Percentiles:
    return Percentiles(value, value, value, value)


def _per_request(estimator: Estimator, steady: Steady, apart: list[tuple[float, float]]) -> Percentiles:
    """Return the time per output token of a request: the mean over its steps, so the more steps, the closer to the mean of all."""
    load = estimator.load
    if load.steps < 1:
        return flat(0.0)
    mean = steady.passes.step / load.gained
    variance = sum(weight * (value - steady.passes.step) ** 2 for value, weight in apart)
    spread = math.sqrt(variance / max(1.0, load.steps)) / load.gained
    return Percentiles(mean, mean, mean + 1.645 * spread, mean + 2.326 * spread)


def _decode_times(load: Load, tpot: Percentiles) -> Percentiles:
    """Return the time from the first token to the last, by the lengths of outputs."""
    rng = random.Random(1)
    if load.output.fixed:
        steps = load.steps * load.gained
        return Percentiles(steps * tpot.mean, steps * tpot.p50, steps * tpot.p95, steps * tpot.p99)
    return percentiles([max(0, length - 1) * tpot.mean for length in load.output.draw(rng, SAMPLED_REQUESTS)])


def _mean_prompt_time(estimator: Estimator, steady: Steady) -> float:
    """Return the mean time to first token of an admitted request, the first wave of a benchmark included."""
    share, first = estimator.first_share, _first_wave(estimator)
    return (1 - share) * steady.prefill + (share * sum(first) / len(first) if first else 0.0)


def _prompt_times(estimator: Estimator, steady: Steady) -> Percentiles:
    """Return the percentiles of the time to first token of an admitted request: the queue of prompts beside a constant number of decoding
    requests, and the first wave of a benchmark whose users all begin at once."""
    load, request = estimator.load, estimator.cost.request
    if not load.computed:
        return flat(steady.passes.plain + request)
    room = max(1.0, estimator.limits.tokens - (steady.decodes * (1 + load.draft) if estimator.limits.chunked else 0.0))
    decodes = estimator.beside(steady.decodes)
    lines = [(size, _smoothed(estimator, decodes, size, room)) for size in _sizes(room, load.computed)]
    if load.users:
        # requests follow on others that end, so many of them a pass, however long it takes
        per_pass = max(steady.decodes, 1e-9) / max(load.steps, 1.0)
        times = queued(arrivals(load, per_pass, 1.0), steady.passes.plain, lines, room, users=load.users)
    else:
        times = queued(arrivals(load, steady.rate, load.burst), steady.passes.plain, lines, room, users=0)
    unseen = 2 * estimator.unseen(steady.passes)  # evenly between none and this
    request += estimator.late(steady.passes)
    request += estimator.longer(steady.passes) * math.ceil(load.computed / steady.passes.chunk - PIECE_TOLERANCE)
    later = [time + request + unseen * (i * GOLDEN % 1) for i, time in enumerate(times[SAMPLED_REQUESTS // 10 :])]
    if load.users:  # users who wait are as many as Little's law says: all of them a while longer, or each for a share of its time
        mean = sum(later) / len(later)
        scale, more = min(1.0, steady.prefill / mean), max(0.0, steady.prefill - mean)
        later = [time * scale + more for time in later]
    share, first = estimator.first_share, _first_wave(estimator)
    return weighted([*((time, (1 - share) / len(later)) for time in later), *((time, share / len(first)) for time in first)])


def _first_wave(estimator: Estimator) -> list[float]:
    """Return the times to first token of users who all begin at once: passes full of prompts, one after another, beside the requests whose
    prompts are done. Empty where no benchmark begins."""
    load, limits = estimator.load, estimator.limits
    if not estimator.first_share:
        return []
    number = min(load.users, max(1, math.floor(limits.running(load))))
    passes = max(1, math.ceil(number * load.computed / limits.tokens - PIECE_TOLERANCE))
    each = estimator.seconds(number / 2 if limits.chunked else 0.0, number * load.computed / passes)
    ends = (max(1, math.ceil((i + 1) / number * passes - PIECE_TOLERANCE)) for i in range(number))
    return [estimator.cost.request + end * each for end in ends]


def _smoothed(estimator: Estimator, decodes: float, size: float, room: float) -> float:
    """Return the seconds of a pass, averaged over pieces of about this size: they grow in steps with the waves of tiles."""
    spread = 1 < size < room and not estimator.load.prompt.fixed
    near = [min(room, max(1.0, size * factor)) for factor in (0.88, 1.0, 1.12)] if spread else [size]
    return sum(estimator.seconds(decodes, one) for one in near) / len(near)


def _sizes(room: float, prompt: float) -> list[float]:
    """Return sizes of pieces, each twice the one before, and that of a mean prompt."""
    return sorted({1.0, *(2.0**i for i in range(6, 20) if 2.0**i < room), max(1.0, min(prompt, room)), room})
