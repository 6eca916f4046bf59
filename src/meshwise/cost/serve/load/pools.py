"""Prefill/decode disaggregation: prompts are computed by replicas of their own, which send their cache to the replicas that generate.

A request waits for its prompt in one pool, for the transfer of its cache, and generates in the other pool, whose passes no prompt delays.
The slower pool sets the highest rate.
"""

import math
from dataclasses import dataclass, replace

from meshwise.cost.serve.load.estimate import Estimator, estimate, flat, highest_rate
from meshwise.cost.serve.load.requests import Lengths, Limits, Load, Report
from meshwise.cost.serve.passes.speed import PassCost

BISECTION_ROUNDS = 24  # steps of the bisection for the request rate of a closed loop
CLOSED_LOOP_RATE_SHARE = 0.995
"""Share of the highest rate that a closed loop is taken to reach: its users wait, so that no queue grows without end."""


@dataclass(frozen=True)
class PromptPool:
    """The replicas that compute prompts, as one replica that generates sees them."""

    cost: PassCost
    limits: Limits
    share: float  # replicas of this pool for each replica that generates
    transfer: float  # seconds in which the cache of a mean prompt moves to the other pool


def prompts_of(load: Load, rate: float) -> Load:
    """Return the load of a replica that computes prompts: one output token each, at `rate` requests per second."""
    return replace(load, output=Lengths(1.0), users=0, rate=rate, requests=0, draft=0, accept=0.0)


def outputs_of(load: Load, rate: float) -> Load:
    """Return the load of a replica that generates: the prompt is in its cache, and the first token is there."""
    output = replace(load.output, mean=max(1.0, load.output.mean - 1), samples=())
    depth = load.depth + round(load.prompt.mean)
    return replace(load, prompt=Lengths(0.0), prefix=0.0, depth=depth, output=output, users=0, rate=rate, requests=0)


def most_prompts(cost: PassCost, load: Load, limits: Limits) -> float:
    """Return the most prompts per second of one replica: passes full of them."""
    if limits.running(prompts_of(load, 1.0)) < 1:
        return 0.0
    full = max(1, int(limits.tokens // max(1.0, load.computed)))
    return Estimator(cost, replace(prompts_of(load, 0.0), users=full), limits).with_running(float(full)).rate


def highest_pooled_rate(cost: PassCost, load: Load, limits: Limits, pool: PromptPool) -> float:
    """Return the most requests per second of one replica that generates and its share of the prompt pool."""
    prompts = pool.share * most_prompts(pool.cost, load, pool.limits)
    return min(prompts, highest_rate(cost, outputs_of(load, 1.0), limits))


def pooled(cost: PassCost, load: Load, limits: Limits, pool: PromptPool, *, detailed: bool = True) -> Report | None:
    """Return throughput and latency of one replica that generates and its share of the prompt pool; None if they cannot serve the rate."""
    most = highest_pooled_rate(cost, load, limits, pool)
    if not most or load.rate >= most:
        return None
    if load.rate:
        return _at(cost, load, limits, pool, load.rate, detailed)
    low, high = 0.0, most * CLOSED_LOOP_RATE_SHARE
    for _ in range(BISECTION_ROUNDS):
        middle = (low + high) / 2
        found = _at(cost, load, limits, pool, middle, False)
        low, high = (middle, high) if found and middle * found.e2e.mean < load.users else (low, middle)
        if high - low < 1e-3 * high:
            break
    rate = max(low, 1e-3 * most)
    found = _at(cost, load, limits, pool, rate, detailed)
    waiting = max(0.0, load.users / rate - found.e2e.mean) if found else 0.0
    if found and low >= most * CLOSED_LOOP_RATE_SHARE * 0.99:  # the pools are full, and users wait for their turn
        found = replace(found, ttft=found.ttft.plus(flat(waiting)), e2e=found.e2e.plus(flat(waiting)))
    return found


def _at(cost: PassCost, load: Load, limits: Limits, pool: PromptPool, rate: float, detailed: bool) -> Report | None:
    """Return both pools at a rate of requests to the replica that generates."""
    first = estimate(pool.cost, prompts_of(load, rate / pool.share), pool.limits, detailed=True)
    rest = estimate(cost, outputs_of(load, rate), limits, detailed=detailed)
    if first is None:  # between passes of one prompt each and full ones: the queue makes passes full
        first = _full_passes(pool, load, rate / pool.share)
    if rest is None or first is None:
        return None
    moved = flat(pool.transfer)
    ttft = first.ttft.plus(moved)
    return Report(
        requests=rate, output_rate=rate * max(1.0, load.output.mean), input_rate=rate * load.prompt.mean, running=rest.running,
        waiting=rate * ttft.mean + rest.waiting, ttft=ttft, tpot=rest.tpot, itl=rest.itl, e2e=ttft.plus(rest.e2e),
    )  # fmt: skip


def _full_passes(pool: PromptPool, load: Load, rate: float) -> Report | None:
    """Return prompts at a rate that only passes with several of them serve: a closed loop of as many users as that needs."""
    if rate >= most_prompts(pool.cost, load, pool.limits):
        return None
    users = 1
    while users < 1 << 16:
        found = estimate(pool.cost, replace(prompts_of(load, 0.0), users=users), pool.limits, detailed=False)
        if found and found.requests >= rate:
            return found
        users *= 2
    return None


def transfer_seconds(token_bytes: float, tokens: float, bandwidth: float, latency: float, devices: int) -> float:
    """Return the seconds in which the cache of a prompt moves from one replica to another: each of `devices` devices sends its part.
    Worked: 2,048 tokens of Llama 3 70B in 16 bits are 2,048 x 320 KiB = 671 MB: 21 ms over four links of 8 GB/s each."""
    return latency + token_bytes * tokens / (bandwidth * devices) if bandwidth else math.inf
