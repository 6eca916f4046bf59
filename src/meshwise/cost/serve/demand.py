"""What serving a model asks of each device: bytes to read, FLOPs to do, hops to take. No coefficient comes in here."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil

from meshwise.catalogue.chips import Chip, Cluster, Link, find_chip, known_chip
from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.cache import Held, LayerCache, layer_caches
from meshwise.cost.serve.placement import HOST, Load, Placement, cache_part
from meshwise.cost.serve.waves import Product, products
from meshwise.cost.tiles import FLASH_HEAD
from meshwise.cost.work import Serve
from meshwise.models.families.blocks import HEAD
from meshwise.models.formats import Weights
from meshwise.models.model import Model
from meshwise.models.op import Op

GENERIC_CPU = "cpu"
"""What a host is taken for where nothing is known of it: a desktop with two channels of DDR5 (data/chips/cpu.toml)."""


@dataclass(frozen=True)
class Rig:
    """Devices in the order in which a model is laid over them, and what joins them."""

    chips: tuple[Chip, ...]
    hosts: tuple[int, ...]
    """The host of each device."""
    link: Link | None = None
    """Inside a host."""
    network: Link | None = None
    """Between hosts."""
    cpu: Chip | None = None
    """What computes the layers that stay in host memory; a generic desktop where it is not said."""

    @classmethod
    def of(cls, cluster: Cluster) -> "Rig":
        chips: list[Chip] = []
        hosts: list[int] = []
        for count, node in cluster.nodes:
            for _ in range(count):
                host = hosts[-1] + 1 if hosts else 0
                chips += [chip for number, chip in node.chips for _ in range(number)]
                hosts += [host] * node.devices
        node = cluster.node
        named = node.host.cpus.rpartition(" x ")[2]
        return cls(tuple(chips), tuple(hosts), node.link, cluster.network, known_chip(named) if named else None)

    @property
    def processor(self) -> Chip:
        return self.cpu or find_chip(GENERIC_CPU)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one device does in a decode step of all its users, and for one prompt."""

    chip: Chip
    layers: float
    starts: float
    """Layers' worth of kernels that a decode step starts."""
    single: bool
    """A decode step is one token, and the engine has products of its own for it."""
    weights: float
    """Bytes of weights that a decode step reads."""
    cache: float
    """Bytes of keys, values and states that it reads."""
    flash: bool
    flops: float
    """Of all products of a decode step."""
    batch_weights: float
    """Bytes of weights that a micro-batch of the prompt reads, the head's apart."""
    head: float
    """Bytes of the head, which multiplies the last token of a prompt alone."""
    prompt_flops: float
    rows: int
    """Tokens of a micro-batch."""
    products: tuple[Product, ...]
    """What it multiplies them with."""
    attention: float
    """FLOPs of attention over the whole prompt; flash kernels', as many of heads of 128 as take them as long."""
    scores: float
    """Bytes of scores that attention without flash kernels writes once; 0 with them."""
    activations: float
    """Bytes that go into and come out of the products of the whole prompt."""

    @property
    def idle(self) -> bool:
        return not (self.weights or self.cache)


@dataclass(frozen=True, kw_only=True)
class Hop:
    """Activations go from one device to the next, or logits back to the first host."""

    link: Link | None
    remote: bool
    token_bytes: float
    prompt_tokens: int
    """How many tokens of a prompt cross."""
    layers: int
    """That another host is told to compute."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """All of it. `stages` follow one another; the devices of a stage work side by side on the same layers."""

    int8_products: bool
    peak_type: str
    narrow: float
    """Share of quantised weights."""
    users: int
    micro_batches: int
    copies: int
    """Micro-batches under way at once."""
    groups: int
    """Of users, which follow one another through the stages of a pipeline."""
    stages: tuple[tuple[Task, ...], ...]
    host: Task
    pcie: Link | None
    crossings: float
    """Between host memory and a device, in a step."""
    hops: tuple[Hop, ...]
    reduces: float
    """All-reduces of a step."""
    reduce_link: Link | None
    reduce_remote: bool
    reduce_bytes: float
    """Of one token."""
    prompt: int
    row_products: float
    """Products that a row split cuts, in a step."""
    row_bytes: float
    """What a row split moves between devices, for one token."""


@dataclass(frozen=True)
class Shape:
    """FLOPs per token of a model, layer by layer."""

    products: tuple[float, ...]
    experts: tuple[float, ...]
    """Those of `products` that are experts'."""
    attention: tuple[tuple[Op, ...], ...]
    head: float
    cut: int
    """Products of all layers together."""
    inputs: float
    outputs: float
    """Elements that go into and come out of these products, for one token."""
    touched: float
    """The same of one layer on average, experts as far as a token meets them."""


