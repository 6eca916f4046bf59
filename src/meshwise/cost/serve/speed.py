"""Seconds of a served model, by part: one decode step of all users, and one prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

from meshwise.catalogue.calibrations import ServeCalibration, choose_serve
from meshwise.catalogue.chips import Chip, Link
from meshwise.catalogue.engines import Runtime
from meshwise.cost.parts import SERVE_PARTS
from meshwise.cost.serve.demand import Demand, Hop, Rig, Task, demand
from meshwise.cost.serve.placement import Placement
from meshwise.cost.serve.waves import filled
from meshwise.cost.work import Serve
from meshwise.models.formats import Weights
from meshwise.models.model import Model

__all__ = ["Rig", "Speed", "decode_parts", "evaluate", "prefill_parts", "speed"]

FAST_LINK = 100e9
"""From this bandwidth on a link lets devices read each other's memory (NVLink, Infinity Fabric); below it data goes through the host."""
FAST_LATENCY, SLOW_LATENCY = 1e-6, 8e-6
NETWORK_LATENCY = 3e-5
"""One way through two network cards, a switch and their drivers, where the link does not say."""
CROSSING = 3e-5
"""The host waits for a device or a device for the host."""
SHARP = 6.0
"""How sharply the smaller of two bounds decides: where they are equal the rate is 11% below either. Of 3, 4, 6 and 10 this one errs least
on cards left out of the fit."""

Parts = dict[str, float]


@dataclass(frozen=True)
class Speed:
    """What a user waits for, by part of SERVE_PARTS."""

    decode: Parts
    """Seconds of one step for all users, at the mean context of the generation."""
    prefill: Parts
    """Seconds of one user's prompt."""
    users: int
    prompt: int

    @property
    def step(self) -> float:
        return sum(self.decode.values())

    @property
    def decode_tokens_per_second(self) -> float:
        """Of all users together."""
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
        """Seconds to the first token of a user who waits for no other: the prompt, and one step."""
        return self.prefill_seconds + self.step


def speed(
    model: Model,
    weights: Weights,
    placement: Placement,
    rig: Rig,
    runtime: Runtime,
    work: Serve,
    serving: Callable[[Chip], ServeCalibration] | None = None,
) -> Speed:
    """How fast this placement serves; `serving` gives the coefficients of each chip, the catalogue's where it is not given."""

    def chosen(chip: Chip) -> ServeCalibration:
        return serving(chip) if serving else choose_serve(chip, runtime.key or runtime.engine)

    return evaluate(demand(model, weights, placement, rig, runtime, work), chosen)


def evaluate(d: Demand, serving: Callable[[Chip], ServeCalibration]) -> Speed:
    """Seconds of what is asked."""
    return Speed(decode_parts(d, serving), prefill_parts(d, serving), d.users, d.prompt)


def rate(chip: Chip, s: ServeCalibration) -> float:
    """Bytes of weights per second: the memory's bandwidth, or what the SMs can take in, whichever is less.

    A100s of May 2024 read 1.0 TB/s of their 1.9 with llama.cpp, RTX 4090s 0.95 of 1.0: 108 SMs at 1.41 GHz against 128 at 2.52.
    """
    streamed = s.stream * chip.bandwidth
    taken = s.reach * cycles(chip)
    return (streamed**-SHARP + taken**-SHARP) ** (-1 / SHARP)


def cycles(chip: Chip) -> float:
    """Cycles per second of all SMs together; without a clock, from the rate of 128 lanes that multiply and add."""
    if chip.sms and chip.clock:
        return chip.sms * chip.clock
    return chip.flops.get("fp32", max(chip.flops.values())) / 256


def peak(chip: Chip, kind: str, *, int8_products: bool) -> float:
    """FLOP/s of the matrix units in the type that an engine multiplies weights of this kind in."""
    flops = chip.flops
    half = max(flops.get("fp16", 0.0), flops.get("bf16", 0.0), flops.get("fp32", 0.0))
    if int8_products:
        return max(half, flops.get("int8", 0.0) / 2)
    wanted = {"fp8": flops.get("fp8"), "int8": flops.get("int8"), "nvfp4": flops.get("fp4"), "mxfp4": flops.get("fp4")}
    return wanted.get(kind) or half


