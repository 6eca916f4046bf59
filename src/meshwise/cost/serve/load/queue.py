"""The queue of prompts beside a constant number of decoding requests: when each prompt ends, for the percentiles of TTFT."""

import math
import random
from functools import lru_cache
from itertools import accumulate, pairwise

from meshwise.cost.serve.load.requests import Lengths, Load, gaps

SAMPLED_REQUESTS = 800  # requests whose prompts are queued for the percentiles


def arrivals(load: Load, rate: float, burst: float) -> list[tuple[float, float]]:
    """Return (time, prompt tokens) of requests."""
    computed = 1 - load.prefix
    return [(time / rate, prompt * computed) for time, prompt in zip(_times(burst), _prompts(load.prompt), strict=True)]


@lru_cache(maxsize=32)
def _times(burst: float) -> tuple[float, ...]:
    """Return the times of arrivals at one request per second."""
    return tuple(accumulate(gaps(random.Random(0), SAMPLED_REQUESTS, 1.0, burst)))


@lru_cache(maxsize=32)
def _prompts(lengths: Lengths) -> tuple[int, ...]:
    """Return prompt tokens of as many requests."""
    return tuple(lengths.draw(random.Random(1), SAMPLED_REQUESTS))


def queued(
    arrivals: list[tuple[float, float]], plain: float, lines: list[tuple[float, float]], room: float, *, users: int
) -> list[float]:
    """Return the time from each arrival to the end of its prompt. Prompts join the pass after their arrival, in order, `room` tokens a
    pass; without prompts, passes take `plain` seconds. With `users`, arrivals are in passes, not seconds, and at most that many queue."""
    now, passes, index, times = 0.0, 0, 0, [0.0] * len(arrivals)
    queue: list[tuple[int, float, float]] = []
    head = 0
    while index < len(arrivals) or head < len(queue):
        if head == len(queue):
            wait = arrivals[index][0] - (passes if users else now)
            skipped = max(0, math.ceil(wait if users else wait / plain if plain else 0))
            now += skipped * plain if users or plain else max(0.0, wait)
            passes += skipped
        clock = passes if users else now
        while index < len(arrivals) and arrivals[index][0] <= clock and not 0 < users <= len(queue) - head:
            queue.append((index, arrivals[index][1], now if users else arrivals[index][0]))
            index += 1
        left, ended = room, head
        while ended < len(queue) and queue[ended][1] <= left:
            left -= queue[ended][1]
            ended += 1
        if ended < len(queue):
            queue[ended] = (queue[ended][0], queue[ended][1] - left, queue[ended][2])
            left = 0.0
        now += _interpolated(lines, room - left)
        passes += 1
        for number, _, since in queue[head:ended]:
            times[number] = now - since
        head = ended
    return times


def _interpolated(lines: list[tuple[float, float]], tokens: float) -> float:
    """Return the seconds of a pass with this many prompt tokens, between the nearest of `lines`."""
    for (low, before), (high, after) in pairwise(lines):
        if tokens <= high:
            return before + (after - before) * max(0.0, tokens - low) / (high - low)
    return lines[-1][1]
