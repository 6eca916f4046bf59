"""The verdict on a serving file: whether its layout fits and how fast it is, and the best layout of the same question."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.export.check.ask import CheckAsk
from meshwise.export.check.changes import Change, applied, changes
from meshwise.export.check.contradictions import Finding, places
from meshwise.export.check.model import model_of, preset_of
from meshwise.export.check.train import cluster_of
from meshwise.export.check.verdict import Verdict
from meshwise.export.facts import Facts
from meshwise.export.program import Program
from meshwise.export.read.files import Reading, read_sources
from meshwise.export.serve import lengths, setup
from meshwise.export.source import Source
from meshwise.models.formats import FORMATS
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.choice import choice
from meshwise.plan.serve.search import Found, Option, search
from meshwise.units import GIB

AXES = ("tp", "pp", "replicas")
ONE_COPY = ("llama.cpp", "ollama")
"""Engines whose command starts one copy."""
CLOSE = 0.01
"""A layout within this share of the best needs no change."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """One layout of a served model with its memory and speed, in SI units; no speed where it does not fit."""

    name: str
    peak: float
    capacity: float
    axes: tuple[int, int, int]
    """tp, pp and copies."""
    users: int
    most_users: int
    """Requests that fit, each with its whole context."""
    per_user: float | None = None
    low: float | None = None
    high: float | None = None
    throughput: float | None = None
    ttft: float | None = None
    dollars_per_million: float | None = None

    def sentences(self) -> Iterator[str]:
        """Yield whether it fits, how fast it is, and what a million tokens cost."""
        word = "fits" if self.per_user is not None else "does not fit"
        memory = f"{self.peak / GIB:.1f} GiB of {self.capacity / GIB:.1f} on the fullest device"
        yield f"{word}: {memory}, with {self.users:,} requests at full context"
        if self.per_user is None:
            return
        yield (
            f"speed: {self.per_user:.3g} tokens/s per request (90%: {self.low:.3g} to {self.high:.3g}), {self.throughput:,.4g} in all, "
            f"first token after {self.ttft:.2g} s"
        )
        if self.dollars_per_million:
            yield f"${self.dollars_per_million:.2f} per million output tokens"


def judge(reading: Reading, ask: CheckAsk) -> Verdict:
    """Judge what a serving file says."""
    program, facts = reading.program, reading.facts
    facts = facts.adding(lengths.totals(facts))  # a manifest may say how many copies there are
    reading = replace(reading, facts=facts)
    found, why = _model(facts, ask.model)
    unknown = [f"model: {why}"] if found is None else []
    findings = list(_contradictions(facts, found))
    on, command = "", ""
    own = best = None
    notes = list(reading.notes)
    words: list[Change] = []
    if not ask.on:
        unknown.append("cluster: --on names it")
    elif found is not None:
        on, more = cluster_of(_counted(facts), ask.on)
        findings += more
        question = asked(program, facts, found, on, ask)
        command = question.command()
        unknown += _partly(facts, found)
        try:
            if not unknown:
                own, best, words, added = _predicted(reading, question, found)
                notes += added
        except UserError as error:
            unknown.append(str(error))
    done = _applied(reading, ask, words, best) if best is not None and words else {}
    return Verdict(
        program=program.name,
        title=program.title,
        version=program.version,
        kind=program.kind,
        files=reading.files,
        facts=facts,
        findings=tuple(findings),
        unknown=tuple(unknown),
        missing=reading.missing,
        notes=tuple(notes),
        on=on,
        own=own,
        best=best,
        fits=own.per_user is not None if own is not None else None,
        changes=tuple(words),
        patched=done,
        command=command,
    )


def _applied(reading: Reading, ask: CheckAsk, words: list[Change], best: Served) -> dict[str, str]:
    """Return the files with these changes, if reading them again gives the better layout."""

    def layout(texts: Mapping[str, str]) -> dict[str, int | str]:
        try:
            again = read_sources([Source(name, text) for name, text in texts.items()], ask.answers).facts
        except UserError:
            return {}
        return {name: again.whole(name, 1) for name in AXES}

    return applied(reading.texts, reading.facts, words, layout, dict(zip(AXES, best.axes, strict=True)))


def _model(facts: Facts, named: str) -> tuple[Model | None, str]:
    """Return the model: of a GGUF file by its name without the format."""
    text = str(facts.value("model") or "")
    if not named and text.endswith(".gguf"):
        plain = re.sub(
            r"[-._](?:i?q\d\w*|f16|bf16|f32|fp16|mxfp4)$", "", text.rpartition("/")[2].removesuffix(".gguf"), flags=re.IGNORECASE
        )
        named = preset_of(plain)
        if not named:
            return None, f"{text} is no preset: --model names one, or the .gguf"
    return model_of(facts, named)


def _format(facts: Facts) -> str:
    """Return the format of the weights, from the file or from the name of the model; '' where the engine's default is meant."""
    stated = facts.value("weights")
    if stated:
        return str(stated)
    name = str(facts.value("model") or "").rpartition("/")[2].removesuffix(".gguf")
    known = [fmt for fmt in FORMATS if re.search(rf"[-._]{re.escape(fmt)}$", name, flags=re.IGNORECASE)]
    return max(known, key=len, default="")