def _rows_rate(d: Demand, chip: Chip, s: ServeCalibration) -> float:
    """FLOP/s in products with many tokens, for this mixture of 16-bit and quantised weights."""
    return peak(chip, d.peak_type, int8_products=d.int8_products) * s.product / (1 - d.narrow + d.narrow / s.narrow)


def decode_parts(d: Demand, serving: Callable[[Chip], ServeCalibration]) -> Parts:
    """Stages one after the other: reading adds up, however many devices share it. Groups of users overlap in a pipeline."""
    found: Parts = dict.fromkeys(SERVE_PARTS, 0.0)
    totals: list[float] = []
    for stage in d.stages:
        parts = _side_by_side([_step_of(d, task, serving(task.chip)) for task in stage])
        totals.append(sum(parts.values()))
        for name, value in parts.items():
            found[name] += value
    # In a pipeline the slowest stage sets the pace of all groups, or one group the pace of itself.
    busy = sum(totals)
    stretch = max(d.groups * max(totals), busy) / busy if totals else 1.0
    found = {name: value * stretch for name, value in found.items()}
    first = serving(d.stages[0][0].chip) if d.stages else serving(d.host.chip)
    found["launch"] += first.step
    tokens = d.users / d.groups
    found["hops"] += sum(_hop(hop, tokens, first) for hop in d.hops)
    found["reduce"] += d.reduces * _all_reduce(d, tokens, first) + _row_split(d, first)
    if not d.host.idle:
        found["host"] += _on_host(d, first) + CROSSING * d.crossings
    return found


def _step_of(d: Demand, task: Task, s: ServeCalibration) -> Parts:
    """Weights and cache are read; products take longer than that only with many users. Kernels start one behind the other."""
    read = task.weights / (rate(task.chip, s) * (s.single if task.single else 1.0))
    multiplied = task.flops / _rows_rate(d, task.chip, s)
    return {
        "weights": read,
        "cache": task.cache / ((s.flash_cache if task.flash else s.cache) * task.chip.bandwidth),
        "compute": _both(read, multiplied, s) - read,
        "launch": task.starts * s.layer,
    }


def _both(read: float, multiplied: float, s: ServeCalibration) -> float:
    """Products hide the reading of their weights; reading does not quite hide products, whose inputs every tile fetches anew.

    On an H200 each user from 8 to 64 adds 5.9 us to a step of an 8B that takes 4.8 ms to read, where products alone would take 20.
    """
    return max(multiplied, read + s.exposed * multiplied)


def _side_by_side(tasks: list[Parts]) -> Parts:
    """Devices that share layers wait for the slowest."""
    return {name: max(task[name] for task in tasks) for name in tasks[0]}


def _latency(link: Link | None, remote: bool) -> float:
    if link is None:
        return NETWORK_LATENCY if remote else SLOW_LATENCY
    if link.latency is not None:
        return link.latency
    return NETWORK_LATENCY if remote else FAST_LATENCY if link.bandwidth >= FAST_LINK else SLOW_LATENCY


def _moved(size: float, link: Link | None, s: ServeCalibration) -> float:
    return size / (link.bandwidth * s.link) if link else 0.0


def _hop(hop: Hop, tokens: float, s: ServeCalibration) -> float:
    """Activations of a step to the next device; to another host a round trip, and what it is told to compute."""
    size = tokens * hop.token_bytes + (s.graph * hop.layers if hop.layers else 0.0)
    fixed = s.remote + 2 * _latency(hop.link, True) if hop.remote else s.hop
    return fixed + _moved(size, hop.link, s)


def _all_reduce(d: Demand, tokens: float, s: ServeCalibration) -> float:
    """Up and down a tree of n devices: 2 log2 n steps of latency, and 2 (n - 1) / n of the bytes through every link."""
    n = len(d.stages[0]) if d.stages else 1
    if n < 2 or not d.reduces:
        return 0.0
    size = 2 * (n - 1) / n * tokens * d.reduce_bytes
    return s.reduce + 2 * log2(n) * _latency(d.reduce_link, d.reduce_remote) + _moved(size, d.reduce_link, s)


