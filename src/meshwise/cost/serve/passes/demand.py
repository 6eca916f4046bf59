"""Work of a served model per device: bytes to read, FLOPs to compute, hops between devices. No calibrated coefficient is used here."""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor

from meshwise.catalogue.chips import Chip, Link
from meshwise.catalogue.engines import Runtime
from meshwise.cost.precision import FLASH_HEAD
from meshwise.cost.serve.memory.cache import CacheRequest, LayerCache, cached_rows
from meshwise.cost.serve.memory.placement import HOST_MEMORY, Load, Placement, cache_part
from meshwise.cost.serve.passes.task import Hop, Task
from meshwise.cost.serve.passes.tokens import DENSE_KERNELS, TokenWork, adapted_products, token_work
from meshwise.cost.serve.passes.waves import products
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.models.formats import Weights
from meshwise.models.model import Model
from meshwise.models.op import Op

ROUNDED_INPUTS = ("fp8", "int8", "nvfp4")  # formats whose products take inputs of the same type; others multiply in 16 bits
WHOLE_CACHE = ("f32", "f16", "bf16")  # cache types that are not quantised
REDUCES = 2.0  # all-reduces of a layer whose products are cut: after attention, and after the feed-forward


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The work of a whole replica. `stages` run one after another; the devices of a stage compute the same layers in parallel."""

    int8_products: bool
    peak_type: str  # weight format, which decides the type that products are computed in
    narrow: float  # share of quantised weights
    windows: tuple[int, ...]  # distinct windows of the attention layers; 0 is full attention
    attentions: tuple[Op, ...]  # an attention Op of each window, which counts the keys of a prompt
    flash: bool
    pad: int  # the cache of a sequence is read in blocks of this many tokens
    batch: int  # tokens of a micro-batch
    copies: int  # micro-batches of a prompt in flight at once
    queued: bool  # whether the host can queue a whole stage before the next one starts, so that micro-batches overlap
    alone: float  # fraction of a layer's kernels with a single token, if the engine has kernels of its own for that; otherwise 1
    pipeline: int  # groups of requests that follow one another through the stages; 1 where a pass waits for the one before it
    stages: tuple[tuple[Task, ...], ...]
    host: Task
    pcie: Link | None
    crossings: float  # transfers between host memory and a device in a step
    hops: tuple[Hop, ...]
    tp: int
    reduces: float  # all-reduces of a layer
    reduce_link: Link | None
    reduce_remote: bool
    dispatch_bytes: float  # bytes per token and layer with experts to and from experts on other devices; 0 where none are apart
    peer_access: bool  # whether its devices can read each other's memory over PCIe
    reduce_bytes: float  # bytes of an all-reduce per token
    vocabulary: int  # logits of a sequence that a token is chosen from; 0 where none is chosen
    eager: bool  # whether no graph launches a step
    graph_tokens: int  # tokens up to which graphs launch a pass with prompts
    devices: int  # devices that have work
    row_products: float  # products of a step that a row split cuts
    row_bytes: float  # bytes per token that a row split moves between devices

    def reached(self, context: float) -> tuple[float, ...]:
        """Return the cached tokens that a sequence of this length reads, by window; llama.cpp keeps and reads a micro-batch more."""
        padded, more = context + self.pad / 2, self.batch if self.int8_products else 0
        return tuple(min(padded, window + more) if window else padded for window in self.windows)

    def padded(self, tokens: float) -> float:
        """Return the tokens that a graph computes, and routes: 1, 2, 4 or a multiple of 8; between whole numbers, the mean of both."""
        if self.eager or tokens > self.graph_tokens:
            return tokens
        low, high = (n if n <= 2 else 4 if n <= 4 else ceil(n / 8) * 8 for n in (floor(tokens), ceil(tokens)))
        return low + (high - low) * (tokens % 1)

    def prompt_pairs(self, prompt: float, depth: float = 0.0, *, size: float = 0.0) -> tuple[float, ...]:
        """Return pairs of query and key of a prompt after `depth` tokens, by window; a micro-batch of `size` all, without flash kernels."""
        if not prompt:
            return (0.0,) * len(self.windows)
        if self.flash:
            return tuple(pairs_until(op, depth + prompt) - pairs_until(op, depth) for op in self.attentions)
        return tuple(prompt * min(float(op.window or depth + prompt), depth + (prompt + size) / 2) for op in self.attentions)


def pairs_until(op: Op, tokens: float) -> float:
    """Return pairs of query and key in the first `tokens` tokens of a sequence."""
    window = op.window
    if not window or tokens <= window:
        return tokens * (tokens + 1) / 2
    if op.chunked:
        whole, rest = divmod(tokens, window)
        return whole * window * (window + 1) / 2 + rest * (rest + 1) / 2
    return window * (window + 1) / 2 + (tokens - window) * window


@dataclass(frozen=True)
class Workload:
    """A model on a placement with a runtime: counts the task of each device."""

    model: Model
    placement: Placement
    runtime: Runtime
    flash: bool
    windows: tuple[int, ...]
    rows: tuple[LayerCache, ...]  # the cache of one token of one sequence, layer by layer, and the states of the sequence
    per_token: TokenWork
    rounds_inputs: bool = False  # whether inputs of products are rounded to the type of the weights

    def products(self, load: Load) -> float:
        """Return FLOPs per token of a device's products but the head: equal shares of each in a row split, else whole layers or 1/tp."""
        per_token, devices = self.per_token, self.placement.devices
        in_layers = sum(per_token.products[i] for i in load.layers) / self.placement.tp
        pinned = _pinned(self.placement, per_token)
        if load.device == HOST_MEMORY:
            return in_layers + pinned
        if self.placement.split == "row":
            share = load.weights / sum(other.weights for other in devices)
            return share * sum(per_token.products[i] for other in devices for i in other.layers)
        return in_layers - pinned * len(load.layers) / max(1, sum(len(other.layers) for other in devices))

    def _expert_flops(self, load: Load) -> float:
        """Return FLOPs per token of the experts on a device, by its share of their bytes."""
        held = sum(other.experts for other in self.placement.loads)
        return sum(self.per_token.experts) * load.experts / held if held else 0.0

    def head(self, load: Load) -> float:
        """Return bytes of the head on a device, from its share in the FLOPs of the device's weights that every token uses."""
        per_token = self.per_token
        layers = range(len(per_token.products)) if self.placement.split == "row" else load.layers
        others = sum(per_token.products[i] - per_token.experts[i] for i in layers)
        return load.once * per_token.head / (others + per_token.head) if load.head else 0.0

    def task(self, load: Load, chip: Chip) -> Task:
        """Count the work of one device."""
        per_token, part, head = self.per_token, 1 / self.placement.tp, self.head(load)
        scores = [(op, 2 * op.m * (op.n + op.k)) for i in load.layers for op in per_token.attention[i]]
        return Task(
            chip=chip, layers=len(load.layers),
            kernels=sum(per_token.kernels[i] for i in load.layers) + self._further_kernels(load),
            mixtures=float(sum(per_token.experts[i] > 0 for i in load.layers)), weights=load.once - head, head=head,
            experts=load.experts, routed=load.routed, flops=self.products(load), expert_flops=self._expert_flops(load),
            head_flops=per_token.head * part if load.head else 0.0,
            products=products(self.model, 1 if self.placement.apart else self.placement.tp, self.runtime.joined),
            reads=self._by_window([(i, self._cache_read(self.rows[i])) for i in load.layers]),
            state=sum(2.0 * ceil(self.rows[i].state / self.placement.tp) for i in load.layers),
            keyed=self._by_window([(i, part * self._latent_flops(i)) for i in load.layers]),
            pairs=self._by_op([(op, part * flops * _slower(op, self.flash)) for op, flops in scores]),
            scores=self._by_op([(op, 0.0 if self.flash else part * op.m * 4) for op, _ in scores]),
            touched=part * per_token.touched * len(load.layers) * self.runtime.element, adapters=self.placement.adapters,
            adapter=float(load.adapter),
        )  # fmt: skip

    def _further_kernels(self, load: Load) -> float:
        """Return the kernels of adapters, in layers of a dense model: two for each product, or for those that are joined; and one that
        rounds the inputs of each, where they are multiplied in 8 or 4 bits. An all-reduce may do the work of a norm and a rounding."""
        each = 2 * bool(self.placement.adapters) + self.rounds_inputs
        numbers = adapted_products(self.model, self.runtime.joined) if each else ()
        reduced = self.runtime.fused_reduce and self.placement.tp > 1 and not self.placement.apart
        fused = REDUCES * (1 + self.rounds_inputs) * len(load.layers) if reduced else 0.0
        return (each * sum(numbers[i] for i in load.layers if each) - fused) / DENSE_KERNELS

    def _cache_read(self, cache: LayerCache) -> float:
        """Return bytes of one cached token of a layer that one device reads; those of 1/tp of the requests where devices have their own."""
        tp = self.placement.tp
        if self.placement.apart:
            return _cache_read(self.model, cache, 1, self.flash, self.runtime) / tp
        return _cache_read(self.model, cache, tp, self.flash, self.runtime)

    def _latent_flops(self, layer: int) -> float:
        """Return FLOPs per cached token of one query with latent attention: every head computes with the whole latent (absorbed)."""
        if self.rows[layer].heads or not self.rows[layer].kv:
            return 0.0
        return sum(2 * op.m * 2 * op.cache for op in self.per_token.attention[layer])

    def _by_window(self, values: list[tuple[int, float]]) -> tuple[float, ...]:
        """Sum the values of layers by the window of their attention."""
        windows = {i: max((op.window for op in self.per_token.attention[i]), default=0) for i, _ in values}
        return tuple(sum(value for i, value in values if windows[i] == window) for window in self.windows)

    def _by_op(self, values: list[tuple[Op, float]]) -> tuple[float, ...]:
        return tuple(sum(value for op, value in values if op.window == window) for window in self.windows)


