"""A plan to serve a model: the question, every way that answers it with its bytes and speed, and why. JSON both ways."""

import math
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from meshwise import units
from meshwise.catalogue import calibrations, records
from meshwise.cost.serve.layouts import part
from meshwise.cost.serve.question import ServeQuestion
from meshwise.cost.serve.speed import SERVE_PARTS
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.formats import FORMATS, split_model_name, weights
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.search import Found, Option, largest_context, meets, weighed

FORMAT = 1
KIND = "serve"
INTERVAL = 1.6449
"""Standard deviations that hold 90% of a normal distribution between them."""
UNSURE = 0.3
"""Standard deviation of ln(predicted / measured) of what no table here measures: sums between cards, other hosts, layers in host memory."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one card of a copy holds, in bytes."""

    card: int
    chip: str
    host: int
    layers: int
    head: bool
    weights: float
    cache: float
    compute: float
    context: float
    capacity: float
    spare: float


@dataclass(frozen=True, kw_only=True)
class ServeChoice:
    """One way in all its units: bytes, seconds, tokens per second. Rates are of all copies, parts of a step of one."""

    name: str
    split: str
    cards: int
    """Of one copy."""
    replicas: int
    hosts: int
    tp: int
    pp: int
    shares: tuple[float, ...]
    gpu_layers: int | None
    expert_layers: int
    spare: float
    """Bytes left on the fullest card."""
    host_bytes: float
    most_users: int
    devices: tuple[Device, ...]
    decode: float
    """Tokens per second of all users together."""
    sustained: float
    """The same where requests follow one another without a pause, so that prompts take time from the steps of others."""
    per_user: float
    low: float
    high: float
    """90% of measurements of one user's speed lie between these."""
    prefill: float
    ttft: float
    ttft_low: float
    ttft_high: float
    meets: bool
    """The latency targets, where there are any."""
    time_parts: dict[str, float]
    """Seconds of a decode step."""
    prefill_parts: dict[str, float]
    watts: float | None
    """Of all cards at their rated power: no more than this."""
    kwh_per_million: float | None
    dollars_per_million: float | None
    """To generate a million tokens, at the list price to rent."""


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A way that does not fit."""

    name: str
    missing: float
    """Bytes on its fullest card."""


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    ask: ServeAsk
    engine: str
    weights: dict[str, float | str]
    context: int
    """Tokens of one user, as asked or as assumed."""
    fits: bool
    """Everything on cards, nothing on the host but the embedding."""
    choices: tuple[ServeChoice, ...]
    misses: tuple[Miss, ...]
    contexts: dict[str, int]
    """By cache type, the longest context that fits in the first way, for as many users."""
    commands: dict[str, tuple[str, ...]]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    serving: dict[str, str]
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": KIND, **asdict(self)}


def read(path: Path) -> ServePlan:
    """A plan.json that was written by `plan --serve --out`."""
    table = records.plan_table(path, FORMAT, KIND)
    try:
        found = records.restore(ServePlan, {f.name: table[f.name] for f in fields(ServePlan)})
        if not found.choices or any(set(row.time_parts) != set(SERVE_PARTS) for row in found.choices):
            raise ValueError("it has no ways, or other parts than this version knows")
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a damaged plan ({error}); make it again") from None


def choice(q: ServeQuestion, option: Option) -> ServeChoice:
    """One priced way in all its units."""
    assert option.speed
    layout, speed = option.layout, option.speed
    used = [q.cards[i].chip for i in layout.cards]
    low, high = interval(q, option)
    slower = math.exp(INTERVAL * calibrations.choose_serve(used[0], q.engine.runtime).prefill_spread)
    watts = sum(chip.tdp or 0.0 for chip in used) * layout.replicas if all(chip.tdp for chip in used) else None
    rent = part(q.cluster, [q.cards[i] for i in layout.cards]).rent
    if rent is not None and q.cluster.prices:  # a price of whole nodes, of which these cards are a part
        rent = (q.cluster.rent or 0.0) * len(used) / q.cluster.devices
    million = 1e6 / option.throughput
    return ServeChoice(
        name=layout.name,
        split=layout.split,
        cards=len(used),
        replicas=layout.replicas,
        hosts=layout.hosts,
        tp=layout.tp,
        pp=layout.pp,
        shares=layout.shares,
        gpu_layers=layout.gpu_layers,
        expert_layers=layout.expert_layers,
        spare=option.spare,
        host_bytes=option.footprints[0].bytes,
        most_users=option.most_users,
        devices=tuple(_devices(q, option)),
        decode=option.throughput,
        sustained=option.sustained(q.work),
        per_user=speed.per_user,
        low=low,
        high=high,
        prefill=speed.prefill_tokens_per_second * layout.replicas,
        ttft=speed.ttft,
        ttft_low=speed.ttft / slower,
        ttft_high=speed.ttft * slower,
        meets=meets(q, option),
        time_parts={name: float(value) for name, value in speed.decode.items()},
        prefill_parts={name: float(value) for name, value in speed.prefill.items()},
        watts=watts,
        kwh_per_million=watts * million / 3.6e6 if watts else None,
        dollars_per_million=rent * layout.replicas * million if rent is not None else None,
    )


def interval(q: ServeQuestion, option: Option) -> tuple[float, float]:
    """90% of measurements of one user's speed lie between these: wider, the more of a step is in parts that no table measures."""
    assert option.speed
    parts = option.speed.decode
    open_parts = parts["reduce"] + parts["host"] + (parts["hops"] if option.layout.hosts > 1 else 0.0)
    fitted = calibrations.choose_serve(q.cards[option.layout.cards[0]].chip, q.engine.runtime)
    spread = math.exp(INTERVAL * math.hypot(fitted.spread, UNSURE * open_parts / option.speed.step))
    return option.per_user / spread, option.per_user * spread


