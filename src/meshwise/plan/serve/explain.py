"""Explain why a layout serves best: memory, and the effect of another device, link or replica."""

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwise import units
from meshwise.catalogue import clusters
from meshwise.catalogue.chips import Cluster, Link
from meshwise.catalogue.engines import find_engine, runtime_of
from meshwise.cost.serve.layouts import layouts, tensor_parallel_sizes, unit
from meshwise.cost.serve.load.requests import Targets
from meshwise.cost.serve.passes.speed import Batch
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models.formats import FORMATS, as_gguf, weights
from meshwise.plan.serve.choice import contexts, largest_format, on_cards
from meshwise.plan.serve.refusal import NOTABLE_GAIN, narrower_cache
from meshwise.plan.serve.search import Found, Option, largest_context, search, with_memory, with_speed, worth
from meshwise.plan.serve.words import tokens
from meshwise.units import GIB

LANES = (("PCIe 4.0 x1", 2e9), ("PCIe 4.0 x4", 8e9), ("PCIe 4.0 x16", 32e9), ("NVLink 4", 450e9))
"""One direction: 16 GT/s a lane (PCI-SIG), and all links of an H100 (its datasheet)."""
NETWORKS = (
    Link(name="1 GbE", bandwidth=0.125e9), Link(name="10 GbE", bandwidth=1.25e9), Link(name="100 GbE", bandwidth=12.5e9),
    Link(name="100 Gb/s RDMA", bandwidth=12.5e9, latency=2e-6),
)  # fmt: skip
"""RDMA bypasses the kernel: about 2 us through a switch (from memory of InfiniBand data sheets)."""
MAX_USERS_TRIED = 4096
NUMBERS = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


def reasons(q: ServeQuestion, found: Found, named: bool) -> list[str]:
    """Return the explanation, a sentence a line, most important first. `named`: the user chose the engine, so no other is suggested."""
    best = found.options[0]
    fits, *room = _fit(q, best)
    lines = [
        fits, *narrower_cache(q, found), *_experts(q, found), *_cards(q, found), *([] if named else _other_engine(q, best)),
        *_splits(q, found),
    ]  # fmt: skip
    return [*lines, *room, *_users(q, best), *_links(q, _option_with_link(q, found)), *_power(q, best)]


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def _rate(option: Option) -> str:
    return tokens(option.per_user)