def _row_split(d: Demand, s: ServeCalibration) -> float:
    """Every product sends its input to all devices, waits, and collects their outputs (llama.cpp, -sm row)."""
    return d.row_products * (len(d.stages[0]) + 1) * s.row if d.row_products else 0.0


def _on_host(d: Demand, s: ServeCalibration) -> float:
    """Layers in host memory are read at its bandwidth."""
    cpu = d.host.chip
    return (d.host.weights + d.host.cache) / (s.host * cpu.bandwidth)


def prefill_parts(d: Demand, serving: Callable[[Chip], ServeCalibration]) -> Parts:
    """Micro-batches go through the stages one behind the other, at most `copies` at a time.

    Worked: 8 micro-batches over 4 equal stages: 8 + 3 = 11 quarter passes instead of 32.
    """
    found: Parts = dict.fromkeys(SERVE_PARTS, 0.0)
    if not d.prompt:
        return found
    totals: list[float] = []
    for stage in d.stages:
        parts = _side_by_side([_prompt_of(d, task, serving(task.chip)) for task in stage])
        totals.append(sum(parts.values()))
        for name, value in parts.items():
            found[name] += value
    first = serving(d.stages[0][0].chip) if d.stages else serving(d.host.chip)
    if totals and sum(totals):
        share = max(max(totals), sum(totals) / d.copies) / sum(totals)
        rest = (d.micro_batches - 1) / d.micro_batches
        overlapped = 1 - first.pipelined * rest * (1 - share)
        found = {name: value * overlapped for name, value in found.items()}
    found["launch"] += first.step
    found["hops"] += sum(_prompt_hop(hop, d.micro_batches, first) for hop in d.hops)
    tokens = d.prompt / d.micro_batches
    found["reduce"] += d.micro_batches * d.reduces * _all_reduce(d, tokens, first)
    found["reduce"] += d.micro_batches * _row_split(d, first) + _moved(d.prompt * d.row_bytes, _row_link(d), first)
    if not d.host.idle:
        found["host"] += _prompt_on_host(d, first)
    return found


def _row_link(d: Demand) -> Link | None:
    return d.pcie if d.row_bytes else None


def _prompt_of(d: Demand, task: Task, s: ServeCalibration) -> Parts:
    """Products at their rate, or the weights once per micro-batch; attention by its FLOPs, and by its scores where they are written."""
    full = filled(task.products, task.rows, task.chip.sms or 0, s.tile)
    products = task.prompt_flops / (full * _rows_rate(d, task.chip, s))
    touched = s.touch * task.activations / task.chip.bandwidth
    read = d.micro_batches * task.batch_weights / rate(task.chip, s)
    top = peak(task.chip, "", int8_products=d.int8_products)
    if task.scores:
        attention = task.attention / (top * s.product) + s.scores * task.scores / task.chip.bandwidth
    else:
        attention = task.attention / (top * s.flash)
    return {
        "compute": products + touched,
        "cache": attention,
        "weights": _both(read, products, s) - products + task.head / rate(task.chip, s),
        "launch": d.micro_batches * task.layers * s.layer,
    }


def _prompt_hop(hop: Hop, micro_batches: int, s: ServeCalibration) -> float:
    """The first micro-batch waits for its hop; those behind it hide theirs."""
    return (
        _hop(hop, hop.prompt_tokens / micro_batches, s)
        if not hop.remote
        else micro_batches * _hop(hop, hop.prompt_tokens / micro_batches, s)
    )


def _prompt_on_host(d: Demand, s: ServeCalibration) -> float:
    """The processor computes, or each micro-batch brings the weights over to the first device, whichever is sooner."""
    cpu, task = d.host.chip, d.host
    own = max(
        (task.prompt_flops + task.attention) / (peak(cpu, "", int8_products=d.int8_products) * s.product),
        (d.micro_batches * task.batch_weights + task.head) / (s.host * cpu.bandwidth),
    )
    if not d.stages or d.pcie is None:
        return own
    there = (task.prompt_flops + task.attention) / _rows_rate(d, d.stages[0][0].chip, s)
    return min(own, d.micro_batches * task.batch_weights / (s.link * d.pcie.bandwidth) + there)
