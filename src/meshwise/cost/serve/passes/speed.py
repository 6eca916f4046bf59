"""Seconds of a served model, by part: one pass of the engine over decoding sequences and pieces of prompts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import NamedTuple

from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.catalogue.chips import Chip
from meshwise.catalogue.engines import Runtime
from meshwise.cost.parts import SERVE_PARTS
from meshwise.cost.serve.memory.placement import Placement
from meshwise.cost.serve.passes.demand import Demand, demand
from meshwise.cost.serve.passes.links import all_reduce, all_to_all, latency, moved
from meshwise.cost.serve.passes.task import Hop, Task
from meshwise.cost.serve.passes.waves import utilization
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.models.formats import Weights
from meshwise.models.model import Model

HOST_SYNC_SECONDS = 3e-5  # seconds of a synchronization between host and device
BOUND_SHARPNESS = 6.0  # of the minimum of two bounds: equal ones give 11% below either; the best of 3, 4, 6, 10 on cards left out
LPDDR = 0.9  # LPDDR5X shared with a CPU: fits reach 0.87 of the datasheet on GB10, 0.73 on Strix Halo over RPC, 0.94 elsewhere
SCAN_CYCLES = 1.7e-3  # cycles per token of a prompt and byte of recurrent states: llama.cpp goes token by token, a block per head
TILE_TOKENS = 128  # tokens for which llama.cpp's products of quantised weights read a tile of weights once (MMQ)
USUAL_CLOCK = 1.8e9  # cycles per second of a chip that states no clock
MAX_VECTOR_TOKENS = 8  # tokens up to which llama.cpp multiplies vector by vector (MMVQ_MAX_BATCH_SIZE)
MAX_SKINNY_TOKENS = 64  # tokens up to which products are bound by reading: sums are split over all SMs, and no tile is padded
WARP_PEAK = {"Hopper": 0.63}  # share of the peak that llama.cpp's mma.sync reaches where it needs a warp group's instructions
FP4_SHARE = 0.7  # share of the peak in 4-bit products over that in 8-bit ones: scales of 16 elements are applied in between
MAX_EXACT_ROWS = 4096  # rows of a product are rounded to a multiple of 64 above this, to keep the table of utilizations small

Parts = dict[str, float]
Seconds = tuple[float, float, float, float, float, float, float]  # seconds by part, in the order of SERVE_PARTS
Calibrations = Callable[[Chip], ServeCalibration]  # the coefficients of each chip


class Batch(NamedTuple):
    """The work of one pass."""

    decodes: float  # sequences that generate a token each
    contexts: tuple[float, ...]  # cached tokens that they read together, by window (Demand.windows)
    tokens: float = 0.0  # tokens of prompts
    pairs: tuple[float, ...] = ()  # pairs of query and key of these tokens, by window
    ends: float = 0.0  # prompts that end in this pass, so that their logits are computed
    groups: int = 1  # groups of requests that follow one another through the stages of a pipeline
    draft: int = 0  # tokens that speculative decoding proposes for each sequence, and that the pass verifies

    @property
    def rows(self) -> float:
        """Tokens that pass through the layers."""
        return self.decodes * (1 + self.draft) + self.tokens


@dataclass(frozen=True)
class Speed:
    """Seconds of decoding and of a prompt, by part of SERVE_PARTS."""

    decode: Parts  # one step of all requests, at the mean context of the generation
    prefill: Parts  # the prompt of one request
    users: int  # concurrent requests
    prompt: int

    @property
    def step(self) -> float:
        return sum(self.decode.values())

    @property
    def decode_tokens_per_second(self) -> float:
        """Throughput of all requests together."""
        return self.users / self.step

    @property
    def per_user(self) -> float:
        return 1 / self.step

    @property
    def prefill_seconds(self) -> float:
        return sum(self.prefill.values())

    @property
    def ttft(self) -> float:
        """Time to first token of a request that waits for no other: the pass that ends its prompt also chooses the token."""
        return self.prefill_seconds

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prompt / self.prefill_seconds if self.prompt else 0.0


def speed(
    model: Model, weights: Weights, placement: Placement, rig: Rig, runtime: Runtime, work: Serve, calibrations: Calibrations
) -> Speed:
    """Return the speed of a placement."""
    return evaluate(demand(model, weights, placement, rig, runtime, work), work, calibrations)


def evaluate(d: Demand, work: Serve, calibrations: Calibrations) -> Speed:
    """Return the seconds of a decode step of all requests, and of one prompt."""
    cost = PassCost(d, calibrations)
    return Speed(cost.decode(work), cost.prefill(work), work.users, work.prompt)


def read_rate(chip: Chip, s: ServeCalibration) -> float:
    """Return bytes of weights read per second: the smaller of memory bandwidth and the rate at which the SMs consume bytes."""
    streamed, taken = s.stream * reached(chip), s.reach * cycles(chip)
    return (streamed**-BOUND_SHARPNESS + taken**-BOUND_SHARPNESS) ** (-1 / BOUND_SHARPNESS)


def flash_rate(chip: Chip, s: ServeCalibration) -> float:
    """Return bytes of the KV cache read per second by flash kernels: the smaller of memory bandwidth and what the SMs take."""
    streamed, taken = s.flash_cache * reached(chip), s.cache_reach * cycles(chip)
    return (streamed**-BOUND_SHARPNESS + taken**-BOUND_SHARPNESS) ** (-1 / BOUND_SHARPNESS) if taken else streamed


def reached(chip: Chip) -> float:
    """Return bytes per second of the memory, at the share of the datasheet's that it reaches beside GDDR and HBM."""
    return chip.bandwidth * (LPDDR if chip.unified and not chip.in_servers else 1.0)


