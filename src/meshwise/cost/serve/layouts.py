"""Layouts of a served model: which cards an engine uses, how it splits the model over them, how many replicas it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from meshwise.catalogue.chips import Chip, Cluster, Node
from meshwise.catalogue.engines import Engine, Split
from meshwise.cost.serve.memory import placement as places
from meshwise.cost.serve.memory.cache import LayerCache
from meshwise.models.formats import Weights
from meshwise.models.model import Model


@dataclass(frozen=True)
class Card:
    """One device of a cluster."""

    chip: Chip
    host: int  # number of its host


def cards_of(cluster: Cluster) -> tuple[Card, ...]:
    """List every device, host by host."""
    hosts = [node for count, node in cluster.nodes for _ in range(count)]
    return tuple(Card(chip, i) for i, node in enumerate(hosts) for count, chip in node.chips for _ in range(count))


def unit(cards: Sequence[Card]) -> str:
    """Return the word for one of these devices: 'card', or 'device' where some are CPUs, Macs or other accelerators."""
    return "card" if all(card.chip.kind == "gpu" for card in cards) else "device"


def subcluster(cluster: Cluster, cards: Sequence[Card]) -> Cluster:
    """Return the hosts of these cards with these cards only."""
    hosts = [node for count, node in cluster.nodes for _ in range(count)]
    nodes: list[tuple[int, Node]] = []
    for host, inside in groupby(cards, key=lambda card: card.host):
        chips = tuple((len(list(same)), chip) for chip, same in groupby((card.chip for card in inside), key=lambda chip: chip))
        nodes.append((1, replace(hosts[host], chips=chips)))
    return replace(cluster, nodes=tuple(nodes))


@dataclass(frozen=True, kw_only=True)
class ServeLayout:
    """One replica of a model on some cards, and the number of replicas."""

    split: Split
    cards: tuple[int, ...]  # cards of the first replica, in the order of the layers or stages on them
    hosts: int = 1
    shares: tuple[float, ...] = ()  # llama.cpp's -ts
    shared: str = ""  # how the shares were chosen; '' for shares by free memory, llama.cpp's default, which needs no -ts
    gpu_layers: int | None = None  # layers on cards, the head counted as one; None: all
    expert_layers: int = 0  # layers whose experts stay on the host
    tp: int = 1
    pp: int = 1
    apart: bool = False  # whether the `tp` devices share the experts only and compute attention for requests of their own
    replicas: int = 1
    prefill: "ServeLayout | None" = None
    """The layout and the number of replicas that compute prompts, where the replicas of this one only generate."""
    unit: str = "card"  # the word for one of its devices

    @property
    def devices(self) -> int:
        return len(self.cards) * self.replicas + (self.prefill.devices if self.prefill else 0)

    @property
    def name(self) -> str:
        if self.prefill:
            pools = ((self.prefill, "prefill"), (replace(self, prefill=None), "decode"))
            return " + ".join(f"{pool.replicas} {word} ({replace(pool, replicas=1).name})" for pool, word in pools)
        number = len(self.cards)
        cards = f"{number} {self.unit}{'s' if number > 1 else ''}"
        if self.apart:
            words = [f"ep{self.tp}, attention dp"]
        elif self.split == "tensor" and not self.shares:
            words = [" ".join([f"tp{self.tp}", *([f"pp{self.pp}"] if self.pp > 1 else [])])] if number > 1 else [cards]
        else:
            words = [f"{self.split} split, {cards}" if number > 1 else cards]
        words += [f"{self.hosts} hosts"] if self.hosts > 1 else []
        words += [self.shared] if self.shared else []
        words += [f"{self.gpu_layers} layers on {self.unit}s"] if self.gpu_layers is not None else []
        words += [f"experts of {self.expert_layers} layers on the CPU"] if self.expert_layers else []
        return (f"{self.replicas} x ({', '.join(words)})" if self.replicas > 1 else ", ".join(words)).replace(
            f"(1 {self.unit})", f"1 {self.unit}"
        )


def refuses(layout: ServeLayout, model: Model, weights: Weights) -> str:
    """Return why a model cannot be placed by this layout; '' where it can."""
    if layout.apart:
        return places.refuses_experts(model, weights, layout.tp)
    return places.refuses_tp(model, layout.tp) if layout.split == "tensor" else ""


def place(layout: ServeLayout, model: Model, weights: Weights, caches: Sequence[LayerCache]) -> places.Placement:
    """Return the weights and cache of each card of one replica."""
    if layout.apart:
        return places.split_experts(model, weights, caches, layout.tp)
    if layout.split == "tensor":
        return places.split_tensors(model, weights, caches, layout.tp, layout.pp, host_embedding=bool(layout.shares))
    if layout.split == "row":
        return places.split_rows(weights, caches, layout.shares, gpu_layers=layout.gpu_layers)
    return places.split_layers(
        weights, caches, layout.shares, gpu_layers=layout.gpu_layers, pins=places.host_experts(layout.expert_layers)
    )


# Enumeration of layouts.


def layouts(engine: Engine, model: Model, cards: Sequence[Card], rooms: Sequence[float]) -> Iterator[ServeLayout]:
    """Yield layouts of one replica with everything on cards; `rooms` are the usable bytes of each card."""
    if engine.splits == ("tensor",):
        yield from _tensor_layouts(engine, model, cards)
        return
    word = unit(cards)
    for chosen in _card_sets(engine, cards):
        hosts = len({cards[i].host for i in chosen})
        shares = tuple(rooms[i] for i in chosen)
        yield ServeLayout(split="layer", cards=chosen, hosts=hosts, shares=shares, unit=word)
        chips = [cards[i].chip for i in chosen]
        if len(chosen) == 1 or hosts > 1 or any(chip.kind != "gpu" for chip in chips):
            continue
        # Split buffers exist for devices of one host; a tensor split cuts whole KV heads into equal parts.
        if "tensor" in engine.splits and len({chip.key for chip in chips}) == 1 and _cuts_heads(model, len(chosen)):
            yield ServeLayout(split="tensor", cards=chosen, tp=len(chosen), shares=shares)
        if "row" in engine.splits:
            yield ServeLayout(split="row", cards=chosen, shares=shares)


def _cuts_heads(model: Model, devices: int) -> bool:
    """Return whether llama.cpp's tensor split can cut a model over this many devices: whole KV heads, no recurrent states."""
    whole = model.decoder.kv_heads % devices == 0 and not places.refuses_tp(model, devices)
    return whole and not any(op.state for op in model.ops)


