"""ServeChoice: one layout of a served model with its bytes per device and its speed, in SI units."""

import math
from dataclasses import dataclass, field, replace

from meshwise.catalogue import calibrations
from meshwise.catalogue.records import stored
from meshwise.cost.serve.distance import POOLS_STD, is_of, terms
from meshwise.cost.serve.layouts import ServeLayout, subcluster
from meshwise.cost.serve.load.requests import NOTHING_SERVED, Load, Percentiles
from meshwise.cost.serve.passes.speed import Speed
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models.formats import FORMATS, weights
from meshwise.plan.serve.search import UNQUANTISED, Option, largest_context, meets, with_memory, with_speed

INTERVAL_STDS = 1.6449  # 90% of a normal distribution lie within this many standard deviations of the mean

BUFFERS_SPREAD = 0.15
"""Standard deviation of compute buffers and context over the predicted ones. An assumption: measured buffers of llama.cpp are predicted to
0.01 MiB (docs/models/serving-speed.md), those of other engines and drivers were not compared."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Bytes on one device of a replica."""

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
    """One layout with its predicted memory and speed. Rates are for all replicas together; times are for a step of one replica."""

    name: str
    split: str
    cards: int
    """Devices of one replica."""
    replicas: int
    hosts: int
    tp: int
    pp: int
    shares: tuple[float, ...]
    gpu_layers: int | None
    expert_layers: int
    prefill_replicas: int
    """Replicas that compute prompts only, where the others only generate; 0: every replica does both."""
    prefill_cards: int
    """Devices of each of these."""
    transfer: float
    """Seconds in which the cache of a prompt moves from them to a replica that generates."""
    spare: float
    """Free bytes on the fullest device."""
    host_bytes: float
    most_users: int
    devices: tuple[Device, ...]
    throughput: float
    """Output tokens per second of all requests at the load; the time of prompts is included."""
    input_rate: float
    """Prompt tokens per second at the load."""
    requests: float
    """Requests per second at the load."""
    per_device: float
    """Output tokens per second of one device."""
    per_user: float
    """Tokens per second of one request after its first token, at the load."""
    low: float
    high: float
    """90% of measured tokens/s of one request lie between these."""
    uncertain: str
    """Why the interval is wide; '' where it is that of the calibration."""
    prefill: float
    """Prompt tokens per second of prompts that wait for no other."""
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    waits: float
    """Requests that wait for a place or compute their prompt, on average."""
    meets: bool
    """Whether it meets the latency targets; True without targets."""
    time: dict[str, float] = field(metadata=stored("time_parts"))
    """Seconds of a decode step, by part."""
    prefill_time: dict[str, float] = field(metadata=stored("prefill_parts"))
    """Seconds of one prompt, by part."""
    watts: float | None
    """Rated power of all devices: an upper bound."""
    kwh_per_million: float | None
    """Energy per million output tokens."""
    dollars_per_million: float | None
    """Dollars per million output tokens at the rental price, where all of it is put on them."""
    dollars_per_million_in: float | None
    """Dollars per million prompt tokens, where the time of prompts is put on these and that of decoding on outputs."""
    dollars_per_million_out: float | None

    @property
    def p_fit(self) -> float:
        """Probability that it fits: weights and cache are exact, buffers and the driver's context are not."""
        stds = (device.spare / max(BUFFERS_SPREAD * (device.compute + device.context), 1.0) for device in self.devices)
        return 0.5 * (1 + math.erf(min(stds, default=math.inf) / math.sqrt(2)))

    @property
    def hourly(self) -> float | None:
        """Dollars per hour of all devices."""
        return self.dollars_per_million * self.throughput / 1e6 * 3600 if self.dollars_per_million is not None else None


def choice(q: ServeQuestion, option: Option) -> ServeChoice:
    """Convert an evaluated option into a ServeChoice, with percentiles."""
    option = with_speed(q, option, detailed=True)
    assert option.speed
    layout, speed, report = option.layout, option.speed, option.report or NOTHING_SERVED
    low, high = interval(q, option)
    rent, watts = rent_of(q, layout), watts_of(q, layout)
    million = 1e6 / option.throughput if option.throughput else math.inf
    total = rent * million if rent is not None else None
    prompts, outputs = _split_cost(q, option, total)
    return ServeChoice(
        name=layout.name, split=layout.split, cards=len(layout.cards), replicas=layout.replicas, hosts=layout.hosts,
        tp=layout.tp, pp=layout.pp, shares=layout.shares, gpu_layers=layout.gpu_layers, expert_layers=layout.expert_layers,
        prefill_replicas=layout.prefill.replicas if layout.prefill else 0,
        prefill_cards=len(layout.prefill.cards) if layout.prefill else 0, transfer=option.pool.transfer if option.pool else 0.0,
        spare=option.spare, host_bytes=option.footprints[0].bytes, most_users=option.most_users,
        devices=tuple(_devices(q, option)), throughput=option.throughput, input_rate=option.input_rate,
        requests=option.requests, per_device=option.throughput / layout.devices, per_user=option.per_user, low=low, high=high,
        uncertain=", ".join(doubts(q, option)), prefill=speed.prefill_tokens_per_second * (layout.prefill or layout).replicas,
        ttft=report.ttft, tpot=report.tpot, e2e=report.e2e, waits=report.waiting * layout.replicas, meets=meets(q, option),
        time={name: float(value) for name, value in speed.decode.items()},
        prefill_time={name: float(value) for name, value in speed.prefill.items()}, watts=watts,
        kwh_per_million=watts * million / 3.6e6 if watts and option.throughput else None,
        dollars_per_million=total if option.throughput else None, dollars_per_million_in=prompts,
        dollars_per_million_out=outputs,
    )  # fmt: skip