def _devices(q: ServeQuestion, option: Option) -> list[Device]:
    rows = zip(option.layout.cards, option.placement.devices, option.footprints[1:], option.spares, strict=True)
    return [
        Device(
            card=i,
            chip=q.cards[i].chip.key,
            host=q.cards[i].host,
            layers=len(load.layers),
            head=load.head,
            weights=need.weights,
            cache=need.cache,
            compute=need.compute,
            context=need.context,
            capacity=q.cards[i].chip.memory,
            spare=spare,
        )
        for i, load, need, spare in rows
    ]


def make(
    ask: ServeAsk, q: ServeQuestion, found: Found, top: int, commands: dict[str, tuple[str, ...]], reasons: list[str]
) -> ServePlan:
    """The plan for what a search found."""
    best = found.options[0]
    chip = q.cards[best.layout.cards[0]].chip
    fitted = calibrations.choose_serve(chip, q.engine.runtime)
    size = {"format": q.weights.format, "bytes": float(q.weights.bytes), "bits_per_weight": q.weights.bits_per_weight}
    return ServePlan(
        ask=ask,
        engine=q.engine.name,
        weights=size,
        context=q.work.context,
        fits=on_cards(best),
        choices=tuple(choice(q, option) for option in found.options[:top]),
        misses=tuple(Miss(name=one.layout.name, missing=-one.spare) for one in found.misses[:3]),
        contexts=contexts(q, best),
        commands=commands,
        reasons=tuple(reasons),
        notes=tuple(_notes(ask, q, best)),
        serving={"name": fitted.key or "default prior", "fitted_on": fitted.fitted_on, "date": fitted.date},
        versions={"meshwise": version("meshwise")},
    )


def on_cards(option: Option) -> bool:
    return option.layout.gpu_layers is None and not option.layout.expert_layers