def demand(model: Model, weights: Weights, placement: Placement, rig: Rig, runtime: Runtime, work: Serve) -> Demand:
    """Count the work of a replica's devices."""
    per_token, tp = token_work(model), placement.tp
    attentions = {op.window: op for layer in per_token.attention for op in layer}
    windows = tuple(sorted(attentions)) or (0,)
    flash = runtime.flash if work.flash is None else work.flash
    if work.kv not in WHOLE_CACHE and rig.chips and rig.chips[0].vendor in runtime.per_head_narrow:
        runtime = replace(runtime, per_head=True)
    rows = cached_rows(model, runtime, CacheRequest(context=1, key=work.kv, value=work.kv))
    rounds = weights.format in ROUNDED_INPUTS and not runtime.gguf
    workload = Workload(model, placement, runtime, flash, windows, rows, per_token, rounds)
    tasks = _tasks(workload, rig)
    busy = [i for i, task in enumerate(tasks) if not task.idle]
    host = workload.task(placement.host, rig.cpu)
    stages = _stages(placement, tasks, busy)
    pipelined = host.idle and placement.split == "layer" and len(busy) > 1
    wide = any(len({rig.hosts[i] for i in group}) > 1 for group in _groups(placement))
    rowwise = placement.split == "row" and len(busy) > 1
    return Demand(
        int8_products=runtime.int8_products, peak_type=weights.format, narrow=weights.narrow, windows=windows,
        attentions=tuple(attentions[window] for window in windows) if attentions else (), flash=flash, pad=runtime.pad,
        batch=(runtime.batch_on(rig.chips[0]) if rig.chips else runtime.batch) * (tp if placement.apart else 1),
        copies=runtime.copies if pipelined else 1,
        queued=max((stage[0].layers for stage in stages), default=0) * runtime.launches <= runtime.queue, alone=runtime.alone,
        pipeline=len(stages) if placement.split == "tensor" else 1, stages=stages,
        host=host, pcie=rig.chips[0].host if rig.chips else None, crossings=_crossings(placement, weights),
        hops=_hops(model, placement, rig, runtime, busy), tp=tp, reduces=REDUCES if tp > 1 and not placement.apart else 0.0,
        dispatch_bytes=_dispatched(model, weights, tp) if placement.apart else 0.0,
        reduce_link=(rig.network if wide else rig.link or rig.chips[0].host) if tp > 1 else None, reduce_remote=wide,
        peer_access=all(chip.peer_access for chip in rig.chips), reduce_bytes=model.decoder.hidden * 2.0, devices=len(busy),
        vocabulary=model.decoder.vocab if work.sampled else 0, eager=work.eager,
        graph_tokens=runtime.graph_tokens,
        row_products=float(per_token.cut) if rowwise else 0.0,
        row_bytes=4 * _row_elements(per_token, len(busy)) if rowwise else 0.0,
    )  # fmt: skip