@lru_cache(maxsize=16)
def shape(model: Model) -> Shape:
    times = model.times
    products = {
        name: sum(op.flops(1) for op in ops if op.kind != "attention") / times[name]
        for name, ops in model.blocks.items()
        if times[name]
    }
    experts = {
        name: sum(op.flops(1) for op in ops if op.expert) / times[name] for name, ops in model.blocks.items() if times[name]
    }
    scores = {name: tuple(op for op in ops if op.kind == "attention") for name, ops in model.blocks.items()}
    inner = [op for name, ops in model.blocks.items() if times[name] for op in ops if op.kind == "matmul" and not op.expert]
    return Shape(
        tuple(sum(products[block] for block in layer) for layer in model.layers),
        tuple(sum(experts[block] for block in layer) for layer in model.layers),
        tuple(tuple(op for block in layer for op in scores[block]) for layer in model.layers),
        sum(op.flops(1) for op in model.blocks.get(HEAD, ())),
        sum(op.count for op in inner),
        sum(op.count * op.k for op in inner),
        sum(op.count * op.n for op in inner),
        sum(
            op.count * op.m * (op.n + op.k)
            for name, ops in model.blocks.items()
            if times[name]
            for op in ops
            if op.kind == "matmul"
        )
        / len(model.layers),
    )


@dataclass(frozen=True)
class Terms:
    """What every device's task is counted from."""

    model: Model
    placement: Placement
    runtime: Runtime
    work: Serve

    @property
    def flash(self) -> bool:
        return self.runtime.flash if self.work.flash is None else self.work.flash

    @property
    def size(self) -> int:
        """Tokens of a micro-batch."""
        return max(1, min(self.runtime.batch, self.work.prompt))

    @property
    def groups(self) -> int:
        """Of users: as many as there are pipeline stages."""
        stages = len(self.placement.devices) // self.placement.tp if self.placement.split == "tensor" else 1
        return max(1, min(stages, self.work.users))

    @cached_property
    def caches(self) -> tuple[LayerCache, ...]:
        """At the mean context of the generation, of all users."""
        kv = self.work.kv
        held = Held(context=self.work.mean_context, sequences=self.work.users, key=kv, value=kv)
        return layer_caches(self.model, self.runtime, held)

    def products(self, load: Load) -> float:
        """FLOPs per token of a device's products, the head's apart. A row split cuts every product by the same shares; the other splits
        give whole layers, or 1/tp of them."""
        facts, devices = shape(self.model), self.placement.devices
        own = sum(facts.products[i] for i in load.layers) / self.placement.tp
        pinned = _pinned(self.placement, facts)
        if load.device == HOST:
            return own + pinned
        if self.placement.split == "row":
            share = load.weights / sum(other.weights for other in devices)
            return share * sum(facts.products[i] for other in devices for i in other.layers)
        return own - pinned * len(load.layers) / max(1, sum(len(other.layers) for other in devices))

    def head(self, load: Load) -> float:
        """Bytes of the head on a device, by its share in the FLOPs of all weights there that every token meets."""
        facts = shape(self.model)
        layers = range(len(facts.products)) if self.placement.split == "row" else load.layers
        others = sum(facts.products[i] - facts.experts[i] for i in layers)
        return load.once * facts.head / (others + facts.head) if load.head else 0.0

    def task(self, load: Load, chip: Chip) -> Task:
        facts, prompt, part, users = shape(self.model), self.work.prompt, 1 / self.placement.tp, self.work.users / self.groups
        scores = [(_keys(op, prompt, self.size, self.flash), op) for i in load.layers for op in facts.attention[i]]
        flops, head = self.products(load), facts.head * part if load.head else 0.0
        last, single = self.head(load), self.work.users == 1 and self.runtime.alone < 1
        return Task(
            chip=chip,
            layers=len(load.layers),
            starts=len(load.layers) * (self.runtime.alone if single else 1.0),
            single=single,
            weights=load.read(users),
            cache=sum(_cache_read(self.model, self.caches[i], self.placement.tp, self.flash) for i in load.layers) / self.groups,
            flash=self.flash,
            flops=users * (flops + head),
            batch_weights=load.read(self.size) - last,
            head=last,
            prompt_flops=prompt * flops,
            rows=self.size,
            products=products(self.model, self.placement.tp, self.runtime.joined),
            attention=prompt * part * sum(keys * 2 * op.m * (op.n + op.k) * _slower(op, self.flash) for keys, op in scores),
            scores=0.0 if self.flash else prompt * part * sum(keys * op.m * 4 for keys, op in scores),
            activations=prompt * part * facts.touched * len(load.layers) * self.runtime.element,
        )


