"""The verdict on a serving file: whether its layout fits and how fast it is, and the best layout of the same question."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.changes import Change, applied, changes
from meshwise.audit.check.contradictions import stops
from meshwise.audit.check.difference import is_faster
from meshwise.audit.check.served import Served, served, with_settings
from meshwise.audit.check.shape import described
from meshwise.audit.check.train import chip_of, cluster_of, machine_notes, model_of_file
from meshwise.audit.check.verdict import Verdict
from meshwise.audit.finding import Finding, contradiction
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.formats import FORMATS
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.search import Found, Option, search, worth
from meshwise.plan.serve.words import length_words
from meshwise.programs.program import Program
from meshwise.programs.read.files import Reading, read_sources
from meshwise.programs.serve import lengths, setup
from meshwise.programs.source import Source
from meshwise.runs.run import Run, Stated

AXES = ("tp", "pp", "replicas", "attention_dp")
GGUF = ("llama.cpp", "ollama")
ENGINES_WITHOUT_REPLICAS = (*GGUF, "tensorrt-llm", "mlx")  # engines whose command starts one copy
INPUTS = (
    "tp", "pp", "replicas", "attention_dp", "ep", "context", "kv", "weights", "memory_share", "draft", "adapters", "adapter_rank", "users",
)  # fmt: skip
"""Facts beside the model that a prediction depends on: none is guessed where the file leaves it open."""
WHOLE_CONTEXT = "vllm"  # the engine that refuses to start where its cache holds no request of the longest context
SET = "--set"  # the key of a fact that the user answered
MAX_COUNT = 10**8  # devices, requests or tokens of a request, at most


def judge(reading: Reading, ask: CheckAsk) -> Verdict:
    """Judge what a serving file says."""
    program, facts = reading.program, reading.facts
    answered = [one.fact for one in facts if one.key == SET]
    facts = facts.adding(  # a manifest may say how many copies there are
        one for one in lengths.totals(facts) if one.fact not in answered
    )
    found, why = _model(facts, ask.model)
    if found is not None and program.framework == WHOLE_CONTEXT and "context" not in facts and found.decoder.context:
        note = f"as {found.name}'s config: {program.title} starts only if the cache holds one such request"
        facts = facts.adding([Stated("context", found.decoder.context, "default", None, "--max-model-len", note)])
    reading = replace(reading, facts=facts)
    unknown = [f"model: {why}"] if found is None else []
    unknown += [f"{one.fact}: {one.note}" for name in INPUTS if (one := facts.get(name)) is not None and one.how == "unknown"]
    unknown += reading.withheld
    findings = list(_contradictions(facts, found))
    on, command = "", ""
    own = best = None
    notes = list(reading.notes)
    words: list[Change] = []
    where = ask.on or chip_of(facts)
    if not where:
        unknown.append("cluster: --on names it")
    elif found is not None:
        on, more = cluster_of(_counted(facts), where)
        notes += machine_notes(facts, ask.on, on)
        findings += more
        question = asked(program, facts, found, on, ask)
        command = question.command()
        unknown += _partly(facts, found)
        try:
            if not unknown and not any(one.severity == "stops" for one in findings):
                own, best, words, added = _predicted(reading, question, found)
                notes += added
        except UserError as error:
            unknown.append(str(error))
    done = _applied(reading, ask, words, best) if best is not None and words else {}
    return Verdict(
        program=program.name, title=program.title, version=program.version_of(facts), kind=program.kind, files=reading.files,
        facts=_as_written(facts), findings=tuple(findings), unknown=tuple(unknown), missing=reading.missing, notes=tuple(notes),
        on=on, own=own, best=best, fits=own.fits if own is not None else None, changes=tuple(words), patched=done,
        plan_command=command, model=described(found, facts) if found is not None else "", unread=reading.unread,
    )  # fmt: skip


def _as_written(facts: Run) -> Run:
    """Return the facts for people: where data-parallel ranks share the experts, tp and dp as the file writes them."""
    tensor, copies = facts.get("tensor"), facts.get("copies")
    if facts.value("attention_dp") is not True or tensor is None or copies is None or tensor.value is None:
        return facts
    return facts.adding([tensor._replace(fact="tp"), copies._replace(fact="dp")])


def _applied(reading: Reading, ask: CheckAsk, words: list[Change], best: Served) -> dict[str, str]:
    """Return the files with these changes, if reading them again gives the better layout."""

    def layout(texts: Mapping[str, str]) -> dict[str, int | str]:
        try:
            again = read_sources([Source(name, text) for name, text in texts.items()], ask.answers).facts
        except UserError:
            return {}
        return {name: again.whole(name, 0 if name == "attention_dp" else 1) for name in AXES}

    return applied(reading.texts, reading.facts, words, layout, dict(zip(AXES, best.axes, strict=True)))


def _model(facts: Run, named: str) -> tuple[Model | None, str]:
    """Return the model: of a GGUF file, or of a checkpoint in another format, by its name without the format."""
    text = facts.text("model")
    if not named and text.endswith(".gguf") and not find.named(text):
        return None, f"{text} is no preset: --model names one, or the .gguf"
    return model_of_file(facts, named)


def _format(facts: Run) -> str:
    """Return the format of the weights, from the file or from the name of the model; '' where the engine's default is meant."""
    stated = facts.value("weights")
    if stated:
        return str(stated)
    name = str(facts.value("model") or "").rpartition("/")[2].removesuffix(".gguf")
    known = [fmt for fmt in FORMATS if re.search(rf"[-._]{re.escape(fmt.removeprefix('mlx-'))}$", name, flags=re.IGNORECASE)]
    return max(known, key=len, default="") or (find.from_words(name) or ("", ""))[1]