def cycles(chip: Chip) -> float:
    """Return cycles per second of all SMs together; without a known clock, from the fp32 rate of 128 lanes per SM at 2 FLOPs per cycle."""
    if chip.sms and chip.clock:
        return chip.sms * chip.clock
    return chip.flops.get("fp32", max(chip.flops.values())) / 256


def peak_flops(chip: Chip, kind: str, *, int8_products: bool) -> float:
    """Return FLOP/s of the matrix units in the type in which an engine multiplies weights of this format."""
    flops = chip.flops
    half = max(flops.get("fp16", 0.0), flops.get("bf16", 0.0), flops.get("fp32", 0.0))
    if "fp16" not in flops and "bf16" not in flops:  # each halving of the width doubles the rate
        half = max(half, flops.get("fp8", 0.0) / 2, flops.get("fp4", 0.0) / 4)
    if int8_products:
        return max(half, flops.get("int8", 0.0) / 2) * WARP_PEAK.get(chip.architecture, 1.0)
    four = FP4_SHARE * flops.get("fp4", 0.0)
    native = {"fp8": flops.get("fp8"), "int8": flops.get("int8"), "nvfp4": four, "mxfp4": four}
    return native.get(kind) or half


def _product_rate(d: Demand, chip: Chip, s: ServeCalibration) -> float:
    """Return FLOP/s of products with many tokens. Kernels that unpack weights are bound by cycles: 0.15 of an H200's peak in Q4_K_M."""
    if s.quantized and d.int8_products:
        half = peak_flops(chip, "", int8_products=False) * s.product
        return 1 / ((1 - d.narrow) / half + d.narrow / (s.quantized * cycles(chip)))
    return peak_flops(chip, d.peak_type, int8_products=d.int8_products) * s.product / (1 - d.narrow + d.narrow / s.narrow)


def _overlapped(read: float, multiplied: float, s: ServeCalibration) -> float:
    """Return seconds of products and the reading of their weights, which overlap. Products hide reading completely; reading hides all but
    a share of products, since every tile fetches its inputs again."""
    return max(multiplied, read + s.exposed * multiplied)