def contexts(q: ServeQuestion, option: Option) -> dict[str, int]:
    """The longest context by cache type: the asked one, and the smaller ones that people use."""
    small = {"f16": ("f16", "q8_0", "q4_0", "fp8"), "bf16": ("bf16", "q8_0", "q4_0", "fp8"), "q8_0": ("q8_0", "q4_0")}
    found: dict[str, int] = {}
    for kind in small.get(q.work.kv, (q.work.kv,)):
        if kind not in q.runtime.cache_types:
            continue
        try:
            found[kind] = largest_context(q, option, kind)
        except UserError:  # heads that are no multiple of the type's blocks
            continue
    return found


def _notes(ask: ServeAsk, q: ServeQuestion, best: Option) -> list[str]:
    """What was assumed, and what to be warned of."""
    notes = [*q.model.notes, *q.cluster.notes]
    trained = q.model.decoder.context
    if trained and q.work.context > trained:
        notes.append(
            f"a context of {q.work.context:,} is longer than the {trained:,} that {q.model.name} was trained for: "
            "answers beyond that may be poor"
        )
    if not q.engine.server and best.layout.tp > 1:
        notes.append("over several GPUs transformers runs its own layers, slower than those that were fitted: at most this fast")
    if not split_model_name(ask.model)[1] and not q.model.tensors:
        notes.append(f"no format given: {q.weights.format}, the usual one with {q.engine.name}, is assumed")
    if not ask.context:
        notes.append(f"no --context given: {q.work.context:,} tokens a user")
    if not on_cards(best):
        need = units.show(best.footprints[0].bytes, "bytes", binary=True, digits=3)
        memory = q.cluster.node.host.memory
        notes.append(
            f"{need} of host memory are needed" + (f", of {units.show(memory, 'bytes', binary=True, digits=3)}" if memory else "")
        )
    return notes


# Where the answer is no.


def largest_format(q: ServeQuestion, option: Option) -> tuple[str, float] | None:
    """The widest common format that fits in the same way, and its bytes; none where none does, or the file is what it is."""
    if q.model.tensors:
        return None
    layout = option.layout
    for name in q.engine.common_formats:
        trial = weights(q.model, FORMATS[name])
        if trial.bytes > sum(option.rooms) * 1.2:
            continue
        if weighed(replace(q, weights=trial), layout).fits:
            return name, float(trial.bytes)
    return None


def refuse(q: ServeQuestion, found: Found) -> DoesNotFit:
    """Nothing fits, or nothing meets the targets: by how much, and what comes closest."""
    if found.options:
        return DoesNotFit(_too_slow(q, found.options[0]))
    if not found.misses:
        fixed = ", ".join(f"{axis}={value}" for axis, value in q.bounds.items())
        return DoesNotFit(f"no way to lay {q.model.name} over {q.cluster.name} has {fixed}")
    near = found.misses[0]
    more = units.show(-near.spare, "bytes", binary=True, digits=3)
    users = f" for {q.work.users} users" if q.work.users > 1 else ""
    head = (
        f"{q.model.name} in {q.weights.format} does not fit on {q.cluster.name} with {q.engine.name} and a context of {q.work.context:,}"
        f"{users}: {near.layout.name} needs {more} more on its fullest card"
    )
    context, wider = largest_context(q, near), largest_format(q, near)
    hints = [f"a context of {context:,} would fit"] if context else []
    hints += [f"{near.most_users} users would fit"] if q.work.users > 1 and near.most_users else []
    hints += [f"{wider[0]} would fit"] if wider else []
    return DoesNotFit("; ".join([head, *hints]))


def _too_slow(q: ServeQuestion, best: Option) -> str:
    wanted = [f"a first token within {units.show(q.ttft, 'seconds')}"] if q.ttft else []
    wanted += [f"{q.per_user:g} tokens/s for each of {q.work.users} users"] if q.per_user else []
    return (
        f"no way on {q.cluster.name} gives {' and '.join(wanted)}: the closest is {best.layout.name}, with the first token after "
        f"{units.show(best.ttft, 'seconds', digits=3)} and {best.per_user:.3g} tokens/s each"
    )