def demand(model: Model, weights: Weights, placement: Placement, rig: Rig, runtime: Runtime, work: Serve) -> Demand:
    """Decode at the mean context of the generation; the prompt of one user, in micro-batches of the engine's size."""
    terms, facts, tp = Terms(model, placement, runtime, work), shape(model), placement.tp
    tasks = [terms.task(load, chip) for load, chip in zip(placement.devices, rig.chips, strict=True)]
    busy = [i for i, one in enumerate(tasks) if not one.idle]
    host = terms.task(placement.host, rig.processor)
    alone = host.idle and placement.split == "layer" and len(busy) > 1
    wide = any(len({rig.hosts[i] for i in group}) > 1 for group in _groups(placement))
    rows = placement.split == "row" and len(busy) > 1
    return Demand(
        int8_products=runtime.int8_products,
        peak_type=weights.format,
        narrow=weights.narrow,
        users=work.users,
        micro_batches=max(1, ceil(work.prompt / terms.size)),
        copies=runtime.copies if alone else 1,
        groups=terms.groups,
        stages=_stages(placement, tasks, busy),
        host=host,
        pcie=rig.chips[0].host if rig.chips else None,
        crossings=_crossings(placement, weights),
        hops=_hops(model, placement, rig, runtime, busy, work),
        reduces=2.0 * weights.layers if tp > 1 else 0.0,
        reduce_link=(rig.network if wide else rig.link or rig.chips[0].host) if tp > 1 else None,
        reduce_remote=wide,
        reduce_bytes=model.decoder.hidden * 2.0,
        prompt=work.prompt,
        row_products=float(facts.cut) if rows else 0.0,
        row_bytes=4 * _row_elements(facts, len(busy)) if rows else 0.0,
    )


def _pinned(placement: Placement, facts: Shape) -> float:
    """FLOPs of experts that stay on the host while the rest of their layer does not."""
    experts = sum(load.experts for load in placement.loads)
    own = sum(facts.experts[i] for i in placement.host.layers)
    return max(0.0, sum(facts.experts) * placement.host.experts / experts - own) if experts else 0.0


def _crossings(placement: Placement, weights: Weights) -> float:
    """Once from the host's layers to the first device; there and back for every layer whose experts stay on the host."""
    host = placement.host
    if not any(load.layers for load in placement.devices):
        return 0.0
    if not host.experts:
        return float(bool(host.layers))
    mixed = sum(any(weight.slot.expert for weight in layer) for layer in weights.by_layer)
    apart = mixed * host.experts / sum(load.experts for load in placement.loads) - len(host.layers)
    return bool(host.layers) + 2 * max(0.0, apart)


def _cache_read(model: Model, cache: LayerCache, tp: int, flash: bool) -> float:
    """Bytes of one layer's cache that one device reads. Without flash kernels each query head reads its keys by itself. States are read and
    written."""
    state = ceil(cache.state / tp)
    keys = cache_part(cache, tp) - state
    sharing = 1 if flash or not cache.heads else max(1, model.decoder.heads // cache.heads)
    return sharing * keys + 2 * state


def _slower(op: Op, flash: bool) -> float:
    """Flash attention with small heads computes more exponentials for every product. A head of 128 is the unit."""
    size = (op.n + op.k) / 2
    return (size + FLASH_HEAD) / (1.5 * size) if flash else 1.0


def _keys(op: Op, prompt: int, size: int, flash: bool) -> float:
    """Keys that a token of the prompt meets on average. Without flash kernels a micro-batch meets all there are behind its last token."""
    if not prompt:
        return 0.0
    return op.keys(prompt) if flash else min(float(op.window or prompt), (prompt + size) / 2)


def _row_elements(facts: Shape, devices: int) -> float:
    """Inputs go to all devices but one; of the outputs, what the others computed comes back."""
    return facts.inputs * (devices - 1) + facts.outputs * (devices - 1) / max(1, devices)


def _groups(placement: Placement) -> list[range]:
    return [range(i, i + placement.tp) for i in range(0, len(placement.devices), placement.tp)] if placement.tp > 1 else []


def _stages(placement: Placement, tasks: list[Task], busy: list[int]) -> tuple[tuple[Task, ...], ...]:
    if placement.tp > 1:
        return tuple(tuple(tasks[i] for i in group) for group in _groups(placement))
    if placement.split == "row":
        return (tuple(tasks[i] for i in busy),) if busy else ()
    return tuple((tasks[i],) for i in busy)


def _hops(model: Model, placement: Placement, rig: Rig, runtime: Runtime, busy: list[int], work: Serve) -> tuple[Hop, ...]:
    """Between devices that follow one another; and, from a head on another host, the logits back to the first."""
    if placement.split == "row" or not busy:
        return ()
    firsts = busy[:: placement.tp]
    width = model.decoder.hidden * runtime.element
    hops = [
        Hop(
            link=rig.network if rig.hosts[a] != rig.hosts[b] else rig.link or rig.chips[b].host,
            remote=rig.hosts[a] != rig.hosts[b],
            token_bytes=width,
            prompt_tokens=work.prompt,
            layers=len(placement.devices[b].layers) if rig.hosts[b] else 0,
        )
        for a, b in pairwise(firsts)
    ]
    if rig.hosts[firsts[-1]]:
        logits = model.decoder.vocab * 4.0
        hops.append(Hop(link=rig.network, remote=True, token_bytes=logits, prompt_tokens=1, layers=0))
    return tuple(hops)
