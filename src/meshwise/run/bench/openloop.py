"""An open loop against an endpoint: requests that arrive at random, whether or not earlier ones are done; goodput under targets."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from meshwise.cost.serve.load.requests import Load, Percentiles, Targets, gaps, percentiles
from meshwise.run.bench import client
from meshwise.run.bench.endpoint import LETTERS, Endpoint, describe_fault, probe, until_stopped
from meshwise.run.bench.speeds import MIN_SECONDS, Measured, Setting, run_of, tokens_of
from meshwise.run.bench.stream import Reply

SATURATED_SHARE = 0.9  # share of the offered requests below which the goodput shows that an endpoint is saturated
MAX_RAMP_STEPS = 12  # rates of a ramp, each twice the one before


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Rates and latencies of an endpoint at one rate. Rates per second, times in seconds."""

    offered: float
    finished: float
    goodput: float  # requests per second that met all targets; all finished ones where there are none
    output_rate: float
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    measured: Measured

    @property
    def saturated(self) -> bool:
        return self.goodput < SATURATED_SHARE * self.offered

    def line(self) -> str:
        """Return the outcome in one sentence."""
        words = (f"{name} {1e3 * p.p50:.0f}, {1e3 * p.p95:.0f}, {1e3 * p.p99:.0f} ms" for name, p in self._times())
        return (
            f"{self.offered:.3g} requests/s offered: {self.finished:.3g} finished, goodput {self.goodput:.3g}, "
            f"{self.output_rate:,.0f} output tokens/s; p50, p95, p99 of {'; '.join(words)}"
        )

    def _times(self) -> tuple[tuple[str, Percentiles], ...]:
        return ("TTFT", self.ttft), ("time per token", self.tpot), ("requests", self.e2e)


def lengths_of(load: Load, number: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return prompt and output tokens of `number` requests."""
    return list(zip(load.prompt.draw(rng, number), load.output.draw(rng, number), strict=True))


async def drive(endpoint: Endpoint, load: Load, targets: Targets, number: int, rng: random.Random, found: list[Outcome]) -> None:
    """Send `number` requests at the load's rate, and wait for all of them. `found` gets the outcome, also where it is stopped."""
    shared = endpoint.words_for(round(load.prompt.mean * load.prefix)) if load.prefix else 0
    prefix = " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(shared))
    waiting = gaps(rng, number, load.rate, load.burst)
    sizes = lengths_of(load, number, rng)
    begun = perf_counter()
    tasks: list[asyncio.Task[Reply]] = []
    due = begun
    try:
        for gap, (prompt, output) in zip(waiting, sizes, strict=True):
            due += gap
            words = max(1, endpoint.words_for(prompt) - shared)
            request = endpoint.request(words, output, rng, prefix)
            await asyncio.sleep(max(0.0, due - perf_counter()))
            asked = client.ask(endpoint.where, "POST", endpoint.path, request, patience=endpoint.patience, tokens=output)
            tasks.append(asyncio.create_task(asked))
        await asyncio.gather(*tasks)
    finally:  # stopped or not, what was answered is kept
        answered = [(task, size) for task, size in zip(tasks, sizes, strict=False) if task.done() and not task.cancelled()]
        if answered:
            of, replies = [size for _, size in answered], [task.result() for task, _ in answered]
            found.append(outcome(endpoint, load, targets, of, replies, perf_counter() - begun))


def outcome(
    endpoint: Endpoint, load: Load, targets: Targets, sizes: Sequence[tuple[int, int]], replies: Sequence[Reply], seconds: float
) -> Outcome:
    """Return rates and percentiles of the requests that completed, and the faults of the others."""
    done = [(reply, output) for reply, (_, output) in zip(replies, sizes, strict=True) if reply.complete and reply.arrivals]
    faults = Counter(describe_fault(endpoint.where, reply) for reply in replies if not reply.complete)
    counts = [tokens_of(reply, output)[0] for reply, output in done]
    times = [_times(reply, tokens) for (reply, _), tokens in zip(done, counts, strict=True)]
    good = sum(all(values[name] <= target.seconds for name, target in targets.named.items()) for values in times)
    in_flight = sum(values["e2e"] for values in times) / max(seconds, MIN_SECONDS)
    setting = Setting(prompt=round(load.prompt.mean), output=round(load.output.mean), users=max(1, round(in_flight)))
    alone = replace(
        setting, users=1, output=max(output for _, output in sizes)
    )  # arrivals need not meet: nothing is said of that
    runs = (run_of([reply for reply, _ in done], alone),) if done else ()
    short = sum(tokens < output for tokens, (_, output) in zip(counts, done, strict=True))
    notes = [note for note in (runs[0].notes if runs else ()) if "outputs ended early" not in note]
    notes += [f"{short} of {len(done)} outputs ended early"] if short else []
    return Outcome(
        offered=load.rate, finished=len(done) / max(seconds, MIN_SECONDS), goodput=good / max(seconds, MIN_SECONDS),
        output_rate=sum(counts) / max(seconds, MIN_SECONDS), ttft=percentiles([values["ttft"] for values in times]),
        tpot=percentiles([values["tpot"] for values in times]), e2e=percentiles([values["e2e"] for values in times]),
        measured=Measured(setting=setting, runs=runs, faults=dict(faults), notes=tuple(notes)),
    )  # fmt: skip


def _times(reply: Reply, tokens: int) -> dict[str, float]:
    """Return the latencies of one request by the names of targets."""
    last = reply.arrivals[-1] - reply.begun
    return {"ttft": reply.ttft, "tpot": (last - reply.ttft) / (tokens - 1) if tokens > 1 else 0.0, "e2e": last}


def bench(
    where: client.Address, load: Load, targets: Targets, *, model: str, requests: int, patience: float, seed: int, ramp: bool
) -> tuple[Endpoint, list[Outcome]]:
    """Probe an endpoint and drive it at the load's rate until a signal; `ramp`: at twice the rate again and again until saturated."""
    rng, up, found = random.Random(seed), list[Endpoint](), list[Outcome]()

    async def probe_and_drive() -> None:
        up.append(await probe(where, model, patience, rng))
        await drive(up[0], load, targets, requests, rng, found)
        while ramp and not found[-1].saturated and found[-1].finished and len(found) < MAX_RAMP_STEPS:
            await drive(up[0], replace(load, rate=2 * found[-1].offered), targets, requests, rng, found)

    return until_stopped(probe_and_drive(), up, found)