@dataclass(frozen=True)
class TaskCost:
    """The seconds of one device in a pass."""

    d: Demand
    task: Task
    s: ServeCalibration
    known: dict[tuple[float, bool], tuple[float, float]] = field(default_factory=dict[tuple[float, bool], tuple[float, float]])
    """Seconds of the layers' products by tokens: reading, and what products add to it."""

    @cached_property
    def rate(self) -> float:
        """FLOP/s of products with many tokens."""
        return _product_rate(self.d, self.task.chip, self.s)

    def filled(self, rows: int, experts: bool) -> float:
        """Return the share of the SMs that whole tiles of these products keep busy."""
        chosen = self.task.expert_products if experts else self.task.dense_products
        return utilization(chosen, rows, self.task.chip.sms or 0, self.s.tile) if rows > MAX_SKINNY_TOKENS and chosen else 1.0

    @cached_property
    def gain(self) -> float:
        """The rate of dense products over that with 16-bit weights, at least 1."""
        return max(1.0, self.rate / (peak_flops(self.task.chip, "", int8_products=self.d.int8_products) * self.s.product))

    @cached_property
    def top(self) -> float:
        """FLOP/s of the matrix units in attention."""
        return peak_flops(self.task.chip, "", int8_products=self.d.int8_products)

    @cached_property
    def reading(self) -> float:
        """Bytes of weights per second."""
        return read_rate(self.task.chip, self.s)

    def layers(self, tokens: float, single: bool) -> tuple[float, float]:
        """Return seconds of reading the weights of the layers once, and of their products as far as reading does not hide them."""
        key = (tokens, single)
        if key not in self.known:
            task, s = self.task, self.s
            experts = task.reached_bytes(self.d.padded(tokens)) / s.grouped
            read = (task.weights + experts) / (self.reading * (s.single if single else 1.0))
            rows = ceil(tokens)
            rows = rows if rows <= MAX_EXACT_ROWS else ceil(rows / 64) * 64
            dense = (task.flops - task.expert_flops) / self.filled(rows, False)
            experts = task.expert_flops * self.gain ** (1 - s.expert_gain) / s.expert_product / self.filled(rows, True)
            multiplied = self.multiplied(tokens, dense) + self.multiplied(tokens, experts, task.sharing(tokens))
            self.known[key] = (read, _overlapped(read, multiplied, s) - read + self.again(tokens))
        return self.known[key]

    def again(self, tokens: float) -> float:
        """Return seconds of reading weights again for each further tile of tokens, and of recurrent states."""
        task = self.task
        if not (self.s.quantized and self.d.int8_products) or tokens <= MAX_SKINNY_TOKENS or task.chip.kind != "gpu":
            return 0.0
        more, routed = ceil(tokens / TILE_TOKENS) - 1, max(0.0, tokens * task.routed / TILE_TOKENS - 0.5)
        scanned = tokens * task.state * SCAN_CYCLES / (task.chip.clock or USUAL_CLOCK)
        return (task.weights * more + task.experts * routed) / self.reading + scanned

    def all_layers(self, tokens: float, passes: int, single: bool) -> tuple[float, float]:
        """Return the same of several passes: full micro-batches, and one with the rest of the tokens."""
        if passes == 1:
            return self.layers(tokens, single)
        full, last = self.layers(self.d.batch, False), self.layers(tokens - (passes - 1) * self.d.batch, False)
        return (passes - 1) * full[0] + last[0], (passes - 1) * full[1] + last[1]

    def multiplied(self, tokens: float, flops: float, sharing: float | None = None) -> float:
        """Return seconds of products with this many tokens. Kernels for a few tokens read weights once and multiply them token by token:
        those after the first, or the `sharing` ones, take longer."""
        if self.s.vector and tokens <= MAX_VECTOR_TOKENS:
            return (max(0.0, tokens - 1) if sharing is None else sharing) * flops / (self.s.vector * cycles(self.task.chip))
        return tokens * flops / self.rate

    def head(self, rows: float, single: bool) -> tuple[float, float]:
        """Return seconds of reading the head, and of its products as far as reading does not hide them."""
        task, s = self.task, self.s
        if not task.head or not rows:
            return 0.0, 0.0
        read = task.head / (self.reading * (s.single if single else 1.0))
        return read, _overlapped(read, self.multiplied(rows, task.head_flops), s) - read

    def attention(self, batch: Batch, part: float) -> float:
        """Return seconds of attention over the cache of decoding sequences (products, where heads share a latent) and pairs of prompts."""
        task, s, bandwidth = self.task, self.s, self.task.chip.bandwidth
        seconds = 0.0
        if batch.decodes:
            size = sum(read * context for read, context in zip(task.reads, batch.contexts, strict=True))
            read = (size + batch.decodes * task.state) / (flash_rate(task.chip, s) if self.d.flash else s.cache * bandwidth)
            flops = sum(keyed * context for keyed, context in zip(task.keyed, batch.contexts, strict=True))
            seconds += max(read, flops / (self.top * s.flash))
        if batch.tokens and batch.pairs:
            flops = sum(pair * number for pair, number in zip(task.pairs, batch.pairs, strict=True))
            scores = sum(size * number for size, number in zip(task.scores, batch.pairs, strict=True))
            rate = self.top * (s.flash if self.d.flash else s.product)
            seconds += flops / rate + s.scores * scores / bandwidth
        return seconds * part

    def seconds(self, batch: Batch) -> Seconds:
        """Return seconds of one group of the batch, by part."""
        task, s, part = self.task, self.s, 1 / batch.groups
        tokens = batch.rows * part
        passes = ceil(tokens / self.d.batch)
        each = tokens / passes
        single = self.d.alone < 1 and batch.rows == 1
        read, more = self.all_layers(tokens, passes, single)
        head_read, head_more = self.head((batch.rows - batch.tokens + batch.ends) * part, single)
        touched = s.touch * task.touched * tokens / task.chip.bandwidth
        if task.adapters:  # read for the requests of the pass; inputs and outputs of the products pass through memory once more
            read += passes * task.adapter_bytes((batch.decodes + batch.ends) * part) / self.reading
            touched += task.touched * tokens / task.chip.bandwidth + tokens * task.adapter / self.top
        clock = task.chip.clock or USUAL_CLOCK
        layer, expert = s.layer + s.cycles / clock, s.expert + s.expert_cycles / clock
        launch = (task.kernels * layer + task.mixtures * expert) * (self.d.alone if single else 1.0)
        reduce = self.d.reduces * task.layers * all_reduce(self.d, each, s) if self.d.reduces else 0.0
        reduce += task.mixtures * all_to_all(self.d, each, s) if self.d.dispatch_bytes else 0.0
        return (
            read + head_read, self.attention(batch, part), more + head_more + touched, passes * launch, 0.0,
            passes * reduce, 0.0,
        )  # fmt: skip