def _counted(facts: Run) -> Run:
    """Return the facts that choose a part of a cluster: the devices that the engine uses."""
    return facts if facts.whole("devices") else facts.without("nodes", "devices_per_node")


def asked(program: Program, facts: Run, model: Model, on: str, ask: CheckAsk) -> ServeAsk:
    """Return the question of a file in the words of `meshwise serve`, without its layout, with as many users as it admits unless --set."""
    fmt = _format(facts) or ("bf16" if program.framework not in GGUF and not model.quantization else "")
    kv = str(facts.value("kv") or "f16")
    rate, accept = (float(str(facts.value(name) or 0)) for name in ("rate", "accept"))
    plain = ServeAsk()
    return ServeAsk(
        model=f"{model.name}:{fmt}" if fmt else model.name, on=on, rate=rate, prompt=facts.whole("prompt", plain.prompt),
        users=1 if rate else max(1, facts.whole("users"), facts.whole("replicas")), output=facts.whole("output", plain.output),
        draft=facts.whole("draft") if accept else 0, accept=accept if facts.whole("draft") else 0.0, lora=_adapters(facts),
        context=facts.whole("context"), engine=program.framework, kv={"bf16": "f16"}.get(kv, kv), price=ask.price,
        fix=("replicas=1",) if program.framework in ENGINES_WITHOUT_REPLICAS else (),
    )  # fmt: skip


def _adapters(facts: Run) -> str:
    """Return LoRA adapters in the words of `--lora`; '' where there are none, or their rank is not known."""
    number, rank = facts.whole("adapters"), facts.whole("adapter_rank")
    return f"{number}:{rank}" if number > 0 and rank > 0 else ""


def _fixed(facts: Run, q: ServeQuestion) -> tuple[str, ...]:
    """Return the file's layout in the words of `--fix`. llama.cpp uses every card that it sees."""
    if not q.engine.gguf:
        apart = facts.value("attention_dp") is True and q.engine.attention_dp
        fixed = {name: facts.whole(name, 1) for name in ("tp", "pp", "replicas")} | {"ep": facts.whole("tp", 1) if apart else 1}
        return tuple(f"{name}={value}" for name, value in fixed.items())
    named = str(facts.value("cards_used") or "")
    seen = facts.whole("devices_per_node") or len(q.cards)
    cards = 1 if facts.value("split") == "none" else len(named.split(",")) if named else min(seen, len(q.cards))
    return (f"cards={cards}", *([f"split={facts.value('split') or 'layer'}"] if cards > 1 else []))