def _tasks(workload: Workload, rig: Rig) -> list[Task]:
    """Return the task of each device; those of a tensor-parallel group on equal chips are equal, and counted once."""
    tasks: list[Task] = []
    tp, devices = workload.placement.tp, workload.placement.devices
    for i, (load, chip) in enumerate(zip(devices, rig.chips, strict=True)):
        same = i % tp and chip == rig.chips[i - 1]
        tasks.append(tasks[-1] if same else workload.task(load, chip))
    return tasks


def _dispatched(model: Model, weights: Weights, devices: int) -> float:
    """Return bytes per token and layer: its activations to each device that has one of its experts, in 8 bits, and back in 16."""
    active = max((weight.slot.share * weight.slot.copies for weight in weights.tensors if weight.slot.expert), default=0.0)
    reached = devices * (1 - (1 - 1 / devices) ** active)
    return reached * (devices - 1) / devices * model.decoder.hidden * 3.0


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


def _cache_read(model: Model, cache: LayerCache, tp: int, flash: bool, runtime: Runtime) -> float:
    """Return bytes of one cached token of a layer that one device reads. Without flash kernels, or with some, each query head reads its
    keys; an engine that repeats them writes a copy for each, and reads it."""
    keys = cache_part(cache, tp) - ceil(cache.state / tp)
    heads = max(1, model.decoder.heads // cache.heads) if cache.heads else 1
    return float((1 + 2 * heads if runtime.repeats_keys else 1 if flash and not runtime.per_head else heads) * keys)


def _slower(op: Op, flash: bool) -> float:
    """Return the slowdown of flash attention with small heads, which compute more exponentials per product; 1 at a head size of 128."""
    size = (op.n + op.k) / 2
    return (size + FLASH_HEAD) / (1.5 * size) if flash else 1.0


def _row_elements(per_token: TokenWork, devices: int) -> float:
    """Return elements that a row split moves: inputs to all devices but one, and the outputs of those devices back."""
    return per_token.inputs * (devices - 1) + per_token.outputs * (devices - 1) / max(1, devices)


def _groups(placement: Placement) -> list[range]:
    """Return the devices of each tensor-parallel group; none without tensor parallelism."""
    return [range(i, i + placement.tp) for i in range(0, len(placement.devices), placement.tp)] if placement.tp > 1 else []


def _stages(placement: Placement, tasks: list[Task], busy: list[int]) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each stage: a tensor-parallel group, all devices of a row split, or one device of a layer split. Equal tasks of
    a stage take equally long and are listed once."""
    if placement.tp > 1:
        return tuple((tasks[group[0]],) for group in _groups(placement))
    if placement.split == "row":
        different = [i for n, i in enumerate(busy) if tasks[i] not in [tasks[k] for k in busy[:n]]]
        return (tuple(tasks[i] for i in different),) if busy else ()
    return tuple((tasks[i],) for i in busy)


def _hops(model: Model, placement: Placement, rig: Rig, runtime: Runtime, busy: list[int]) -> tuple[Hop, ...]:
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
            layers=len(placement.devices[b].layers) if rig.hosts[b] else 0,
        )
        for a, b in pairwise(firsts)
    ]
    if rig.hosts[firsts[-1]]:
        hops.append(Hop(link=rig.network, remote=True, token_bytes=model.decoder.vocab * 4.0, logits=True, layers=0))
    return tuple(hops)
