"""Seconds of a served model, by part: one decode step of all concurrent requests, and one prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.catalogue.chips import Chip, Link
from meshwise.catalogue.engines import Runtime
from meshwise.cost.parts import SERVE_PARTS
from meshwise.cost.serve.demand import Demand, Hop, Rig, Task, demand
from meshwise.cost.serve.placement import Placement
from meshwise.cost.serve.waves import utilization
from meshwise.cost.work import Serve
from meshwise.models.formats import Weights
from meshwise.models.model import Model

FAST_LINK = 100e9
"""Bandwidth from which a link lets devices read each other's memory (NVLink, Infinity Fabric); slower links go through the host."""
FAST_LATENCY, SLOW_LATENCY = 1e-6, 8e-6
NETWORK_LATENCY = 3e-5
"""One way through two network cards, a switch and their drivers, where the link does not state its latency."""
CROSSING = 3e-5
"""Seconds of a synchronization between host and device."""
SHARP = 6.0
"""Sharpness of the minimum of two bounds: where they are equal, the rate is 11% below either. Of 3, 4, 6 and 10 this one has the smallest
error on cards left out of the fit."""

Parts = dict[str, float]
Calibrations = Callable[[Chip], ServeCalibration]
"""The coefficients of each chip."""


@dataclass(frozen=True)
class Speed:
    """Seconds of decoding and of a prompt, by part of SERVE_PARTS."""

    decode: Parts
    """One step of all requests, at the mean context of the generation."""
    prefill: Parts
    """The prompt of one request."""
    users: int
    """Concurrent requests."""
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
    def prefill_tokens_per_second(self) -> float:
        return self.prompt / self.prefill_seconds if self.prompt else 0.0

    @property
    def ttft(self) -> float:
        """Time to first token of a request that waits for no other: the prompt, and one step."""
        return self.prefill_seconds + self.step


def speed(
    model: Model,
    weights: Weights,
    placement: Placement,
    rig: Rig,
    runtime: Runtime,
    work: Serve,
    calibrations: Calibrations,
) -> Speed:
    """Return the speed of a placement."""
    return evaluate(demand(model, weights, placement, rig, runtime, work), calibrations)


def evaluate(d: Demand, calibrations: Calibrations) -> Speed:
    """Return the seconds of this work."""
    return Speed(decode_parts(d, calibrations), prefill_parts(d, calibrations), d.users, d.prompt)


def read_rate(chip: Chip, s: ServeCalibration) -> float:
    """Return bytes of weights read per second: the smaller of memory bandwidth and the rate at which the SMs consume bytes.

    A100s of May 2024 read 1.0 TB/s of their 1.9 with llama.cpp, RTX 4090s 0.95 of 1.0: 108 SMs at 1.41 GHz against 128 at 2.52.
    """
    streamed = s.stream * chip.bandwidth
    taken = s.reach * cycles(chip)
    return (streamed**-SHARP + taken**-SHARP) ** (-1 / SHARP)


def cycles(chip: Chip) -> float:
    """Return cycles per second of all SMs together; without a known clock, from the fp32 rate of 128 lanes per SM at 2 FLOPs per cycle."""
    if chip.sms and chip.clock:
        return chip.sms * chip.clock
    return chip.flops.get("fp32", max(chip.flops.values())) / 256


def peak_flops(chip: Chip, kind: str, *, int8_products: bool) -> float:
    """Return FLOP/s of the matrix units in the type in which an engine multiplies weights of this format."""
    flops = chip.flops
    half = max(flops.get("fp16", 0.0), flops.get("bf16", 0.0), flops.get("fp32", 0.0))
    if int8_products:
        return max(half, flops.get("int8", 0.0) / 2)
    native = {"fp8": flops.get("fp8"), "int8": flops.get("int8"), "nvfp4": flops.get("fp4"), "mxfp4": flops.get("fp4")}
    return native.get(kind) or half


def _product_rate(d: Demand, chip: Chip, s: ServeCalibration) -> float:
    """Return FLOP/s of products with many tokens, for this mix of 16-bit and quantised weights."""
    return peak_flops(chip, d.peak_type, int8_products=d.int8_products) * s.product / (1 - d.narrow + d.narrow / s.narrow)