def _card_sets(engine: Engine, cards: Sequence[Card]) -> Iterator[tuple[int, ...]]:
    """Yield sets of cards for one replica: any number of one host, the fastest first; of several hosts, whole hosts, the largest first. Of
    several hosts, CPU-only ones come first: a server with GPUs reaches them over RPC, and its own GPUs come last."""
    hosts = [[i for i, card in enumerate(cards) if card.host == host] for host in range(cards[-1].host + 1)]
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for members in hosts:
        fastest = sorted(members, key=lambda i: -cards[i].chip.bandwidth)
        for number in range(1, min(len(members), engine.max_devices) + 1):
            chosen = tuple(sorted(fastest[:number]))
            kind = (tuple(cards[i].chip.key for i in chosen),)
            if kind not in seen:
                seen.add(kind)
                yield chosen
    if not engine.hosts:
        return
    hosts.sort(key=lambda members: -sum(cards[i].chip.memory for i in members))
    for number in range(2, len(hosts) + 1):
        chosen = tuple(sorted((i for members in hosts[:number] for i in members), key=lambda i: (cards[i].chip.kind != "cpu", i)))
        if len(chosen) <= engine.max_devices:
            yield chosen


def _tensor_layouts(engine: Engine, model: Model, cards: Sequence[Card]) -> Iterator[ServeLayout]:
    """Yield tp x pp: a tensor-parallel group inside one host or over whole hosts; stages of whole layers."""
    per_host = sum(card.host == 0 for card in cards)
    for tp in range(1, min(len(cards), engine.max_devices) + 1):
        whole = tp <= per_host or (tp % per_host == 0 and engine.hosts)
        if not whole or places.refuses_tp(model, tp) or (model.decoder.kv_heads % tp and not engine.replicates_kv_heads):
            continue
        most = min(min(len(cards), engine.max_devices) // tp, len(model.layers)) if engine.stages else 1
        for pp in range(1, most + 1):
            # A group that no longer fits into a host starts on the next one.
            per_host_groups = max(1, per_host // tp)
            starts = [i // per_host_groups * per_host + i % per_host_groups * tp if tp <= per_host else i * tp for i in range(pp)]
            chosen = tuple(start + i for start in starts for i in range(tp))
            if chosen[-1] < len(cards):
                layout = ServeLayout(split="tensor", cards=chosen, tp=tp, pp=pp, unit=unit(cards))
                yield replace(layout, hosts=len({cards[i].host for i in chosen}))


def expert_layouts(engine: Engine, experts: int, cards: Sequence[Card]) -> Iterator[ServeLayout]:
    """Yield layouts with experts apart on 2, 4, 8, ... devices of one host or of whole hosts, which divide the number of experts."""
    per_host = sum(card.host == 0 for card in cards)
    number = 2
    while experts and engine.attention_dp and number <= min(len(cards), engine.max_devices):
        whole = number <= per_host or (number % per_host == 0 and engine.hosts)
        if whole and experts % number == 0:
            chosen = tuple(range(number))
            hosts = len({cards[i].host for i in chosen})
            yield ServeLayout(split="tensor", cards=chosen, tp=number, apart=True, hosts=hosts, unit=unit(cards))
        number *= 2


def with_replicas(layout: ServeLayout, cards: Sequence[Card], users: int) -> Iterator[ServeLayout]:
    """Yield a layout with more replicas, where all cards are equal and there are concurrent requests for every replica."""
    if len({card.chip.key for card in cards}) > 1 or users < 2 or layout.gpu_layers is not None or layout.expert_layers:
        return
    per_host = sum(card.host == 0 for card in cards)
    hosts = cards[-1].host + 1
    most = hosts // layout.hosts if layout.hosts > 1 else hosts * (per_host // len(layout.cards))
    numbers = {1 << i for i in range(1, most.bit_length())} | {most}
    yield from (replace(layout, replicas=n) for n in sorted(numbers) if 1 < n <= min(most, users))


def tensor_parallel_sizes(model: Model, most: int) -> list[int]:
    """List the tensor-parallel sizes up to `most` that a model can be split over."""
    return [tp for tp in range(1, most + 1) if not places.refuses_tp(model, tp)]


# Layers per card.


def even_shares(sizes: Sequence[float], rooms: Sequence[float]) -> tuple[float, ...] | None:
    """Return layers per card, in card order, such that the fullest card is as empty as possible; None where they do not all fit. `sizes`
    are bytes of each layer with its cache, the head last; `rooms` the usable bytes of each card."""
    low, high, best = 0.0, 1.0, None
    for _ in range(24):
        middle = (low + high) / 2
        counts = _fill(sizes, [room * middle for room in rooms])
        low, high, best = (low, middle, counts) if counts else (middle, high, best)
    return best or _fill(sizes, rooms)


def fastest_shares(sizes: Sequence[float], rooms: Sequence[float], speeds: Sequence[float]) -> tuple[float, ...] | None:
    """Return layers per card, the fastest filled first, since layers are read one after another. None where they do not all fit."""
    largest, left = max(sizes[:-1]), len(sizes)
    rooms = [room - max(0.0, sizes[-1] - largest) for room in rooms]  # any card may get the head, so each keeps room for it
    counts = [0.0] * len(rooms)
    for i in sorted(range(len(rooms)), key=lambda i: -speeds[i]):
        counts[i] = float(min(left, max(0, int(rooms[i] // largest))))
        left -= int(counts[i])
    return tuple(counts) if not left and any(counts) else None


def _fill(sizes: Sequence[float], rooms: Sequence[float]) -> tuple[float, ...] | None:
    """Fill one card after another and return layers per card; None where they do not all fit."""
    counts, device, used = [0.0] * len(rooms), 0, 0.0
    for size in sizes:
        while device < len(rooms) and used + size > rooms[device]:
            device, used = device + 1, 0.0
        if device == len(rooms):
            return None
        counts[device] += 1
        used += size
    return tuple(counts)