def _counted(facts: Facts) -> Facts:
    """Return the facts that choose a part of a cluster: the devices that the engine uses."""
    return facts if facts.whole("devices") else facts.without("nodes", "devices_per_node")


def asked(program: Program, facts: Facts, model: Model, on: str, ask: CheckAsk) -> ServeAsk:
    """Return the question that a file asks, in the words of `meshwise serve`, without its layout."""
    fmt = _format(facts)
    kv = str(facts.value("kv") or "f16")
    return ServeAsk(
        model=f"{model.name}:{fmt}" if fmt else model.name,
        on=on,
        users=facts.whole("users", 1) or 1,
        context=facts.whole("context"),
        engine=program.framework,
        kv={"bf16": "f16"}.get(kv, kv),
        price=ask.price,
        fix=("replicas=1",) if program.framework in ONE_COPY else (),
    )


def _fixed(facts: Facts, q: ServeQuestion) -> tuple[str, ...]:
    """Return the file's layout in the words of `--fix`. llama.cpp uses every card that it sees."""
    if q.engine.name not in ONE_COPY:
        return tuple(f"{name}={facts.whole(name, 1)}" for name in ("tp", "pp", "replicas"))
    named = str(facts.value("cards_used") or "")
    seen = facts.whole("devices_per_node") or len(q.cards)
    cards = 1 if facts.value("split") == "none" else len(named.split(",")) if named else min(seen, len(q.cards))
    return (f"cards={cards}", *([f"split={facts.value('split') or 'layer'}"] if cards > 1 else []))


def _partly(facts: Facts, model: Model) -> Iterator[str]:
    """Yield what a file keeps in host memory, which is not predicted for a choice of layers that is not the planner's own."""
    layers = facts.value("gpu_layers")
    if isinstance(layers, int) and 0 <= layers < model.decoder.layers:
        yield f"gpu_layers: {layers} of {model.decoder.layers} layers on cards are not predicted, only all"
    for name in ("expert_layers", "override", "offload_bytes"):
        if facts.says(name) and facts.value(name) not in (0, 0.0):
            yield f"{name}: {facts.value(name)} in host memory is not predicted"