def _assumed(facts: Run) -> Iterator[str]:
    """Yield what is predicted in another way than the file says."""
    if facts.whole("draft") and not facts.value("accept"):
        yield f"{facts.whole('draft')} drafted tokens are not counted: --set accept=0.7 states the share that is accepted"
    if facts.value("attention_dp") is True and 1 < facts.whole("copies", 1) < facts.whole("tp", 1):
        yield f"attention in {facts.whole('copies')} groups is predicted as attention apart on each of {facts.whole('tp')} devices"
    if facts.value("attention_dp") is not True and facts.whole("ep", 1) > 1:
        yield f"experts on {facts.whole('ep')} devices are predicted as cut by tensor parallelism"


def _partly(facts: Run, model: Model) -> Iterator[str]:
    """Yield what a file keeps in host memory, which is not predicted for a choice of layers that is not the planner's own."""
    layers = facts.value("gpu_layers")
    if isinstance(layers, int) and 0 <= layers < model.decoder.layers:
        yield f"gpu_layers: {layers} of {model.decoder.layers} layers on cards are not predicted, only all"
    if facts.whole("pools") > 1:
        yield f"pools: {facts.whole('pools')} pools of servers together ({facts.whole('all_devices')} devices) are not predicted"
    if facts.says("transfer") or (facts.says("pool") and facts.value("pool") != "null"):
        yield "pool: a server of one pool, for prompts or for outputs, is not predicted without the other"
    for name in ("expert_layers", "override", "offload_bytes"):
        if facts.says(name) and facts.value(name) not in (0, 0.0):
            yield f"{name}: {facts.value(name)} in host memory is not predicted"


def _predicted(
    reading: Reading, question: ServeAsk, model: Model
) -> tuple[Served | None, Served | None, list[Change], list[str]]:
    """Predict the file's own layout with its own settings, and find a better one."""
    facts = reading.facts
    fix = _fixed(facts, lookup.question(question, model))
    own_ask, notes = _started_with(replace(question, fix=fix), facts, model)
    free_ask = replace(own_ask, fix=question.fix)
    q = with_settings(lookup.question(own_ask, model), facts, bounded=True)
    free = with_settings(lookup.question(free_ask, model), facts, bounded=False)
    option = _first(search(q), all_on_cards=facts.says("gpu_layers"))
    if option is None:
        return None, None, [], [f"the planner has no layout {','.join(fix)} for {free.cluster.name}"]
    own = served(own_ask, q, option, facts.whole("context") or model.decoder.context or q.work.context)
    if not own.fits:
        own = replace(own, remedies=tuple(_remedies(own_ask, facts, model)))
    top = next(iter(search(free).options), None)
    if top is None or top.layout.name == option.layout.name or not is_faster(worth(free, top) / max(worth(q, option), 1e-9)):
        return own, None, [], notes
    mine, better = setup.of_layout(q, option.layout), setup.of_layout(free, top.layout)
    words = changes(reading.programs or (reading.program,), facts, mine, better)
    return own, served(free_ask, free, top, own.context), words, notes


def _started_with(ask: ServeAsk, facts: Run, model: Model) -> tuple[ServeAsk, list[str]]:
    """Return the question with as many users as the file admits and as fit, unless --set states the load; llama.cpp reserves all slots."""
    notes = list(_assumed(facts))
    said = facts.get("users")
    if ask.rate or (said is not None and said.key == SET):
        return ask, notes
    copies = facts.whole("replicas", 1)
    if not facts.whole("users"):
        q = lookup.question(ask, model)
        if not q.runtime.paged:
            return ask, [*notes, "users are not stated: one request at a time is assumed; --set users=64, or --set rate=5"]
        found = next(iter((*search(q).options, *search(q).misses)), None)
        most = found.limits.sequences * copies if found is not None else 1
        notes.append(f"users are not stated: as many as it admits, at most {most:,}; --set users=64, or --set rate=5")
        ask = replace(ask, users=max(copies, most))
    q = with_settings(lookup.question(replace(ask, users=max(copies, ask.users)), model), facts, bounded=True)
    if not q.runtime.paged:
        return ask, notes
    most = next((one for one in search(q).options), None)
    if most is None or most.most_users >= ask.users:
        return replace(ask, users=max(copies, ask.users)), notes
    room = f"the cache holds {most.most_users:,} requests of {length_words(ask)}"
    return replace(ask, users=max(copies, most.most_users)), [*notes, f"{room}, of at most {ask.users:,} at a time"]


