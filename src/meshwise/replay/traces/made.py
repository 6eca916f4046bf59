"""Traces from stated distributions: a course of the day, bursts, sessions with growing context, agents with tool calls."""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from meshwise.errors import UserError, quoted
from meshwise.replay.traces.request import MAX_REQUESTS, Request
from meshwise.replay.traces.trace import BLOCK_TOKENS, Trace

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of requests that people send: lengths are log-normal with these medians and spreads (of the logarithm)."""

    first: tuple[float, float]  # tokens of the first prompt of a session after the system's, and their spread
    more: tuple[float, float]  # tokens that each further turn adds to what was said
    output: tuple[float, float]
    turns: float  # mean turns of a session, geometric
    pause: tuple[float, float]  # seconds between an answer's request and the next turn, and their spread
    system: int  # tokens that all prompts begin with
    words: str


KINDS = {
    "conversation": Kind(first=(300, 1.2), more=(120, 1.0), output=(250, 0.8), turns=4, pause=(45, 0.9), system=512,
                         words="chats whose context grows with every turn"),
    "code": Kind(first=(1800, 0.8), more=(200, 0.8), output=(24, 0.8), turns=3, pause=(8, 1.2), system=256,
                 words="completions of code: long prompts, short outputs"),
    "agent": Kind(first=(1500, 0.8), more=(700, 1.1), output=(120, 0.7), turns=12, pause=(4, 1.0), system=2048,
                  words="agents that call tools: many turns, each adds the result of a tool"),
    "batch": Kind(first=(1000, 0.6), more=(1, 0.1), output=(200, 0.6), turns=1, pause=(1, 0.1), system=0,
                  words="independent requests"),
}  # fmt: skip
"""Medians are choices near published services: Azure's chats and code (2023), Mooncake's conversations, and tool loops of coding agents."""


def make(kind: str, rate: float, seconds: float, *, day: float = 0.0, burst: float = 1.0, seed: int = 0) -> Trace:
    """Return a trace of a kind at a mean rate; `day`: its swing over 24 hours; `burst`: deviation over mean of times between sessions."""
    if kind not in KINDS:
        raise UserError(f"--make {quoted(kind)}: expected one of {', '.join(KINDS)}")
    if not rate or not seconds:
        raise UserError("--make needs --rate and --hours, such as --rate 5/s --hours 24")
    if rate * seconds > MAX_REQUESTS:
        raise UserError(f"--make: {rate * seconds:,.0f} requests; expected at most {MAX_REQUESTS:,}")
    words = f"made: {KINDS[kind].words}; {rate:g}/s"
    source = partial(_requests, KINDS[kind], rate, seconds, day, burst, seed)
    return Trace(f"{kind} made with seed {seed}", words, source, BLOCK_TOKENS)


def _requests(kind: Kind, rate: float, seconds: float, day: float, burst: float, seed: int) -> Iterator[Request]:
    """Yield the requests of all sessions in order of time. Turns wait in a heap until no earlier one can come."""
    rng, blocks = random.Random(seed), _Blocks(kind.system)
    waiting: list[tuple[float, int, Request, int, int]] = []
    for number, begin in enumerate(_starts(rng, rate / kind.turns, seconds, day, burst), 1):
        while waiting and waiting[0][0] <= begin:
            yield from _sent(waiting, kind, rng, blocks, seconds)
        turns = 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / kind.turns)) if kind.turns > 1 else 1
        prompt = kind.system + _tokens(rng, kind.first)
        first = Request(begin, prompt, _tokens(rng, kind.output), blocks.of(number, prompt))
        heapq.heappush(waiting, (begin, number, first, number, turns))
    while waiting:
        yield from _sent(waiting, kind, rng, blocks, seconds)


def _sent(
    waiting: list[tuple[float, int, Request, int, int]], kind: Kind, rng: random.Random, blocks: "_Blocks", seconds: float
) -> Iterator[Request]:
    """Yield the next request, and queue the turn after it."""
    at, order, request, session, turns = heapq.heappop(waiting)
    yield request
    later = at + rng.lognormvariate(math.log(kind.pause[0]), kind.pause[1])
    if turns > 1 and later < seconds:
        prompt = request.prompt + request.output + _tokens(rng, kind.more)
        turn = Request(later, prompt, _tokens(rng, kind.output), blocks.of(session, prompt))
        heapq.heappush(waiting, (later, order, turn, session, turns - 1))


def _starts(rng: random.Random, rate: float, seconds: float, day: float, burst: float) -> Iterator[float]:
    """Yield the starts of sessions: gaps of a gamma distribution, shorter where the day is busy."""
    at, shape = 0.0, 1 / burst**2
    while True:
        now = rate * (1 - day * math.cos(2 * math.pi * at / DAY))
        at += rng.gammavariate(shape, 1 / shape) / max(now, 1e-9)
        if at >= seconds:
            return
        yield at


def _tokens(rng: random.Random, lengths: tuple[float, float]) -> int:
    median, spread = lengths
    return max(1, min(2**20, round(rng.lognormvariate(math.log(median), spread))))


class _Blocks:
    """Ids of blocks: those of the system's prompt are the same for all sessions, later ones belong to one."""

    def __init__(self, system: int) -> None:
        self.common = system // BLOCK_TOKENS

    def of(self, session: int, prompt: int) -> tuple[int, ...]:
        number = math.ceil(prompt / BLOCK_TOKENS)
        return tuple(i if i < self.common else session * 2**12 + i for i in range(number))