def _predicted(
    reading: Reading, question: ServeAsk, model: Model
) -> tuple[Served | None, Served | None, list[Change], list[str]]:
    """Predict the file's own layout, and find a better one."""
    fix = _fixed(reading.facts, question.question(model))
    asked_for, notes = _started_with(replace(question, fix=fix), reading.facts, model)
    q, free = asked_for.question(model), replace(asked_for, fix=question.fix).question(model)
    option = _first(search(q), all_on_cards=reading.facts.says("gpu_layers"))
    if option is None:
        return None, None, [], [f"the planner has no layout {','.join(fix)} for {free.cluster.name}"]
    own = served(q, option)
    top = next(iter(search(free).options), None)
    if top is None or top.layout.name == option.layout.name:
        return own, None, [], notes
    best = served(free, top)
    if own.throughput is not None and best.throughput is not None and best.throughput <= own.throughput * (1 + CLOSE):
        return own, None, [], notes
    mine, better = setup.of_layout(q, option.layout), setup.of_layout(free, top.layout)
    return own, best, changes(reading.programs or (reading.program,), reading.facts, mine, better), notes


def _started_with(ask: ServeAsk, facts: Facts, model: Model) -> tuple[ServeAsk, list[str]]:
    """Return the question with as many requests as fit: a paged cache starts with room for one whole context, and the number in the file is
    the most that it runs at a time. llama.cpp reserves the cache of all its slots when it starts."""
    if not facts.whole("users"):
        return ask, ["users are not stated: one request is assumed; --set users=64"]
    q = ask.question(model)
    if q.engine.name in ONE_COPY:
        return ask, []
    copies = facts.whole("replicas", 1)
    least = _first(search(replace(ask, users=copies).question(model)))
    if least is None or not least.fits or least.most_users >= ask.users:
        return (ask if least is not None and least.fits else replace(ask, users=copies)), []
    room = f"the cache holds {least.most_users:,} requests with a whole context of {q.work.context:,} tokens"
    note = f"{room}, of at most {ask.users:,} at a time"
    return replace(ask, users=max(copies, least.most_users)), [note]


def _first(found: Found, *, all_on_cards: bool = False) -> Option | None:
    """Return the best layout that fits, else the one that misses least. `all_on_cards`: none that keeps layers in host memory."""
    kept = [one for one in found.options if not all_on_cards or (one.layout.gpu_layers is None and not one.layout.expert_layers)]
    return next(iter((*kept, *found.misses)), None)


def served(q: ServeQuestion, option: Option) -> Served:
    """Return a layout with its memory on the fullest device and, where it fits, its speed."""
    number = min(range(len(option.spares)), key=lambda i: option.spares[i])
    capacity = option.rooms[number]
    plain = Served(
        name=option.layout.name,
        peak=capacity - option.spares[number],
        capacity=capacity,
        axes=(option.layout.tp, option.layout.pp, option.layout.replicas),
        users=option.users,
        most_users=option.most_users,
    )
    if option.speed is None:
        return plain
    one = choice(q, option)
    return replace(
        plain,
        per_user=one.per_user,
        low=one.low,
        high=one.high,
        throughput=one.throughput,
        ttft=one.ttft.p50,
        dollars_per_million=one.dollars_per_million,
    )


def _contradictions(facts: Facts, model: Model | None) -> Iterator[Finding]:
    """Yield what keeps an engine from starting."""
    share = facts.value("memory_share")
    if isinstance(share, int | float) and not 0 < share <= 1:
        yield Finding(
            "stops", f"a share of the memory of {share:g}: expected above 0 and at most 1", places(facts, "memory_share")
        )
    if model is None:
        return
    tp, heads = facts.whole("tp", 1), model.decoder.heads
    if tp > 1 and heads and heads % tp:
        yield Finding("stops", f"tp {tp} does not divide the {heads} attention heads of {model.name}", places(facts, "tp"))
    pp, layers = facts.whole("pp", 1), model.decoder.layers
    if pp > layers:
        yield Finding("stops", f"pp {pp} is more than the {layers} layers of {model.name}", places(facts, "pp"))
    context, most = facts.whole("context"), model.decoder.context
    if most and context > most:
        yield Finding(
            "stops", f"a context of {context:,} is longer than the {most:,} of {model.name}'s config", places(facts, "context")
        )
    if facts.value("expert_parallel") is True and not any(op.expert for op in model.ops):
        yield Finding("stops", f"experts are parallel, and {model.name} has none", places(facts, "expert_parallel"))