@dataclass(frozen=True)
class PassCost:
    """The seconds of passes of one replica."""

    d: Demand
    calibrations: Calibrations
    costs: dict[int, tuple[TaskCost, ...]] = field(default_factory=dict[int, tuple[TaskCost, ...]])
    """The costs of each stage's devices, by the number of the stage."""

    @cached_property
    def first(self) -> ServeCalibration:
        """The coefficients of the first device, which apply to the replica as a whole; of the host where no device is used."""
        return self.calibrations(self.d.stages[0][0].chip) if self.d.stages else self.calibrations(self.d.host.chip)

    @cached_property
    def units(self) -> float:
        """Layers that the host launches for a pass, in layers of a dense model; experts count as one more."""
        return sum(stage[0].kernels + stage[0].mixtures for stage in self.d.stages)

    @cached_property
    def request(self) -> float:
        """Seconds of a request's first token besides its passes."""
        return self.first.request + self.first.request_layer * self.units

    def __post_init__(self) -> None:
        for i, stage in enumerate(self.d.stages):
            self.costs[i] = tuple(TaskCost(self.d, task, self.calibrations(task.chip)) for task in stage)

    def seconds(self, batch: Batch) -> float:
        """Return the seconds of a pass."""
        return sum(self.parts(batch))

    def parts(self, batch: Batch) -> Seconds:
        """Return the seconds of a pass by part. Groups of requests, and micro-batches, follow one another through stages."""
        d, first = self.d, self.first
        stages = [_slowest([cost.seconds(batch) for cost in costs]) for costs in self.costs.values()]
        totals = [sum(stage) for stage in stages]
        weights, cache, compute, launch, _, reduce, _ = (
            (sum(column) for column in zip(*stages, strict=True)) if stages else (0.0,) * 7
        )
        tokens = batch.rows
        passes = ceil(tokens / batch.groups / d.batch)
        stretch = self._stretch(totals, batch.groups, passes)
        hops = sum(_hop_seconds(hop, batch, passes, first) for hop in d.hops)
        reduce = reduce * stretch + passes * _row_split(d, first)
        reduce += moved(tokens * d.row_bytes, d.pcie, first) if d.row_bytes and batch.tokens else 0.0
        host = 0.0 if d.host.idle else _on_host(d, batch, passes, first)
        compute = compute * stretch + (self._drafted(batch, sum(totals)) if batch.draft else 0.0)
        program = first.step
        if d.vocabulary:  # a server, not a program that times products alone
            program += (first.sequence + first.sample * d.vocabulary) * batch.decodes
        if (d.eager or (batch.tokens and tokens > d.graph_tokens)) and first.prompt_launch:  # the host is slower than the device
            program += max(0.0, self.units * first.prompt_launch - sum(totals))
        return weights * stretch, cache * stretch, compute, launch * stretch + program, hops, reduce, host

    def _drafted(self, batch: Batch, busy: float) -> float:
        """Return seconds of proposing tokens one after another with one layer and the head, as MTP and EAGLE do."""
        layers = sum(stage[0].layers for stage in self.d.stages)
        heads = sum(sum(costs[0].head(batch.decodes, False)) for costs in self.costs.values())
        return batch.draft * (busy / max(1, layers) + heads)

    def _stretch(self, totals: list[float], groups: int, passes: int) -> float:
        """Return the time of all stages with overlap over their sum: in a pipeline as long as the slowest stage for all groups, or all
        stages for one group, whichever is longer; in a layer split, micro-batches overlap in at most `copies` stages. Worked: 8
        micro-batches over 4 equal stages: 8 + 3 = 11 quarter passes instead of 32."""
        busy = sum(totals)
        if not busy:
            return 1.0
        if groups > 1:
            return max(groups * max(totals), busy) / busy
        if passes > 1 and self.d.copies > 1 and self.d.queued:
            share = max(max(totals), busy / self.d.copies) / busy
            return 1 - self.first.pipelined * (passes - 1) / passes * (1 - share)
        return 1.0

    def decode(self, work: Serve) -> Parts:
        """Return seconds of a decode step of all requests at the mean context of the generation, by part."""
        reached = self.d.reached(work.depth + work.mean_context)
        batch = Batch(work.users, tuple(work.users * tokens for tokens in reached), groups=min(self.d.pipeline, work.users))
        return dict(zip(SERVE_PARTS, self.parts(batch), strict=True))

    def prefill(self, work: Serve) -> Parts:
        """Return seconds of one prompt, by part."""
        if not work.prompt:
            return dict.fromkeys(SERVE_PARTS, 0.0)
        return dict(zip(SERVE_PARTS, self.parts(self.prompt_batch(work.prompt, work.depth)), strict=True))

    def prompt_batch(self, prompt: float, depth: float = 0.0) -> Batch:
        """Return the batch of one prompt alone, after `depth` cached tokens."""
        size = min(prompt, self.d.batch)
        return Batch(0, (0.0,) * len(self.d.windows), prompt, self.d.prompt_pairs(prompt, depth, size=size), 1)


