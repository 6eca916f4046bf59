"""ServeChoice: one layout of a served model with its bytes per device and its speed, in SI units."""

import math
from dataclasses import dataclass, field, replace

from meshwise.catalogue import calibrations
from meshwise.catalogue.records import stored
from meshwise.cost.serve.layouts import subcluster
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models.formats import FORMATS, weights
from meshwise.plan.serve.search import Option, largest_context, meets, with_memory

INTERVAL = 1.6449
"""90% of a normal distribution lie within this many standard deviations of the mean."""
UNSURE = 0.3
"""Standard deviation of ln(predicted / measured) for unmeasured parts: all-reduces, other hosts, layers in host memory."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Bytes on one device of a copy."""

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
    """One layout with its predicted memory and speed. Rates are for all copies together; times are for a step of one copy."""

    name: str
    split: str
    cards: int
    """Devices of one copy."""
    replicas: int
    hosts: int
    tp: int
    pp: int
    shares: tuple[float, ...]
    gpu_layers: int | None
    expert_layers: int
    spare: float
    """Free bytes on the fullest device."""
    host_bytes: float
    most_users: int
    devices: tuple[Device, ...]
    decode: float
    """Output tokens per second of all requests together, while they decode."""
    sustained: float
    """Output tokens per second when requests follow each other without a pause, so that prefill takes time from decode steps."""
    per_user: float
    low: float
    high: float
    """90% of measured tokens/s of one request lie between these."""
    prefill: float
    ttft: float
    ttft_low: float
    ttft_high: float
    meets: bool
    """Whether it meets the latency targets; True without targets."""
    time: dict[str, float] = field(metadata=stored("time_parts"))
    """Seconds of a decode step, by part."""
    prefill_time: dict[str, float] = field(metadata=stored("prefill_parts"))
    """Seconds of one prompt, by part."""
    watts: float | None
    """Rated power of all devices: an upper bound."""
    kwh_per_million: float | None
    dollars_per_million: float | None
    """Dollars per million output tokens at the rental price."""


def choice(q: ServeQuestion, option: Option) -> ServeChoice:
    """Convert an evaluated option into a ServeChoice."""
    assert option.speed
    layout, speed = option.layout, option.speed
    used = [q.cards[i].chip for i in layout.cards]
    low, high = interval(q, option)
    slower = math.exp(INTERVAL * calibrations.choose_serve(used[0], q.engine.runtime).prefill_spread)
    watts = sum(chip.tdp or 0.0 for chip in used) * layout.replicas if all(chip.tdp for chip in used) else None
    rent = subcluster(q.cluster, [q.cards[i] for i in layout.cards]).rent
    if rent is not None and q.cluster.prices:  # the price is for whole nodes: take the share of these cards
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
        time={name: float(value) for name, value in speed.decode.items()},
        prefill_time={name: float(value) for name, value in speed.prefill.items()},
        watts=watts,
        kwh_per_million=watts * million / 3.6e6 if watts else None,
        dollars_per_million=rent * layout.replicas * million if rent is not None else None,
    )


def interval(q: ServeQuestion, option: Option) -> tuple[float, float]:
    """Return the 90% interval of one request's tokens/s: the larger the unmeasured parts of a step, the wider."""
    assert option.speed
    parts = option.speed.decode
    unmeasured = parts["reduce"] + parts["host"] + (parts["hops"] if option.layout.hosts > 1 else 0.0)
    fitted = calibrations.choose_serve(q.cards[option.layout.cards[0]].chip, q.engine.runtime)
    spread = math.exp(INTERVAL * math.hypot(fitted.spread, UNSURE * unmeasured / option.speed.step))
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


def on_cards(option: Option) -> bool:
    """Return whether all layers and experts are on devices, none in host memory."""
    return option.layout.gpu_layers is None and not option.layout.expert_layers


def contexts(q: ServeQuestion, option: Option) -> dict[str, int]:
    """Return the longest context that fits, for the requested KV cache type and the smaller ones in common use."""
    small = {"f16": ("f16", "q8_0", "q4_0", "fp8"), "bf16": ("bf16", "q8_0", "q4_0", "fp8"), "q8_0": ("q8_0", "q4_0")}
    longest: dict[str, int] = {}
    for kind in small.get(q.work.kv, (q.work.kv,)):
        if kind not in q.runtime.cache_types:
            continue
        try:
            longest[kind] = largest_context(q, option, kind)
        except UserError:  # head sizes that are not a multiple of the type's blocks
            continue
    return longest


def largest_format(q: ServeQuestion, option: Option) -> tuple[str, float] | None:
    """Return the widest common format that fits in this layout, and its bytes; None where none fits, or the weights are a given file."""
    if q.model.tensors:
        return None
    layout = option.layout
    for name in q.engine.common_formats:
        trial = weights(q.model, FORMATS[name])
        if trial.bytes > sum(option.rooms) * 1.2:
            continue
        if with_memory(replace(q, weights=trial), layout).fits:
            return name, float(trial.bytes)
    return None
