"""Work of a served model per device: bytes to read, FLOPs to compute, hops between devices. No calibrated coefficient is used here."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil

from meshwise.catalogue.chips import Chip, Cluster, Link
from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.cache import CacheRequest, LayerCache, layer_caches
from meshwise.cost.serve.placement import HOST, Load, Placement, cache_part
from meshwise.cost.serve.waves import Product, products
from meshwise.cost.tiles import FLASH_HEAD
from meshwise.cost.work import Serve
from meshwise.models.families.blocks import HEAD
from meshwise.models.formats import Weights
from meshwise.models.model import Model
from meshwise.models.op import Op


@dataclass(frozen=True, kw_only=True)
class Rig:
    """Devices in the order of the layers on them, and the links between them."""

    chips: tuple[Chip, ...]
    hosts: tuple[int, ...]
    """The host of each device."""
    cpu: Chip
    """Computes the layers that stay in host memory."""
    link: Link | None = None
    """Inside a host."""
    network: Link | None = None
    """Between hosts."""

    @classmethod
    def of(cls, cluster: Cluster, cpu: Chip) -> "Rig":
        """List the devices of a cluster whose hosts have this CPU."""
        chips: list[Chip] = []
        hosts: list[int] = []
        for count, node in cluster.nodes:
            for _ in range(count):
                host = hosts[-1] + 1 if hosts else 0
                chips += [chip for number, chip in node.chips for _ in range(number)]
                hosts += [host] * node.devices
        return cls(chips=tuple(chips), hosts=tuple(hosts), cpu=cpu, link=cluster.node.link, network=cluster.network)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of one device in a decode step of all its requests, and for one prompt."""

    chip: Chip
    layers: float
    starts: float
    """Layers whose kernels a decode step launches; fewer where the engine has fused kernels for one token."""
    single: bool
    """Whether a decode step is one token and the engine has separate kernels for that."""
    weights: float
    """Bytes of weights that a decode step reads."""
    cache: float
    """Bytes of KV cache and states that a decode step reads."""
    flash: bool
    flops: float
    """FLOPs of all products of a decode step."""
    batch_weights: float
    """Bytes of weights that a micro-batch of the prompt reads, without the head."""
    head: float
    """Bytes of the head, which is applied to the last token of a prompt only."""
    prompt_flops: float
    """FLOPs of all products of a prompt, without the head."""
    rows: int
    """Tokens of a micro-batch."""
    products: tuple[Product, ...]
    """The matrix products of all layers."""
    attention: float
    """FLOPs of attention over the whole prompt; with flash kernels, converted to FLOPs at a head size of 128 that take as long."""
    scores: float
    """Bytes of scores that attention without flash kernels writes once; 0 with them."""
    activations: float
    """Bytes of inputs and outputs of the products of the whole prompt."""

    @property
    def idle(self) -> bool:
        return not (self.weights or self.cache)


@dataclass(frozen=True, kw_only=True)
class Hop:
    """A transfer of activations from one device to the next, or of logits back to the first host."""

    link: Link | None
    remote: bool
    """Whether it goes to another host."""
    token_bytes: float
    prompt_tokens: int
    """Tokens of a prompt that are sent."""
    layers: int
    """Layers of the remote host, whose compute graph is sent over RPC; 0 on the first host."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The work of a whole replica. `stages` run one after another; the devices of a stage compute the same layers in parallel."""

    int8_products: bool
    peak_type: str
    """Weight format, which decides the type that products are computed in."""
    narrow: float
    """Share of quantised weights."""
    users: int
    """Concurrent requests."""
    micro_batches: int
    """Micro-batches of a prompt."""
    copies: int
    """Micro-batches in flight at once."""
    groups: int
    """Groups of requests that follow one another through the stages of a pipeline."""
    stages: tuple[tuple[Task, ...], ...]
    host: Task
    pcie: Link | None
    crossings: float
    """Transfers between host memory and a device in a step."""
    hops: tuple[Hop, ...]
    reduces: float
    """All-reduces of a step."""
    reduce_link: Link | None
    reduce_remote: bool
    reduce_bytes: float
    """Bytes of an all-reduce per token."""
    prompt: int
    row_products: float
    """Products of a step that a row split cuts."""
    row_bytes: float
    """Bytes per token that a row split moves between devices."""