def rent_of(q: ServeQuestion, layout: ServeLayout) -> float | None:
    """Return dollars per second of all devices of a layout; None without a price."""
    rent = subcluster(q.cluster, [q.cards[i] for i in layout.cards]).rent
    if rent is not None and q.cluster.prices:  # the price is for whole nodes: take the share of these cards
        rent = (q.cluster.rent or 0.0) * len(layout.cards) / q.cluster.devices
    return rent * layout.devices / len(layout.cards) if rent is not None else None


def watts_of(q: ServeQuestion, layout: ServeLayout) -> float | None:
    """Return the rated power of all devices of a layout; None if a chip does not state it."""
    rated = [q.cards[i].chip.tdp for i in layout.cards]
    return sum(power or 0.0 for power in rated) * layout.devices / len(rated) if all(rated) else None


def _split_cost(q: ServeQuestion, option: Option, total: float | None) -> tuple[float | None, float | None]:
    """Return dollars per million prompt tokens and per million output tokens; `total`: where all are put on outputs."""
    if total is None or not option.speed or not option.throughput or not q.load.output.mean:
        return None, None
    return split_cost(q.load, total, option.speed)


def split_cost(load: Load, total: float, speed: Speed) -> tuple[float | None, float]:
    """Return dollars per million prompt tokens and per million output tokens: each pays for the time it takes by itself, so that both
    together are what the devices cost. `total`: dollars per million output tokens where all are put on these."""
    prompt = speed.prefill_seconds * (1 - load.prefix)
    decode = load.steps * speed.step / max(1, speed.users)
    share = prompt / (prompt + decode) if prompt + decode else 0.0
    per_request = total * load.output.mean
    return per_request * share / load.prompt.mean if load.prompt.mean else None, total * (1 - share)


def interval(q: ServeQuestion, option: Option) -> tuple[float, float]:
    """Return the 90% interval of one request's tokens/s."""
    spread = math.exp(INTERVAL_STDS * spread_of(q, option))
    return option.per_user / spread, option.per_user * spread


def spread_of(q: ServeQuestion, option: Option) -> float:
    """Return the standard deviation of ln(predicted / measured)."""
    return math.hypot(*spreads(q, option).values())


def spreads(q: ServeQuestion, option: Option) -> dict[str, float]:
    """Return the causes of the standard deviation of ln(predicted / measured): errors of the calibration, and distance from its rows."""
    assert option.speed
    parts = option.speed.decode
    chip = q.cards[option.layout.cards[0]].chip
    fitted = calibrations.choose_serve(chip, q.runtime.key or q.runtime.engine)
    unmeasured = parts["host"] + (parts["hops"] if option.layout.hosts > 1 else 0.0)
    unmeasured += 0.0 if fitted.all_reduces and option.layout.hosts == 1 else parts["reduce"]
    of_one = terms(fitted, chip, experts=q.experts, unmeasured=unmeasured / option.speed.step, untested=_untested(q, option))
    return {**of_one, "pools of their own for prompts": POOLS_STD if option.pool else 0.0}


def _untested(q: ServeQuestion, option: Option) -> bool:
    """Return whether the engine's way to run this layout is new, and no run of it was compared: llama.cpp's tensor split."""
    return q.engine.gguf and option.layout.split == "tensor"


def doubts(q: ServeQuestion, option: Option) -> list[str]:
    """Return what the calibration was not fitted on."""
    chip = q.cards[option.layout.cards[0]].chip
    fitted = calibrations.choose_serve(chip, q.runtime.key or q.runtime.engine)
    return [
        *([] if is_of(fitted, chip) else [f"not calibrated for {chip.name}"]),
        *(["not calibrated for models with experts on this engine"] if q.experts and not fitted.experts else []),
        *([f"the tensor split of {q.engine.name} was not measured"] if _untested(q, option) else []),
    ]


def _devices(q: ServeQuestion, option: Option) -> list[Device]:
    rows = zip(option.layout.cards, option.placement.devices, option.footprints[1:], option.spares, strict=True)
    return [
        Device(
            card=i, chip=q.cards[i].chip.key, host=q.cards[i].host, layers=len(load.layers), head=load.head,
            weights=need.weights, cache=need.cache, compute=need.compute, context=need.context, capacity=q.cards[i].chip.memory,
            spare=spare,
        )
        for i, load, need, spare in rows
    ]  # fmt: skip


def on_cards(option: Option) -> bool:
    """Return whether all layers and experts are on devices, none in host memory."""
    return option.layout.gpu_layers is None and not option.layout.expert_layers


def contexts(q: ServeQuestion, option: Option) -> dict[str, int]:
    """Return the longest context that fits, for the requested KV cache type and the smaller ones in common use."""
    small = {"f16": ("f16", "q8_0", "q4_0", "fp8"), "bf16": ("bf16", "q8_0", "q4_0", "fp8"), "q8_0": ("q8_0", "q4_0")}
    longest: dict[str, int] = {}
    for kind in small.get(q.work.kv, (q.work.kv,)):
        if kind not in q.runtime.cache_types or (q.engine.gguf and option.layout.split == "tensor" and kind not in UNQUANTISED):
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
