"""Measure an endpoint that speaks OpenAI's protocol: find the fields it accepts, warm it up, and time each setting several times."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

from meshwise.errors import DoesNotFit, UserError
from meshwise.run.bench import client
from meshwise.run.bench.client import Address
from meshwise.run.bench.speeds import Measured, Run, Setting, run_of
from meshwise.run.bench.stream import Reply

Result = TypeVar("Result")
EXTRAS: dict[str, Any] = {"ignore_eos": True, "cache_prompt": False}
"""Fields of llama.cpp, vLLM and SGLang beyond OpenAI's protocol: generate to the requested length, use no cached prompt."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROBES = (8, 40)  # words in two prompts, to find the number of tokens per word
FAULTS = {
    "dropped": "dropped the connection", "malformed": "sent an invalid event stream", "status": "refused",
    "silent": "did not answer in time", "refused": "could not be reached", "empty": "sent no text",
    "flooded": "sent far more than was asked for",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint, with the path and fields that it accepts."""

    where: Address
    model: str
    path: str = "/v1/completions"
    extras: bool = True
    words: tuple[float, float] = (1.0, 0.0)  # tokens per random word, and tokens that every prompt has in addition
    patience: float = 120.0

    def request(self, words: int, output: int, rng: random.Random, prefix: str = "") -> dict[str, Any]:
        """Return a streamed request with a prompt that was never sent before, after a `prefix` that may have been."""
        text = " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(max(1, words)))
        return self.asking(f"{prefix} {text}" if prefix else text, output, cached=bool(prefix))

    def asking(self, text: str, output: int, *, cached: bool) -> dict[str, Any]:
        """Return a streamed request with this prompt; `cached`: the engine may find its beginning in its cache."""
        body = {"messages": [{"role": "user", "content": text}]} if "chat" in self.path else {"prompt": text}
        request: dict[str, Any] = {"model": self.model, **body, "max_tokens": output, "temperature": 0.0, "stream": True}
        extras = EXTRAS | {"cache_prompt": cached} if self.extras else {}
        return request | {"stream_options": {"include_usage": True}} | extras

    def words_for(self, tokens: int) -> int:
        """Return the number of random words that make a prompt of this many tokens."""
        each, fixed = self.words
        return max(1, round((tokens - fixed) / each))


async def probe(where: Address, model: str, patience: float, rng: random.Random) -> Endpoint:
    """Find the model that it serves, the path and fields that it accepts, and the number of tokens per word."""
    deadline = perf_counter() + patience  # of all these requests together

    async def ask(method: str, path: str, values: dict[str, Any] | None = None) -> Reply:
        return await client.ask(where, method, path, values, patience=max(0.0, deadline - perf_counter()), tokens=2)

    models = await ask("GET", "/v1/models")
    _check_reached(where, models)
    endpoint = Endpoint(where=where, model=model or _first_model(models), patience=patience)
    for path in ("/v1/completions", "/v1/chat/completions"):
        for extras in (True, False):
            trial = replace(endpoint, path=path, extras=extras)
            reply = await ask("POST", path, trial.request(PROBES[0], 2, rng))
            if reply.complete:
                more = await ask("POST", path, trial.request(PROBES[1], 2, rng))
                return replace(trial, words=_words(reply, more))
            _check_reached(where, reply)
            if reply.fault != "status" or reply.status in (404, 405):
                break
        if reply.fault != "status":
            break
    raise DoesNotFit(f"{where.url}: {describe_fault(where, reply)}")


def _check_reached(where: Address, reply: Reply) -> None:
    """Refuse an endpoint that cannot be reached, or that rejects the key."""
    if reply.fault in ("refused", "silent") or (reply.fault == "dropped" and not reply.status):
        words = f" ({where.redact(reply.message)})" if reply.message else ""
        raise UserError(f"{where.url} {FAULTS[reply.fault]}{words}; is the engine running there?")
    if reply.status in (401, 403):
        why = "rejects the key" if where.key else "needs a key: name the environment variable that holds it with --key-env"
        raise UserError(f"{where.url} {why} (HTTP {reply.status})")


def _first_model(listed: Reply) -> str:
    """Return the name of its first model; an endpoint that lists none accepts any name, or reports an error."""
    models = (listed.body or {}).get("data")
    first: Any = models[0] if isinstance(models, list) and models else {}  # pyright: ignore[reportUnknownVariableType]
    name = first.get("id") if isinstance(first, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return name if isinstance(name, str) else "default"


def _words(few: Reply, many: Reply) -> tuple[float, float]:
    if few.prompt is None or many.prompt is None or many.prompt <= few.prompt:
        return 1.0, 0.0  # it does not count prompt tokens: assume a token per word
    each = (many.prompt - few.prompt) / (PROBES[1] - PROBES[0])
    return each, few.prompt - PROBES[0] * each


def describe_fault(where: Address, reply: Reply) -> str:
    """Return a fault in a few words; none of the endpoint's own if they hold part of the key."""
    status = f" with HTTP {reply.status}" if reply.fault == "status" and reply.status != 200 else ""
    words = f": {where.redact(reply.message)}" if reply.message else ""
    return f"the endpoint {FAULTS.get(reply.fault, reply.fault)}{status}{words}"


AfterRepeat = Callable[[Setting, int], None]  # called after every repeat; repeat 0 is the warm-up
AfterSetting = Callable[[Endpoint, list[Measured]], None]  # called after every setting with all that is measured so far


async def measure(
    endpoint: Endpoint, settings: Sequence[Setting], repeats: int, rng: random.Random, progress: AfterRepeat,
    results: list[Measured], kept: AfterSetting,
) -> None:  # fmt: skip
    """Run each setting once to warm up, then `repeats` times. Where requests fail, the faults are kept and the next setting follows.
    `results` gets each setting when it is done; the last one where the measurement is stopped, if a repeat of it was done."""
    for setting in settings:
        runs: list[Run] = []
        faults: Counter[str] = Counter()
        whole = False
        try:
            for repeat in range(repeats + 1):
                words = endpoint.words_for(setting.prompt)
                requests = [endpoint.request(words, setting.output, rng) for _ in range(setting.users)]
                replies = await client.ask_all(endpoint.where, endpoint.path, requests, patience=endpoint.patience)
                failed = [describe_fault(endpoint.where, reply) for reply in replies if not reply.complete]
                faults.update(failed)
                if repeat and not failed:
                    runs.append(run_of(replies, setting))
                progress(setting, repeat)
                if len(failed) == setting.users:
                    break  # the next repeat would fail too, perhaps after all of `patience`
            whole = True
        finally:
            if whole or runs:
                notes = dict.fromkeys(note for run in runs for note in run.notes)
                results.append(Measured(setting=setting, runs=tuple(runs), faults=dict(faults), notes=tuple(notes)))
        kept(endpoint, results)


class Stopped(Exception):
    """A measurement was stopped; `kept` was measured until then."""

    def __init__(self, kept: tuple[Endpoint, list[Any]]) -> None:
        super().__init__("stopped")
        self.kept = kept


def until_stopped(measuring: Coroutine[Any, Any, None], up: list[Endpoint], found: list[Result]) -> tuple[Endpoint, list[Result]]:
    """Run what probes an endpoint and measures it, and return both. Stopped, with what was measured, where a signal ends it."""
    try:
        asyncio.run(measuring)
    except KeyboardInterrupt:
        if not found:
            raise
        raise Stopped((up[0], found)) from None
    return up[0], found


def bench(
    where: Address, settings: Sequence[Setting], *, model: str, repeats: int, patience: float, seed: int, progress: AfterRepeat,
    kept: AfterSetting,
) -> tuple[Endpoint, list[Measured]]:  # fmt: skip
    """Probe an endpoint and measure all settings. Stopped, with what was measured, where a signal ends it."""
    rng, found, results = random.Random(seed), list[Endpoint](), list[Measured]()

    async def probe_and_measure() -> None:
        found.append(await probe(where, model, patience, rng))
        await measure(found[0], settings, repeats, rng, progress, results, kept)

    return until_stopped(probe_and_measure(), found, results)
