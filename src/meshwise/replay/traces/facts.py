"""Facts of a trace: rates, bursts, lengths, reuse of prefixes, and how much cache is worth having."""

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwise.catalogue import records
from meshwise.errors import UserError
from meshwise.replay.traces.request import Request
from meshwise.replay.traces.trace import Trace

CACHE_SIZES = (1_000, 5_000, 20_000, 0)  # blocks of the caches whose hits are counted; 0 is an endless one
MAX_DISTINCT_BLOCKS = 2**24  # different blocks of a trace, at most: caches that hold all of them take 3 GB
WORTH_SHARE = 0.9  # share of the hits of an endless cache above which more cache is hardly worth having. A choice.


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number of tokens over all requests."""

    mean: float
    p50: float
    p95: float
    most: float
    spread: float  # standard deviation over the mean

    @classmethod
    def of(cls, values: "array[int]") -> "Spread":
        ordered = sorted(values)
        last, mean = len(ordered) - 1, sum(ordered) / len(ordered)
        variance = sum((value - mean) ** 2 for value in ordered) / len(ordered)
        return cls(
            mean=mean, p50=ordered[last // 2], p95=ordered[math.ceil(0.95 * last)], most=ordered[-1],
            spread=math.sqrt(variance) / mean if mean else 0.0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Blocks found again in one cache of a size that forgets the least recently used."""

    blocks: int  # 0: endless
    tokens: int
    hits: float  # share of the blocks of all prompts that the cache holds when they arrive, from the first on without a gap


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """The figures that describe a trace."""

    name: str
    kind: str
    changed: str
    requests: int
    seconds: float
    rate: float  # requests per second
    busiest: float
    quietest: float  # requests per second of the busiest and of the quietest minute
    burst: float  # standard deviation of the time between requests over its mean; 1 is a Poisson process
    prompt: Spread
    output: Spread
    longest: int  # tokens of the longest request, prompt and output
    block: int
    reuse: tuple[Reuse, ...] = ()  # empty where requests state no blocks
    worth: Reuse | None = None
    """The smallest of these caches, each twice the one before, with WORTH_SHARE of the hits of an endless one."""
    minutes: tuple[int, ...] = field(default=(), repr=False)  # requests of each minute

    def to_json(self) -> dict[str, Any]:
        return records.printable(records.plain(self))

    def rows(self) -> list[dict[str, Any]]:
        return [{"cache_blocks": one.blocks, "cache_tokens": one.tokens, "hits": one.hits} for one in self.reuse]


def facts(trace: Trace, *, reuse: bool = True) -> TraceFacts:
    """Read a trace once for its rates and lengths, and, where it has blocks and `reuse` is asked for, twice more for the hits of caches."""
    prompts, outputs = array("l"), array("l")
    minutes: list[int] = []
    before, total, squares, longest, distinct = -1.0, 0.0, 0.0, 0, set[int]()
    for at, prompt, output, blocks in trace:
        prompts.append(prompt)
        outputs.append(output)
        longest = max(longest, prompt + output)
        minutes += [0] * (int(at // 60) + 1 - len(minutes))
        minutes[-1] += 1
        if before >= 0:
            gap = at - before
            total, squares = total + gap, squares + gap * gap
        before = at
        distinct.update(blocks)
        if len(distinct) > MAX_DISTINCT_BLOCKS:
            raise UserError(f"{trace.name}: more than {MAX_DISTINCT_BLOCKS:,} different blocks; cut the file into parts")
    if not prompts:
        raise UserError(f"{trace.name} has no requests")
    gaps, seconds = max(1, len(prompts) - 1), before
    mean = total / gaps
    variance = max(0.0, squares / gaps - mean * mean)
    whole = minutes[:-1] or minutes  # the last minute is seldom whole
    found = tuple(hits(trace, CACHE_SIZES, trace.block)) if distinct and reuse else ()
    return TraceFacts(
        name=trace.name, kind=trace.kind, changed=trace.words, requests=len(prompts), seconds=seconds,
        rate=len(prompts) / seconds if seconds else math.inf, busiest=max(whole) / 60, quietest=min(whole) / 60,
        burst=math.sqrt(variance) / mean if mean else 0.0, prompt=Spread.of(prompts), output=Spread.of(outputs), longest=longest,
        block=trace.block if distinct else 0, reuse=found, worth=_worth(trace, found, len(distinct)) if found else None,
        minutes=tuple(minutes),
    )  # fmt: skip


def _worth(trace: Trace, reuse: Sequence[Reuse], distinct: int) -> Reuse | None:
    """Return the smallest cache, by doubling, that has most of the hits of an endless one; None where nothing is found again."""
    endless = next(one.hits for one in reuse if not one.blocks)
    if not endless:
        return None
    sizes = [2**i for i in range(8, 40) if 2**i < distinct]
    found = hits(trace, sizes, trace.block)
    enough = [one for one in found if one.hits >= WORTH_SHARE * endless]
    return enough[0] if enough else Reuse(blocks=distinct, tokens=distinct * trace.block, hits=endless)


def hits(requests: Iterable[Request], sizes: Sequence[int], block: int) -> list[Reuse]:
    """Return the share of blocks that caches of these sizes have when a request arrives: its first blocks up to the first missing one."""
    caches = [OrderedDict[int, None]() for _ in sizes]
    found = [0] * len(sizes)
    asked = 0
    for request in requests:
        asked += len(request.blocks)
        for i, (cache, size) in enumerate(zip(caches, sizes, strict=True)):
            for number in request.blocks:
                if number not in cache:
                    break
                found[i] += 1
            for number in request.blocks:
                if number in cache:
                    cache.move_to_end(number)
                else:
                    cache[number] = None
            while size and len(cache) > size:
                cache.popitem(last=False)
    return [
        Reuse(blocks=size, tokens=size * block, hits=count / asked if asked else 0.0)
        for size, count in zip(sizes, found, strict=True)
    ]