def _remedies(ask: ServeAsk, facts: Run, model: Model) -> Iterator[str]:
    """Yield what would make a server fit: a smaller cache, a shorter context, smaller weights, more devices."""
    name, _, fmt = ask.model.partition(":")
    tries: list[tuple[str, ServeAsk]] = []
    if ask.kv in ("f16", ""):
        tries.append(("a KV cache in fp8", replace(ask, kv="fp8")))
    context = ask.context or model.decoder.context or 0
    shorter = [context // part for part in (2, 4, 8, 16) if context // part >= max(1024, ask.prompt + ask.output)]
    tries += [(f"a context of {length:,}", replace(ask, context=length)) for length in shorter]
    if fmt in ("", "bf16", "fp16"):
        tries += [
            ("weights in fp8", replace(ask, model=f"{name}:fp8")),
            ("weights in 4 bits (awq)", replace(ask, model=f"{name}:awq")),
        ]
    found: dict[str, bool] = {}
    for words, other in tries:
        kind = words.split()[1]
        if kind not in found and _fits(other, facts, model):
            found[kind] = True
            yield words
    yield from _more_devices(ask, facts, model)


def _more_devices(ask: ServeAsk, facts: Run, model: Model) -> Iterator[str]:
    """Yield the smallest tp, in doublings, of the same chip that fits."""
    tp, heads = facts.whole("tp", 1), model.decoder.heads
    fixed = dict(part.split("=") for part in ask.fix)
    q = lookup.question(ask, model)
    for number in (2 * tp, 4 * tp, 8 * tp):
        if heads and heads % number == 0 and "tp" in fixed:
            on = f"{number}x{q.cards[0].chip.key}"
            fix = tuple(f"{key}={number if key == 'tp' else 1 if key == 'ep' else value}" for key, value in fixed.items())
            if _fits(replace(ask, on=on, fix=fix), facts, model):
                yield f"tp {number}, on {number} devices"
                return


def _fits(ask: ServeAsk, facts: Run, model: Model) -> bool:
    try:
        q = with_settings(lookup.question(ask, model), facts, bounded=True)
    except UserError:
        return False
    return next(iter(search(q).options), None) is not None


def _first(found: Found, *, all_on_cards: bool = False) -> Option | None:
    """Return the best layout that fits, else the one that misses least. `all_on_cards`: none that keeps layers in host memory."""
    kept = [one for one in found.options if not all_on_cards or (one.layout.gpu_layers is None and not one.layout.expert_layers)]
    return next(iter((*kept, *found.misses)), None)


def _contradictions(facts: Run, model: Model | None) -> Iterator[Finding]:
    """Yield what keeps an engine from starting."""
    for name in ("tp", "pp", "replicas", "context", "users", "copy_users"):
        one = facts.get(name)
        if one is not None and one.how == "said" and isinstance(one.value, int) and not 1 <= one.value < MAX_COUNT:
            yield contradiction(
                "stops", f"{one.key or name} is {one.value}: expected 1 or more, and no more than anyone has", (one.where,)
            )
    share = facts.value("memory_share")
    if isinstance(share, int | float) and not 0 < share <= 1:
        yield stops(facts, f"a share of the memory of {share:g}: expected above 0 and at most 1", "memory_share")
    if model is None:
        return
    tp, heads = facts.whole("tp", 1), model.decoder.heads
    if tp > 1 and heads and heads % tp:
        yield stops(facts, f"tp {tp} does not divide the {heads} attention heads of {model.name}", "tp")
    pp, layers = facts.whole("pp", 1), model.decoder.layers
    if pp > layers:
        yield stops(facts, f"pp {pp} is more than the {layers} layers of {model.name}", "pp")
    context, most = facts.whole("context"), model.decoder.context
    if most and context > most:
        yield stops(facts, f"a context of {context:,} is longer than the {most:,} of {model.name}'s config", "context")
    if facts.value("expert_parallel") is True and not any(op.expert for op in model.ops):
        yield stops(facts, f"experts are parallel, and {model.name} has none", "expert_parallel")