def decode_parts(d: Demand, calibrations: Calibrations) -> Parts:
    """Return seconds of a decode step by part. Stages run one after another; groups of requests overlap in a pipeline."""
    seconds, totals = _run_stages(d, _decode_task, calibrations)
    # In a pipeline a step takes as long as the slowest stage for all groups, or all stages for one group, whichever is longer.
    busy = sum(totals)
    stretch = max(d.groups * max(totals), busy) / busy if totals else 1.0
    seconds = {name: value * stretch for name, value in seconds.items()}
    first = _first_calibration(d, calibrations)
    seconds["launch"] += first.step
    tokens = d.users / d.groups
    seconds["hops"] += sum(_hop(hop, tokens, first) for hop in d.hops)
    seconds["reduce"] += d.reduces * _all_reduce(d, tokens, first) + _row_split(d, first)
    if not d.host.idle:
        seconds["host"] += _decode_on_host(d, first) + CROSSING * d.crossings
    return seconds


def _run_stages(
    d: Demand, task_parts: Callable[[Demand, Task, ServeCalibration], Parts], calibrations: Calibrations
) -> tuple[Parts, list[float]]:
    """Return seconds of all stages by part, and the total of each stage."""
    seconds: Parts = dict.fromkeys(SERVE_PARTS, 0.0)
    totals: list[float] = []
    for stage in d.stages:
        parts = _slowest([task_parts(d, task, calibrations(task.chip)) for task in stage])
        totals.append(sum(parts.values()))
        for name, value in parts.items():
            seconds[name] += value
    return seconds, totals


def _first_calibration(d: Demand, calibrations: Calibrations) -> ServeCalibration:
    """Return the coefficients of the first device, which apply to the replica as a whole; of the host where no device is used."""
    return calibrations(d.stages[0][0].chip) if d.stages else calibrations(d.host.chip)


def _decode_task(d: Demand, task: Task, s: ServeCalibration) -> Parts:
    """Return seconds of one device: reading weights and cache, products where they take longer than reading, and kernel launches."""
    read = task.weights / (read_rate(task.chip, s) * (s.single if task.single else 1.0))
    multiplied = task.flops / _product_rate(d, task.chip, s)
    return {
        "weights": read,
        "cache": task.cache / ((s.flash_cache if task.flash else s.cache) * task.chip.bandwidth),
        "compute": _overlapped(read, multiplied, s) - read,
        "launch": task.starts * s.layer,
    }


def _overlapped(read: float, multiplied: float, s: ServeCalibration) -> float:
    """Return seconds of products and the reading of their weights, which overlap. Products hide reading completely; reading hides all but a
    share of products, since every tile fetches its inputs again.

    On an H200 each request from 8 to 64 adds 5.9 us to a step of an 8B that takes 4.8 ms to read, where products alone would take 20.
    """
    return max(multiplied, read + s.exposed * multiplied)


def _slowest(tasks: list[Parts]) -> Parts:
    """Return the slowest device's seconds per part: devices that share layers wait for each other."""
    return {name: max(task[name] for task in tasks) for name in tasks[0]}


def _latency(link: Link | None, remote: bool) -> float:
    """Return the latency that a link states, or the usual one for its kind."""
    if link is None:
        return NETWORK_LATENCY if remote else SLOW_LATENCY
    if link.latency is not None:
        return link.latency
    return NETWORK_LATENCY if remote else FAST_LATENCY if link.bandwidth >= FAST_LINK else SLOW_LATENCY


def _moved(size: float, link: Link | None, s: ServeCalibration) -> float:
    """Return seconds that `size` bytes take on a link; 0 where there is none."""
    return size / (link.bandwidth * s.link) if link else 0.0


def _hop(hop: Hop, tokens: float, s: ServeCalibration) -> float:
    """Return seconds to send a step's activations to the next device; to another host, a round trip and its compute graph too."""
    size = tokens * hop.token_bytes + (s.graph * hop.layers if hop.layers else 0.0)
    fixed = s.remote + 2 * _latency(hop.link, True) if hop.remote else s.hop
    return fixed + _moved(size, hop.link, s)


def _all_reduce(d: Demand, tokens: float, s: ServeCalibration) -> float:
    """Return seconds of a tree all-reduce over n devices: 2 log2 n steps of latency, and 2 (n - 1) / n of the bytes through every link."""
    n = len(d.stages[0]) if d.stages else 1
    if n < 2 or not d.reduces:
        return 0.0
    size = 2 * (n - 1) / n * tokens * d.reduce_bytes
    return s.reduce + 2 * log2(n) * _latency(d.reduce_link, d.reduce_remote) + _moved(size, d.reduce_link, s)


