"""Served: one layout of a served model at a load, as `check` reports it; and the settings of a file that the prediction depends on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.choice import choice
from meshwise.plan.serve.search import Option
from meshwise.plan.serve.words import length_words, load_words, tokens
from meshwise.runs.run import Run
from meshwise.units import GIB


@dataclass(frozen=True, kw_only=True)
class Served:
    """One layout of a served model with its memory, and its speed at a load, in SI units; no speed where it does not fit."""

    name: str
    load: str  # the load and the lengths of requests that the speed belongs to, in words
    peak: float
    capacity: float
    axes: tuple[int, int, int, int]  # tp, pp, copies, and 1 where attention is data parallel
    users: int
    most_users: int  # requests of these lengths that run at once
    fits: bool = True
    per_user: float | None = None
    """Tokens per second of one request after its first token; None where it does not fit, or cannot serve the rate."""
    low: float | None = None
    high: float | None = None
    throughput: float | None = None  # output tokens per second of all requests, prompts included
    ttft: float | None = None
    ttft_p95: float | None = None
    e2e_p95: float | None = None
    cache_tokens: int = 0  # tokens of KV cache of all copies; 0 where it is not paged
    context: int = 0  # the longest request, in tokens
    full_requests: int = 0  # requests of that length that run at once
    remedies: tuple[str, ...] = ()  # what would make it fit, in words
    dollars_in: float | None = None
    dollars_out: float | None = None  # rent per million prompt and output tokens: each pays for the time that it takes

    def sentences(self) -> Iterator[str]:
        """Yield whether it fits, how fast it is at the load, and what a million tokens cost."""
        memory = f"{self.peak / GIB:.1f} GiB of {self.capacity / GIB:.1f} on the fullest device"
        yield f"{'fits' if self.fits else 'does not fit'}: {memory}, with {self.users:,} request{'' if self.users == 1 else 's'} in flight"
        if not self.fits:
            yield f"it would fit with: {'; '.join(self.remedies)}" if self.remedies else "no smaller cache or format makes it fit"
            return
        if self.cache_tokens:
            yield (
                f"KV cache: {self.cache_tokens:,} tokens, so {self.full_requests:,} request{'' if self.full_requests == 1 else 's'} "
                f"of the whole context of {self.context:,}"
            )
        if self.per_user is None:
            yield f"too slow: it does not serve {self.load}"
            return
        rates = f"{tokens(self.throughput or 0.0)} tokens/s in all, prompts included; {tokens(self.per_user)} per request"
        yield (
            f"speed with {self.load}: {rates} (90%: {self.low:.3g} to {self.high:.3g}); first token after {self.ttft:.2g} s "
            f"(p95 {self.ttft_p95:.2g} s), whole request p95 {self.e2e_p95:.3g} s"
        )
        if self.dollars_out:
            prompts = f", ${self.dollars_in:.2f} per million prompt tokens" if self.dollars_in else ""
            yield f"${self.dollars_out:.2f} per million output tokens{prompts}"


def served(ask: ServeAsk, q: ServeQuestion, option: Option, context: int) -> Served:
    """Return a layout with its memory on the fullest device and, where it fits, its speed at the load. `context`: the longest request."""
    number = min(range(len(option.spares)), key=lambda i: option.spares[i])
    layout, capacity = option.layout, option.rooms[number]
    plain = Served(
        name=layout.name, load=f"{load_words(ask)}, {length_words(ask)}", peak=capacity - option.spares[number],
        capacity=capacity, axes=(layout.tp, layout.pp, layout.replicas, int(layout.apart)),
        users=max(1, min(option.most_users, q.work.users)) if not q.load.rate else max(1, option.most_users),
        most_users=option.most_users, fits=option.speed is not None, context=context, cache_tokens=_cache_tokens(q, option),
        full_requests=_full_requests(q, option, context),
    )  # fmt: skip
    if option.speed is None or option.report is None:
        return plain
    one = choice(q, option)
    return replace(
        plain, per_user=one.per_user, low=one.low, high=one.high, throughput=one.throughput, ttft=one.ttft.p50,
        ttft_p95=one.ttft.p95, e2e_p95=one.e2e.p95, dollars_in=one.dollars_per_million_in,
        dollars_out=one.dollars_per_million_out,
    )  # fmt: skip


def _cache_tokens(q: ServeQuestion, option: Option) -> int:
    """Return the tokens of KV cache of all copies; 0 where the cache is not paged."""
    room = option.limits.cache
    return int(room) * option.layout.replicas if q.runtime.paged and math.isfinite(room) and room > 0 else 0


def _full_requests(q: ServeQuestion, option: Option, context: int) -> int:
    """Return the requests of the whole context that the cache of all copies holds."""
    if not _cache_tokens(q, option):
        return 0
    limits = option.limits
    return int(min(float(limits.sequences), limits.cache / (context + limits.fixed))) * option.layout.replicas


def with_settings(q: ServeQuestion, facts: Run, *, bounded: bool) -> ServeQuestion:
    """Return the question with its engine set as a file says; `bounded`: also the most requests of a copy (slots where it is not paged)."""
    if not q.runtime.paged:
        return q
    runtime = q.runtime
    ranks = facts.whole("tp", 1) if facts.value("attention_dp") is True else 1  # each has the limits of the runtime
    tokens, limit, share = facts.value("copy_tokens"), facts.value("copy_limit"), facts.value("memory_share")
    if isinstance(tokens, int) and tokens > 0 and facts.says("batched_tokens"):
        runtime = replace(runtime, batch=-(-tokens // ranks), large_batch=0, scheduled=0)
    if bounded and isinstance(limit, int) and limit > 0:
        runtime = replace(runtime, sequences=-(-limit // ranks), large_sequences=0)
    if isinstance(share, float) and 0 < share <= 1 and facts.says("memory_share"):
        runtime = replace(runtime, usable={**runtime.usable, "gpu": share})
        if runtime.token_reserve:  # a stated share takes the place of the engine's rule, buffers included
            runtime = replace(runtime, token_reserve=0.0, context=0.0)
    if facts.says("chunked"):
        runtime = replace(runtime, chunked=facts.value("chunked") is True)
    return replace(q, runtime=runtime)
