"""Measure an endpoint that speaks OpenAI's protocol: find out what it takes, warm it up, and time settings over and over."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise import units
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.run.bench import client
from meshwise.run.bench.client import Address
from meshwise.run.bench.speeds import Measured, Run, Setting, run_of
from meshwise.run.bench.stream import Reply

EXTRAS: dict[str, Any] = {"ignore_eos": True, "cache_prompt": False}
"""What llama.cpp, vLLM and SGLang understand beyond OpenAI's protocol: go on to the asked length, read every prompt anew."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROBES = (8, 40)
"""Words of the two prompts that tell how many tokens a word is."""
FAULTS = {
    "dropped": "dropped the connection",
    "malformed": "sent what is no event stream",
    "status": "refused",
    "silent": "did not answer in time",
    "refused": "could not be reached",
    "empty": "sent no text",
}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What is known of an endpoint after it was asked."""

    where: Address
    model: str
    path: str = "/v1/completions"
    extras: bool = True
    words: tuple[float, float] = (1.0, 0.0)
    """Tokens per made-up word, and those that every prompt has beside."""
    patience: float = 120.0

    def request(self, words: int, output: int, rng: random.Random) -> dict[str, Any]:
        """A prompt that was never sent before, streamed."""
        text = " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(max(1, words)))
        asked = {"messages": [{"role": "user", "content": text}]} if "chat" in self.path else {"prompt": text}
        found: dict[str, Any] = {"model": self.model, **asked, "max_tokens": output, "temperature": 0.0, "stream": True}
        return found | {"stream_options": {"include_usage": True}} | (EXTRAS if self.extras else {})

    def words_for(self, tokens: int) -> int:
        each, fixed = self.words
        return max(1, round((tokens - fixed) / each))


async def probe(where: Address, model: str, patience: float, rng: random.Random) -> Endpoint:
    """The model that it serves, the protocol that it speaks, and the tokens that its words make."""
    listed = await client.ask(where, "GET", "/v1/models", patience=patience)
    _check_reached(where, listed)
    found = Endpoint(where=where, model=model or _first_model(listed), patience=patience)
    for path in ("/v1/completions", "/v1/chat/completions"):
        for extras in (True, False):
            trial = replace(found, path=path, extras=extras)
            seen = await client.ask(where, "POST", path, trial.request(PROBES[0], 2, rng), patience=patience)
            if seen.complete:
                more = await client.ask(where, "POST", path, trial.request(PROBES[1], 2, rng), patience=patience)
                return replace(trial, words=_words(seen, more))
            _check_reached(where, seen)
            if seen.fault != "status" or seen.status in (404, 405):
                break
        if seen.fault != "status":
            break
    raise DoesNotFit(f"{where.url}: {described(where, seen)}")


def _check_reached(where: Address, seen: Reply) -> None:
    if seen.fault in ("refused", "silent") or (seen.fault == "dropped" and not seen.status):
        words = f" ({where.hides(seen.words)})" if seen.words else ""
        raise UserError(f"{where.url} {FAULTS[seen.fault]}{words}; is the engine running there?")
    if seen.status in (401, 403):
        told = "does not take the key" if where.key else "wants a key: put it into the variable that --key-env names"
        raise UserError(f"{where.url} {told} (HTTP {seen.status})")


def _first_model(listed: Reply) -> str:
    """What it calls its model; an endpoint that lists none takes any name, or says so."""
    models = (listed.body or {}).get("data")
    first: Any = models[0] if isinstance(models, list) and models else {}  # pyright: ignore[reportUnknownVariableType]
    name = first.get("id") if isinstance(first, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return name if isinstance(name, str) else "default"


def _words(few: Reply, many: Reply) -> tuple[float, float]:
    if few.prompt is None or many.prompt is None or many.prompt <= few.prompt:
        return 1.0, 0.0  # it does not count prompts: a word is taken for a token
    each = (many.prompt - few.prompt) / (PROBES[1] - PROBES[0])
    return each, few.prompt - PROBES[0] * each


def described(where: Address, seen: Reply) -> str:
    """A fault in a few words, without the key whatever the endpoint echoes."""
    status = f" with HTTP {seen.status}" if seen.fault == "status" and seen.status != 200 else ""
    words = f": {where.hides(seen.words)}" if seen.words else ""
    return f"the endpoint {FAULTS.get(seen.fault, seen.fault)}{status}{words}"


Progress = Callable[[Setting, int], None]
"""Told of every repeat that ended; repeat 0 is the warm-up."""


async def measure(
    endpoint: Endpoint, settings: Sequence[Setting], repeats: int, rng: random.Random, progress: Progress
) -> list[Measured]:
    """Each setting once to warm up, then `repeats` times. A setting whose requests fail is told, and the others go on."""
    found: list[Measured] = []
    for setting in settings:
        runs: list[Run] = []
        faults: Counter[str] = Counter()
        for number in range(repeats + 1):
            words = endpoint.words_for(setting.prompt)
            asked = [endpoint.request(words, setting.output, rng) for _ in range(setting.users)]
            replies = await client.together(endpoint.where, endpoint.path, asked, patience=endpoint.patience)
            failed = [described(endpoint.where, reply) for reply in replies if not reply.complete]
            faults.update(failed)
            if number and not failed:
                runs.append(run_of(replies, setting))
            progress(setting, number)
            if len(failed) == setting.users:
                break  # it will not get better, and may take all of its patience every time
        notes = dict.fromkeys(note for run in runs for note in run.notes)
        found.append(Measured(setting=setting, runs=tuple(runs), faults=dict(faults), notes=tuple(notes)))
    return found


def bench(
    where: Address, settings: Sequence[Setting], *, model: str, repeats: int, patience: float, seed: int, progress: Progress
) -> tuple[Endpoint, list[Measured]]:
    """All settings of one endpoint."""
    rng = random.Random(seed)

    async def whole() -> tuple[Endpoint, list[Measured]]:
        endpoint = await probe(where, model, patience, rng)
        return endpoint, await measure(endpoint, settings, repeats, rng, progress)

    return asyncio.run(whole())


def listed(text: str, flag: str) -> list[int]:
    """'1,2,4..64': numbers, and ranges that double (as --vary has them)."""
    found: list[int] = []
    for piece in text.split(","):
        low, dots, high = (word.strip() for word in piece.partition(".."))
        try:
            first = units.whole_length(low)
            last = units.whole_length(high) if dots else first
        except UserError:
            first, last = 0, 0
        if not 0 < first <= last or last > 2**24:
            raise UserError(f"{flag} {quoted(text)}: expected whole numbers such as 1,2,4..64")
        while first <= last:
            found.append(first)
            first *= 2
    return list(dict.fromkeys(found))