def _length(tokens: int) -> str:
    return units.show(float(tokens // 1024 * 1024), "length") if tokens >= 1024 else str(tokens)


# Memory.


def _fit(q: ServeQuestion, best: Option) -> Iterator[str]:
    """Yield whether it fits, the longest context and the widest format in this layout."""
    cache = sum(need.cache for need in best.footprints)
    number, word = len(best.layout.cards), best.layout.unit
    size = f"{_gib(q.weights.bytes)} of weights ({q.weights.bits_per_weight:.2f} bits each) and {_gib(cache)} of {q.work.kv} KV cache"
    if on_cards(best):
        kind = f"the {word}" if number == 1 else f"the fullest {word}"
        full = min(range(number), key=lambda i: best.spares[i])
        room = best.rooms[full] + q.runtime.context
        yield f"It fits: {size} on {number} {word}{'s' if number > 1 else ''}; {kind} has {_gib(best.spare)} of {_gib(room)} left."
    else:
        missing = sum(q.weights.layer_bytes) + cache - sum(best.rooms)
        where = "the rest stays in host memory, which is several times slower"
        yield f"It does not fit on the {word}s: {size}, {_gib(max(0.0, missing))} more than their memory without buffers; {where}."
    longest = contexts(q, best)
    trained = q.model.decoder.context
    if trained and longest[q.work.kv] >= trained:
        yield f"The model's whole context of {_length(trained)} fits in this layout."
    elif any(longest.values()):
        known = ", ".join(f"{_length(value)} in {kind}" for kind, value in longest.items() if value)
        yield f"Longest context that fits in this layout: {known}{f' (trained for {_length(trained)})' if trained else ''}."
    wider = largest_format(q, best) if on_cards(best) else None
    if wider:
        same = wider[0] == q.weights.format
        yield f"Most precise common format that fits in this layout: {'this one' if same else wider[0]}, {_gib(wider[1])}."


def _experts(q: ServeQuestion, found: Found) -> Iterator[str]:
    """Yield what the experts of one more layer in host memory free, and what they cost or gain."""
    best = found.options[0]
    fewer = next((option for option in found.options if option.layout.expert_layers), None)
    if fewer is None or fewer.layout.expert_layers >= len(q.model.layers):
        return
    layout = replace(fewer.layout, expert_layers=fewer.layout.expert_layers + 1)
    more = with_speed(q, with_memory(q, layout))
    if more.fits and (fewer is best or worth(q, more) > NOTABLE_GAIN * worth(q, best)):
        yield (
            f"With one more layer of experts on the CPU ({layout.expert_layers}): {_rate(more)} instead of {_rate(best)} tokens/s, and "
            f"{_gib(more.spare)} instead of {_gib(best.spare)} free."
        )


# One more device.


def _one_more(cluster: Cluster) -> Cluster:
    """Return the cluster with one more device of the last kind in the last host."""
    *others, (count, node) = cluster.nodes
    *chips, (number, chip) = node.chips
    larger = replace(node, chips=(*chips, (number + 1, chip)))
    nodes = [*others, *([(count - 1, node)] if count > 1 else []), (1, larger)]
    return replace(cluster, nodes=tuple(nodes))


def _cards(q: ServeQuestion, found: Found) -> Iterator[str]:
    """Yield whether another device would help."""
    best = found.options[0]
    if q.bounds or q.cards[-1].host or len(q.cards) >= q.engine.max_devices:
        return
    default = default_option(found, len(q.cards)) if best.layout.split != "layer" else best
    layered = default if default.layout.split == "layer" and on_cards(default) and default.layout.replicas == 1 else None
    if layered:
        yield from _layer_cards(q, layered)
        return
    larger = search(replace(q, cluster=_one_more(q.cluster))).options
    if not larger:
        return
    other, nth = larger[0], _nth(len(q.cards) + 1)
    gain = worth(q, other) / worth(q, best) - 1
    if on_cards(other) and not on_cards(best):
        yield f"With a {nth} {best.layout.unit} everything fits: {other.layout.name}, {_rate(other)} instead of {_rate(best)} tokens/s."
    elif gain > 0.02:
        yield f"A {nth} {best.layout.unit} would give {100 * gain:+.0f}%: {other.layout.name}, {_rate(other)} tokens/s."
    else:
        yield f"A {nth} {best.layout.unit} would not help: {_tensor_sizes(q)}."


def _nth(number: int) -> str:
    return NUMBERS[number] if number < len(NUMBERS) else f"{number}th"


def _layer_cards(q: ServeQuestion, layered: Option) -> Iterator[str]:
    """Yield what another device adds to a layer split, which reads its layers one after another."""
    used = len(layered.layout.cards)
    larger = q if used < len(q.cards) else replace(q, cluster=_one_more(q.cluster))
    layout = next(layout for layout in layouts(q.engine, q.model, larger.cards, larger.rooms) if len(layout.cards) == used + 1)
    after = with_speed(larger, with_memory(larger, layout))
    if not after.speed or not layered.speed:
        return
    hop = (after.speed.decode["hops"] - layered.speed.decode["hops"]) * 1e3
    longest, wider = largest_context(larger, after), largest_format(larger, after)
    fits = f"{_length(longest)} of context{f' or {wider[0]}' if wider else ''}"
    yield (
        f"Layer split reads the layers one after another, so a {_nth(used + 1)} {layout.unit} adds {_gib(after.rooms[-1])} of memory and "
        f"{hop:.1f} ms of hops, not speed: {layered.per_user:.2f} tokens/s on {used}, {after.per_user:.2f} on {used + 1}, where "
        f"{fits} would fit; {_tensor_sizes(q)}."
    )


def _tensor_sizes(q: ServeQuestion) -> str:
    """Return the numbers of devices that tensor parallelism can use."""
    counts = [str(n) for n in tensor_parallel_sizes(q.model, 8 if len(q.cards) < 8 else 16)]
    if len(counts) < 2:
        return "this model has no tensor split"
    return f"tensor parallelism needs {', '.join(counts[:-1])} or {counts[-1]} {unit(q.cards)}s"


# Splits and replicas.


def _splits(q: ServeQuestion, found: Found) -> Iterator[str]:
    best = found.options[0]
    tensor = next((option for option in found.options if option.layout.split == "tensor"), None)
    if q.engine.gguf and tensor and tensor.speed and best.layout.split == "layer" and len(best.layout.cards) > 1:
        share = tensor.speed.decode["reduce"] / tensor.speed.step
        yield (
            f"Tensor split over {len(tensor.layout.cards)} cards: {_rate(tensor)} tokens/s; every layer sums its outputs over all cards "
            f"twice, {100 * share:.0f}% of a step."
        )
    if best.pool and best.layout.prefill and best.report:
        number, word = best.layout.prefill.devices, best.layout.unit
        plain = next((option for option in found.options if not option.pool and option.report), None)
        instead = f", instead of {units.show(plain.report.tpot.p95, 'seconds', digits=3)}" if plain and plain.report else ""
        yield (
            f"Prompts on {number} {word}{'s' if number > 1 else ''} of their own do not delay outputs: "
            f"{units.show(best.report.tpot.p95, 'seconds', digits=3)} per token at p95{instead}; the cache of a prompt moves in "
            f"{units.show(best.pool.transfer, 'seconds', digits=2)}."
        )
    if q.work.users > 1 or q.load.rate:
        yield from _copies(q, found)


def _copies(q: ServeQuestion, found: Found) -> Iterator[str]:
    """Compare several replicas with one larger instance."""
    options = found.options
    several = next((option for option in options if option.layout.replicas > 1), None)
    single = next((option for option in options if option.layout.replicas == 1 and len(option.layout.cards) > 1), None)
    if not several or not single or not single.speed or not several.speed:
        return
    first, second = (several, single) if worth(q, several) >= worth(q, single) else (single, several)
    communicating = (single.speed.decode["reduce"] + single.speed.decode["hops"]) / single.speed.step
    why = (
        f"cards that share a model communicate for {100 * communicating:.0f}% of a step, replicas do not"
        if first is several
        else f"each replica reads all weights for its {several.speed.users} requests, one instance reads them once for {single.speed.users}"
    )
    rates = [tokens(option.throughput) for option in (first, second)]
    yield f"{first.layout.name} gives {rates[0]} tokens/s, prompts included, {second.layout.name} {rates[1]}: {why}."


# Concurrent requests.


def _users(q: ServeQuestion, best: Option) -> Iterator[str]:
    """Yield the speed at more concurrent requests, and the number at which decode becomes compute-bound."""
    if best.speed is None or best.most_users < 1:
        return
    ladder = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= best.most_users][:7]
    points = ((n, at_users(q, best, n)) for n in ladder)
    rates = ", ".join(f"{n}: {tokens(option.throughput)} ({_rate(option)} each)" for n, option in points)
    held = "these lengths" if q.runtime.paged else _length(q.work.context)
    yield f"Tokens/s by users, prompts included ({best.layout.name}, at most {best.most_users:,} at once at {held}): {rates}."
    fewest = compute_bound(best)
    if fewest <= MAX_USERS_TRIED:
        requests = f"{fewest:,} concurrent requests{'' if fewest <= best.most_users else ', more than fit in memory'}"
        yield f"Decode becomes compute-bound at about {requests}; below that, all share one read of the weights."


def at_users(q: ServeQuestion, option: Option, users: int) -> Option:
    """Return the option evaluated for another number of concurrent requests, whether or not they fit."""
    asked = replace(q, work=replace(q.work, users=users), load=replace(q.load, users=users, rate=0.0), targets=Targets())
    return with_speed(asked, with_memory(asked, option.layout, option))


def compute_bound(option: Option) -> int:
    """Return the fewest requests at once whose products take longer than reading the weights; above MAX_USERS_TRIED for none."""
    copies = option.layout.replicas
    low, high = 0, 1
    while high <= MAX_USERS_TRIED and not _computes(option, high):
        low, high = high, high * 2
    while high <= MAX_USERS_TRIED and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _computes(option, middle) else (middle, high)
    return high * copies


def _computes(option: Option, users: int) -> bool:
    """Return whether a decode step of one replica at this batch is compute-bound: products show once they take half as long as reading."""
    if option.cost is None:
        return False
    weights, _, compute, *_ = option.cost.parts(Batch(users, (0.0,) * len(option.cost.d.windows)))
    return compute > weights / 2


# Links.


def _option_with_link(q: ServeQuestion, found: Found) -> Option:
    """Return the option whose link is varied: the best; for a row split, of which no link was measured, the engine's default."""
    return default_option(found, len(q.cards)) if found.options[0].layout.split == "row" else found.options[0]


def _links(q: ServeQuestion, best: Option) -> Iterator[str]:
    """Yield the speed with other links inside a host, or with other networks between hosts."""
    if best.layout.hosts > 1:
        trials = [(link.name, on_cluster(q, best, replace(q.cluster, network=link))) for link in NETWORKS]
        yield f"Network between hosts, tokens/s: {', '.join(f'{name} {_rate(option)}' for name, option in trials)}. {_hop_words(best)}"
    elif len(best.layout.cards) > 1 and best.layout.split != "row":
        trials = [(name, on_cluster(q, best, clusters.with_link(q.cluster, f"{rate:.0f}B/s"))) for name, rate in LANES]
        rates = ", ".join(
            f"{name} {_rate(option)} ({option.speed.prefill_tokens_per_second:,.0f})" for name, option in trials if option.speed
        )
        yield f"Link between cards, {best.layout.name}, decode (prefill) tokens/s: {rates}. {_hop_words(best)}"


def on_cluster(q: ServeQuestion, option: Option, cluster: Cluster) -> Option:
    """Return the option with its speed on another cluster."""
    return with_speed(replace(q, cluster=cluster), option)


def _hop_words(best: Option) -> str:
    if best.layout.split == "layer":
        return "A layer split sends one small vector per token and hop: bandwidth hardly matters, latency adds up."
    return "Tensor parallelism all-reduces twice per layer: latency limits decode, bandwidth limits prefill."


# Another engine.


def _other_engine(q: ServeQuestion, best: Option) -> list[str]:
    """Compare with the other kind of engine (tensor or layer split), in a format of about the same width. Both are compared by what
    layouts are ranked by: all output tokens per second with prompts included, or at a rate the mean time of a request."""
    if q.model.tensors or q.bounds or any(card.chip.kind != "gpu" for card in q.cards):
        return []
    if not q.engine.gguf:
        name, form = "llama.cpp", {16: "F16", 8: "Q8_0"}.get(FORMATS[q.weights.format].bits, "Q4_K_M")
    else:
        width = q.weights.bits_per_weight
        name, form = "vllm", "bf16" if width > 12 else "fp8" if width > 6 else "awq"
    engine = find_engine(name)
    kind = {"q8_0": "fp8", "q4_0": "fp8", "fp8": "q8_0"}.get(q.work.kv, "f16")
    fmt = as_gguf(FORMATS[form]) if engine.gguf else FORMATS[form]
    try:
        stored = weights(q.model, fmt)
    except UserError:  # llama.cpp does not run this model
        return []
    other = replace(
        q, engine=engine, runtime=runtime_of(engine, q.model.model_type), weights=stored, work=replace(q.work, kv=kind)
    )
    found = search(other)
    if not found.options or not on_cards(found.options[0]):
        near = found.misses[0] if found.misses else None
        if near is None:
            return []
        short = f"{_gib(-near.spare)} short on its fullest {near.layout.unit}"
        return [f"{name} with {form} would not fit: {near.layout.name} is {short}."]
    rival = found.options[0]
    if not best.report or not rival.report:
        return []
    gain = worth(other, rival) / worth(q, best) - 1
    verdict = f"{abs(gain):.1%} {'faster' if gain > 0 else 'slower'}" if abs(gain) >= 0.0005 else "as fast"
    whole, unit = f"{tokens(rival.throughput)} instead of {tokens(best.throughput)} tokens/s in all", ""
    if q.load.rate:
        whole, unit = f"{units.show(rival.report.e2e.mean, 'seconds', digits=3)} each", " tokens/s"
    then = f"{_rate(rival)}{unit} instead of {_rate(best)} per request after its prompt"
    reduces = ""
    if rival.speed and rival.layout.tp > 1:
        reduces = f", all-reduces take {100 * rival.speed.decode['reduce'] / rival.speed.step:.0f}% of a step"
    return [f"{name} with {form} would be {verdict} over whole requests: {whole}, {then}; {rival.layout.name}{reduces}."]


# Watts and dollars.


def _power(q: ServeQuestion, best: Option) -> list[str]:
    chips = [q.cards[i].chip for i in best.layout.cards]
    if not all(chip.tdp for chip in chips) or not best.throughput:
        return []
    watts = sum(chip.tdp or 0.0 for chip in chips) * best.layout.devices / len(chips)
    energy = f"{watts / best.throughput * 1e6 / 3.6e6:,.1f} kWh per million tokens"
    return [f"At most {watts:,.0f} W for the {best.layout.unit}s, {energy}."]


def default_option(found: Found, cards: int) -> Option:
    """Return the engine's default: its first split over all devices; the best option where that does not fit."""
    for option in found.options:
        layout = option.layout
        usual = layout.split == "layer" or (layout.split == "tensor" and not layout.shares)  # llama.cpp splits by layers
        default = usual and layout.replicas == 1 and not layout.shared
        if default and len(layout.cards) == cards and on_cards(option):
            return option
    return found.options[0]


def layer_split_lesson(points: list[tuple[int, Option]]) -> str:
    """Return how little decode speed changes when a layer split uses more devices; '' for fewer than two points."""
    if len(points) < 2:
        return ""
    rates, word = [option.per_user for _, option in points], points[0][1].layout.unit
    spread = 100 * (max(rates) / min(rates) - 1)
    hops = [option.speed.decode["hops"] for _, option in points if option.speed]
    more = (hops[-1] - hops[0]) / (points[-1][0] - points[0][0]) * 1e3
    return (
        f"Layer split on {points[0][0]} to {points[-1][0]} {word}s: decode is flat within {max(1, math.ceil(spread))}%. It reads the "
        f"layers one after another, so bandwidths do not add up: another {word} adds memory and {more:.2f} ms of hops, not speed."
    )