def _row_split(d: Demand, s: ServeCalibration) -> float:
    """Return seconds of synchronization in a step: every product sends its input to all devices and collects their outputs (llama.cpp,
    -sm row)."""
    return d.row_products * (len(d.stages[0]) + 1) * s.row if d.row_products else 0.0


def _decode_on_host(d: Demand, s: ServeCalibration) -> float:
    """Return seconds of layers in host memory, which are read at its bandwidth."""
    cpu = d.host.chip
    return (d.host.weights + d.host.cache) / (s.host * cpu.bandwidth)


def prefill_parts(d: Demand, calibrations: Calibrations) -> Parts:
    """Return seconds of a prompt by part. Its micro-batches are pipelined through the stages, at most `copies` at a time.

    Worked: 8 micro-batches over 4 equal stages: 8 + 3 = 11 quarter passes instead of 32.
    """
    if not d.prompt:
        return dict.fromkeys(SERVE_PARTS, 0.0)
    seconds, totals = _run_stages(d, _prefill_task, calibrations)
    first = _first_calibration(d, calibrations)
    if totals and sum(totals):
        share = max(max(totals), sum(totals) / d.copies) / sum(totals)
        rest = (d.micro_batches - 1) / d.micro_batches
        overlapped = 1 - first.pipelined * rest * (1 - share)
        seconds = {name: value * overlapped for name, value in seconds.items()}
    seconds["launch"] += first.step
    seconds["hops"] += sum(_prefill_hop(hop, d.micro_batches, first) for hop in d.hops)
    tokens = d.prompt / d.micro_batches
    seconds["reduce"] += d.micro_batches * d.reduces * _all_reduce(d, tokens, first)
    seconds["reduce"] += d.micro_batches * _row_split(d, first) + _moved(d.prompt * d.row_bytes, _row_link(d), first)
    if not d.host.idle:
        seconds["host"] += _prefill_on_host(d, first)
    return seconds


def _row_link(d: Demand) -> Link | None:
    return d.pcie if d.row_bytes else None


def _prefill_task(d: Demand, task: Task, s: ServeCalibration) -> Parts:
    """Return seconds of one device: products, or reading the weights once per micro-batch; attention, and its scores where they are
    stored."""
    full = utilization(task.products, task.rows, task.chip.sms or 0, s.tile)
    products = task.prompt_flops / (full * _product_rate(d, task.chip, s))
    touched = s.touch * task.activations / task.chip.bandwidth
    read = d.micro_batches * task.batch_weights / read_rate(task.chip, s)
    top = peak_flops(task.chip, "", int8_products=d.int8_products)
    if task.scores:
        attention = task.attention / (top * s.product) + s.scores * task.scores / task.chip.bandwidth
    else:
        attention = task.attention / (top * s.flash)
    return {
        "compute": products + touched,
        "cache": attention,
        "weights": _overlapped(read, products, s) - products + task.head / read_rate(task.chip, s),
        "launch": d.micro_batches * task.layers * s.layer,
    }


def _prefill_hop(hop: Hop, micro_batches: int, s: ServeCalibration) -> float:
    """Return exposed seconds of a hop: one micro-batch inside a host, where later ones overlap with computation; all of them over a
    network."""
    seconds = _hop(hop, hop.prompt_tokens / micro_batches, s)
    return micro_batches * seconds if hop.remote else seconds


def _prefill_on_host(d: Demand, s: ServeCalibration) -> float:
    """Return seconds of the host's layers: computed on the CPU, or on the first device with the weights sent per micro-batch, if faster."""
    cpu, task = d.host.chip, d.host
    on_cpu = max(
        (task.prompt_flops + task.attention) / (peak_flops(cpu, "", int8_products=d.int8_products) * s.product),
        (d.micro_batches * task.batch_weights + task.head) / (s.host * cpu.bandwidth),
    )
    if not d.stages or d.pcie is None:
        return on_cpu
    on_device = (task.prompt_flops + task.attention) / _product_rate(d, d.stages[0][0].chip, s)
    return min(on_cpu, d.micro_batches * task.batch_weights / (s.link * d.pcie.bandwidth) + on_device)
