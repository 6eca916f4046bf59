"""A trace at an endpoint: each request at its time, with a prompt of its length that shares those prefixes that the trace shares."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from meshwise.cost.serve.load.requests import Lengths, Load, Targets
from meshwise.replay.traces.request import Request
from meshwise.run.bench import client, openloop
from meshwise.run.bench.endpoint import LETTERS, Endpoint, probe, until_stopped
from meshwise.run.bench.openloop import Outcome
from meshwise.run.bench.speeds import tokens_of
from meshwise.run.bench.stream import Reply

WORD = 4  # letters of a word


@dataclass(frozen=True)
class Bounds:
    """What a bench may send at most."""

    requests: int
    seconds: float
    at_once: int  # requests that are open at once; further ones are not sent, and counted


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One request of a trace as it was measured. Seconds and tokens; `at` since the first was sent."""

    at: float
    prompt: int
    output: int
    cached: int
    ttft: float
    e2e: float
    blocks: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A trace as an endpoint answered it."""

    outcome: Outcome
    answered: tuple[Answered, ...]
    sent: int
    skipped: int  # requests that were not sent because too many were open
    late: float  # longest delay in seconds of a request behind its time, by this client


class Prompts:
    """Texts of prompts: a block of a trace is always the same words, other prompts were never sent before."""

    def __init__(self, endpoint: Endpoint, block: int, seed: int) -> None:
        self.endpoint, self.seed, self.rng = endpoint, seed, random.Random(seed)
        self.each = max(1, round(block / endpoint.words[0]))

    def text(self, request: Request) -> str:
        """Return the prompt of a request."""
        number = self.endpoint.words_for(request.prompt)
        words: list[str] = []
        for block in request.blocks:
            if len(words) < number:
                words += _words(random.Random(f"{self.seed} {block}"), self.each)
        return " ".join([*words[:number], *_words(self.rng, number - len(words))])


def _words(rng: random.Random, number: int) -> list[str]:
    return ["".join(rng.choices(LETTERS, k=WORD)) for _ in range(number)]


async def drive(
    endpoint: Endpoint, requests: Iterable[Request], prompts: Prompts, bounds: Bounds, targets: Targets, found: list[Traced]
) -> None:
    """Send requests at their times until the trace or a bound ends, and wait for the answers. `found` gets what was answered, also where
    it is stopped."""
    begun, late, skipped = perf_counter(), 0.0, 0
    tasks: list[tuple[Request, asyncio.Task[Reply]]] = []
    pending: set[asyncio.Task[Reply]] = set()
    try:
        for request in requests:
            if len(tasks) >= bounds.requests or request.at > bounds.seconds:
                break
            body = endpoint.asking(prompts.text(request), request.output, cached=bool(request.blocks))
            await asyncio.sleep(max(0.0, begun + request.at - perf_counter()))
            if len(pending) >= bounds.at_once:
                skipped += 1
                continue
            late = max(late, perf_counter() - begun - request.at)
            asked = client.ask(endpoint.where, "POST", endpoint.path, body, patience=endpoint.patience, tokens=request.output)
            task = asyncio.create_task(asked)
            pending.add(task)
            task.add_done_callback(pending.discard)
            tasks.append((request, task))
        await asyncio.gather(*(task for _, task in tasks))
    finally:  # stopped or not, what was answered is kept
        done = [(request, task.result()) for request, task in tasks if task.done() and not task.cancelled()]
        if done:
            found.append(_traced(endpoint, done, targets, perf_counter() - begun, (len(tasks), skipped, late)))


def _traced(
    endpoint: Endpoint, done: Sequence[tuple[Request, Reply]], targets: Targets, seconds: float, counts: tuple[int, int, float]
) -> Traced:
    sizes = [(request.prompt, request.output) for request, _ in done]
    span = max(done[-1][0].at - done[0][0].at, 1e-3)
    load = Load(
        prompt=Lengths.of([size[0] for size in sizes]), output=Lengths.of([size[1] for size in sizes]), rate=len(done) / span
    )
    outcome = openloop.outcome(endpoint, load, targets, sizes, [reply for _, reply in done], seconds)
    first = min(reply.begun for _, reply in done)
    answered = tuple(_answered(request, reply, first) for request, reply in done if reply.complete and reply.arrivals)
    return Traced(outcome=outcome, answered=answered, sent=counts[0], skipped=counts[1], late=counts[2])


def _answered(request: Request, reply: Reply, first: float) -> Answered:
    cached = max(reply.cached, int((reply.timings or {}).get("cache_n", 0)))
    return Answered(
        at=reply.begun - first, prompt=reply.prompt if reply.prompt is not None else request.prompt,
        output=tokens_of(reply, request.output)[0], cached=cached, ttft=reply.ttft, e2e=reply.arrivals[-1] - reply.begun,
        blocks=request.blocks,
    )  # fmt: skip


def bench(
    where: client.Address, requests: Iterable[Request], block: int, bounds: Bounds, targets: Targets, *, model: str, patience: float,
    seed: int,
) -> tuple[Endpoint, list[Traced]]:  # fmt: skip
    """Probe an endpoint and send it a trace. Stopped, with what was measured, where a signal ends it."""
    up, found = list[Endpoint](), list[Traced]()

    async def probe_and_drive() -> None:
        up.append(await probe(where, model, patience, random.Random(seed)))
        await drive(up[0], requests, Prompts(up[0], block, seed), bounds, targets, found)

    return until_stopped(probe_and_drive(), up, found)