def _slowest(tasks: list[Seconds]) -> Seconds:
    """Return the slowest device's seconds per part: devices that share layers wait for each other."""
    return tasks[0] if len(tasks) == 1 else tuple(max(column) for column in zip(*tasks, strict=True))  # pyright: ignore[reportReturnType]


def _hop_seconds(hop: Hop, batch: Batch, passes: int, s: ServeCalibration) -> float:
    """Return exposed seconds of a hop: one micro-batch inside a host; over a network all, a round trip and the compute graph."""
    tokens = batch.rows - (batch.tokens - batch.ends if hop.logits else 0.0)
    size = tokens / batch.groups / passes * hop.token_bytes + (s.graph * hop.layers if hop.layers else 0.0)
    fixed = s.remote + 2 * latency(hop.link, True) if hop.remote else s.hop
    seconds = fixed + moved(size, hop.link, s)
    return passes * seconds if hop.remote else seconds


def _row_split(d: Demand, s: ServeCalibration) -> float:
    """Return seconds of synchronization in a step: every product sends its input to all devices and collects outputs (-sm row)."""
    return d.row_products * (d.devices + 1) * s.row if d.row_products else 0.0


def _on_host(d: Demand, batch: Batch, passes: int, s: ServeCalibration) -> float:
    """Return seconds of the host's layers: on the CPU or, for prompts, on the first device with weights sent, if that is faster."""
    cpu, task = d.host.chip, d.host
    tokens = batch.rows
    cached = sum(read * context for read, context in zip(task.reads, batch.contexts, strict=True))
    pairs = sum(pair * number for pair, number in zip(task.pairs, batch.pairs, strict=True)) if batch.pairs else 0.0
    read = passes * task.read(tokens / passes) + task.head + cached + batch.decodes * task.state
    flops = tokens * task.flops + pairs
    rate = peak_flops(cpu, "", int8_products=d.int8_products) * s.product
    on_cpu = max(flops / rate, read / (s.host * cpu.bandwidth)) + HOST_SYNC_SECONDS * d.crossings * passes
    if not batch.tokens or not d.stages or d.pcie is None:
        return on_cpu
    on_device = flops / _product_rate(d, d.stages[0][0].chip, s)
    return min(on_cpu, passes * task.read(tokens / passes) / (s.link * d.pcie.bandwidth) + on_device)