@dataclass(frozen=True)
class TokenWork:
    """Work per token of a model, layer by layer."""

    products: tuple[float, ...]
    """FLOPs of the products of each layer."""
    experts: tuple[float, ...]
    """FLOPs in `products` of routed experts."""
    attention: tuple[tuple[Op, ...], ...]
    """Attention Ops of each layer."""
    head: float
    """FLOPs of the head."""
    cut: int
    """Number of products of all layers, without experts: those that a row split cuts."""
    inputs: float
    """Input elements of these products."""
    outputs: float
    """Output elements of these products."""
    touched: float
    """Input and output elements of the products of an average layer, with the experts that a token is routed to."""


@lru_cache(maxsize=16)
def token_work(model: Model) -> TokenWork:
    """Count the work per token of a model."""
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
    return TokenWork(
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
class Workload:
    """A model on a placement with a runtime and a serving task: counts the task of each device."""

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
        """Groups of requests: one per pipeline stage, at most one per request."""
        stages = len(self.placement.devices) // self.placement.tp if self.placement.split == "tensor" else 1
        return max(1, min(stages, self.work.users))

    @cached_property
    def caches(self) -> tuple[LayerCache, ...]:
        """The cache of all requests at the mean context of the generation."""
        kv = self.work.kv
        request = CacheRequest(context=self.work.mean_context, sequences=self.work.users, key=kv, value=kv)
        return layer_caches(self.model, self.runtime, request)

    def products(self, load: Load) -> float:
        """Return FLOPs per token of a device's products, without the head. A row split cuts every product by the same shares; other splits
        place whole layers, or 1/tp of them."""
        per_token, devices = token_work(self.model), self.placement.devices
        in_layers = sum(per_token.products[i] for i in load.layers) / self.placement.tp
        pinned = _pinned(self.placement, per_token)
        if load.device == HOST:
            return in_layers + pinned
        if self.placement.split == "row":
            share = load.weights / sum(other.weights for other in devices)
            return share * sum(per_token.products[i] for other in devices for i in other.layers)
        return in_layers - pinned * len(load.layers) / max(1, sum(len(other.layers) for other in devices))

    def head(self, load: Load) -> float:
        """Return bytes of the head on a device, from its share in the FLOPs of the device's weights that every token uses."""
        per_token = token_work(self.model)
        layers = range(len(per_token.products)) if self.placement.split == "row" else load.layers
        others = sum(per_token.products[i] - per_token.experts[i] for i in layers)
        return load.once * per_token.head / (others + per_token.head) if load.head else 0.0

    def task(self, load: Load, chip: Chip) -> Task:
        """Count the work of one device."""
        per_token, prompt = token_work(self.model), self.work.prompt
        part, users = 1 / self.placement.tp, self.work.users / self.groups
        scores = [(_keys(op, prompt, self.size, self.flash), op) for i in load.layers for op in per_token.attention[i]]
        flops, head = self.products(load), per_token.head * part if load.head else 0.0
        head_bytes, single = self.head(load), self.work.users == 1 and self.runtime.alone < 1
        return Task(
            chip=chip,
            layers=len(load.layers),
            starts=len(load.layers) * (self.runtime.alone if single else 1.0),
            single=single,
            weights=load.read(users),
            cache=sum(_cache_read(self.model, self.caches[i], self.placement.tp, self.flash) for i in load.layers) / self.groups,
            flash=self.flash,
            flops=users * (flops + head),
            batch_weights=load.read(self.size) - head_bytes,
            head=head_bytes,
            prompt_flops=prompt * flops,
            rows=self.size,
            products=products(self.model, self.placement.tp, self.runtime.joined),
            attention=prompt * part * sum(keys * 2 * op.m * (op.n + op.k) * _slower(op, self.flash) for keys, op in scores),
            scores=0.0 if self.flash else prompt * part * sum(keys * op.m * 4 for keys, op in scores),
            activations=prompt * part * per_token.touched * len(load.layers) * self.runtime.element,
        )


def demand(model: Model, weights: Weights, placement: Placement, rig: Rig, runtime: Runtime, work: Serve) -> Demand:
    """Count a decode step at the mean context of the generation, and the prompt of one request in micro-batches of the engine's size."""
    workload, per_token, tp = Workload(model, placement, runtime, work), token_work(model), placement.tp
    tasks = [workload.task(load, chip) for load, chip in zip(placement.devices, rig.chips, strict=True)]
    busy = [i for i, task in enumerate(tasks) if not task.idle]
    host = workload.task(placement.host, rig.cpu)
    pipelined = host.idle and placement.split == "layer" and len(busy) > 1
    wide = any(len({rig.hosts[i] for i in group}) > 1 for group in _groups(placement))
    rows = placement.split == "row" and len(busy) > 1
    return Demand(
        int8_products=runtime.int8_products,
        peak_type=weights.format,
        narrow=weights.narrow,
        users=work.users,
        micro_batches=max(1, ceil(work.prompt / workload.size)),
        copies=runtime.copies if pipelined else 1,
        groups=workload.groups,
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
        row_products=float(per_token.cut) if rows else 0.0,
        row_bytes=4 * _row_elements(per_token, len(busy)) if rows else 0.0,
    )


def _pinned(placement: Placement, per_token: TokenWork) -> float:
    """Return FLOPs of experts that are on the host while the rest of their layer is on a device."""
    experts = sum(load.experts for load in placement.loads)
    in_host_layers = sum(per_token.experts[i] for i in placement.host.layers)
    return max(0.0, sum(per_token.experts) * placement.host.experts / experts - in_host_layers) if experts else 0.0


def _crossings(placement: Placement, weights: Weights) -> float:
    """Count transfers: one from the host's layers to the first device, two per layer whose experts alone stay on the host."""
    host = placement.host
    if not any(load.layers for load in placement.devices):
        return 0.0
    if not host.experts:
        return float(bool(host.layers))
    mixed = sum(any(weight.slot.expert for weight in layer) for layer in weights.by_layer)
    separate = mixed * host.experts / sum(load.experts for load in placement.loads) - len(host.layers)
    return bool(host.layers) + 2 * max(0.0, separate)


def _cache_read(model: Model, cache: LayerCache, tp: int, flash: bool) -> float:
    """Return bytes of one layer's cache that one device reads. Without flash kernels each query head reads its keys separately. States are
    read and written."""
    state = ceil(cache.state / tp)
    keys = cache_part(cache, tp) - state
    sharing = 1 if flash or not cache.heads else max(1, model.decoder.heads // cache.heads)
    return sharing * keys + 2 * state


def _slower(op: Op, flash: bool) -> float:
    """Return the slowdown of flash attention with small heads, which compute more exponentials per product; 1 at a head size of 128."""
    size = (op.n + op.k) / 2
    return (size + FLASH_HEAD) / (1.5 * size) if flash else 1.0


def _keys(op: Op, prompt: int, size: int, flash: bool) -> float:
    """Return the mean number of keys per token of the prompt. Without flash kernels a micro-batch uses all keys up to its last token."""
    if not prompt:
        return 0.0
    return op.keys(prompt) if flash else min(float(op.window or prompt), (prompt + size) / 2)


def _row_elements(per_token: TokenWork, devices: int) -> float:
    """Return elements that a row split moves: inputs to all devices but one, and the outputs of those devices back."""
    return per_token.inputs * (devices - 1) + per_token.outputs * (devices - 1) / max(1, devices)


def _groups(placement: Placement) -> list[range]:
    """Return the devices of each tensor-parallel group; none without tensor parallelism."""
    return [range(i, i + placement.tp) for i in range(0, len(placement.devices), placement.tp)] if placement.tp > 1 else []


def _stages(placement: Placement, tasks: list[Task], busy: list[int]) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each stage: a tensor-parallel group, all devices of a row split, or one device of a layer split."""
    if placement.tp > 1:
        return tuple(tuple(tasks[i] for i in group) for group in _groups(placement))
    if placement.split == "row":
        return (tuple(tasks[i] for i in busy),) if busy else ()
    return tuple((tasks[i],) for i in busy)


def _hops(model: Model, placement: Placement, rig: Rig, runtime: Runtime, busy: list[int], work: Serve) -> tuple[Hop, ...]:
    """Return the hops between consecutive devices and, where the head is on another host, the logits back to the first."""
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
