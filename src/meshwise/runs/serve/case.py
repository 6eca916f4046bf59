"""Served models as cases: the model, devices, engine and placement that a run describes, and what was measured."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from meshwise.catalogue.chips import GENERIC_CPU, Chip, Link, find_chip, known_chip
from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.load.admission import limits
from meshwise.cost.serve.load.requests import Limits, Load
from meshwise.cost.serve.memory import placement as places
from meshwise.cost.serve.memory.buffers import Footprint, footprints
from meshwise.cost.serve.memory.cache import CacheRequest, cache_type, layer_caches, pass_sizes
from meshwise.cost.serve.passes.demand import Demand, demand
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.errors import UserError, quoted
from meshwise.models.formats import Weights
from meshwise.models.model import Model
from meshwise.runs import table as tables
from meshwise.runs.run import Run, amount, whole
from meshwise.runs.serve import rates
from meshwise.runs.serve.names import backend_of, card, format_in, model_of, runtime_of, weights_of, with_batch
from meshwise.runs.table import Skipped, Table

SIZES = {"weights": "device_weights", "cache": "device_cache", "compute": "device_compute"}
"""Fields with the memory of one device, MiB, by kind."""
REQUIRED_FIELDS = ("model", "weights", "devices")
DEFAULT_CONTEXT_TOKENS = 512  # the context of a run that states none and did not start: llama.cpp's default at the time

ATTENTION_DP = re.compile(r"attention[ _-]?dp|dp[ _-]?attention|enable_attention_dp", re.IGNORECASE)
SLOW_PROMPT_FACTOR = 3.0
"""A prompt this many times slower than in another format on the same devices shows a fault of the machine: one A100 SXM of May 2024 read
prompts in F16 at 604 tokens/s, and in Q4_K_M at 5,948."""


@dataclass(frozen=True)
class ServeCase:
    """One measured run. Values that are not stated are NaN."""

    row_id: str
    table: str
    model: Model
    weights: Weights
    rig: Rig
    runtime: Runtime
    placement: places.Placement
    work: Serve
    held: CacheRequest
    decode: float  # output tokens per second of all requests: in decode steps alone, or with prompts counted where `loaded`
    prefill: float  # tokens per second
    memory: float  # bytes on all devices together, as the log prints them: without the driver context
    ran: bool  # whether it ran; otherwise it was out of memory
    sizes: Mapping[str, float]  # MiB on one device by kind, where the row is from a log or a dry run
    device: int = 0  # the device of `sizes`, counted from 1; 0 is the host
    load: Load | None = None  # the load under which `decode` was measured with prompts counted; None: decode steps alone
    most: bool = False  # whether as many requests run as the engine admits
    ttft: float = math.nan  # seconds to the first token, as the row states it
    tpot: float = math.nan  # seconds per output token after the first
    ttft_p95: float = math.nan  # seconds to the first token that 95% of requests stay below
    stated_source: str = ""
    backend: str = ""  # the library that the engine was built for, where the row says it
    cut_off: bool = False  # whether sizes are rounded down to whole MiB
    slow_prompt: bool = False
    """Whether its prompt was SLOW_PROMPT_FACTOR times slower than in another format: excluded from fits and mean errors."""
    assumed: tuple[str, ...] = ()  # notes on values that the row does not state

    @property
    def chip(self) -> Chip:
        return self.rig.chips[0]

    @property
    def group(self) -> tuple[object, ...]:
        """Key of rows that a fit leaves out together: chip, and number of devices."""
        return (self.chip.key, len(self.rig.chips))

    @property
    def source(self) -> str:
        """The publication that a row is from: leaving one out leaves all of its rows out."""
        return self.stated_source or self.table

    @property
    def kind(self) -> str:
        """The kind of model: dense, or with experts."""
        return "experts" if any(weight.slot.expert for weight in self.weights.tensors) else "dense"

    @cached_property
    def limits(self) -> Limits:
        """Limits of the engine: requests, tokens and cache at once."""
        return limits(self.model, self.runtime, self.placement, self.rig.chips, self.work)

    @cached_property
    def demand(self) -> Demand:
        return demand(self.model, self.weights, self.placement, self.rig, self.runtime, self.work)

    @cached_property
    def footprints(self) -> tuple[Footprint, ...]:
        return footprints(self.model, self.runtime, self.placement, self.held, flash=self.work.flash)

    @property
    def fits(self) -> bool:
        return all(
            device.bytes - device.context <= self.runtime.room(chip)
            for device, chip in zip(self.footprints[1:], self.rig.chips, strict=True)
        )


def read_cases(path: Path) -> tuple[list[ServeCase], list[Skipped]]:
    """Read every row of a table of served models as a ServeCase, or the reason why it is skipped; of a folder, those of all its tables."""
    if path.is_dir():
        read = [read_cases(table) for table in sorted(path.glob("*.csv"))]
        return [case for cases, _ in read for case in cases], [one for _, skipped in read for one in skipped]
    runs = Table(path)
    runs.check(REQUIRED_FIELDS, ())
    used, skipped = tables.cases(path, runs, lambda run, row_id: case_of(run, row_id, path.stem))
    return settled(used), skipped


def cases_of(runs: Sequence[Run], table: str) -> tuple[list[tuple[int, ServeCase]], list[str]]:
    """Return the cases of the runs of one source, each with the number of its run, and the reasons why the others are none."""
    found: list[tuple[int, ServeCase]] = []
    reasons: list[str] = []
    for number, run in enumerate(runs):
        try:
            found.append((number, case_of(run, run.where, table)))
        except UserError as error:
            reasons.append(str(error))
    done = settled([case for _, case in found])
    return [(number, case) for (number, _), case in zip(found, done, strict=True)], reasons


def settled(cases: list[ServeCase]) -> list[ServeCase]:
    """Complete the cases of a table from each other: requests of a benchmark, and prompts that were slow by a fault."""
    return _with_requests(_mark_slow_prompts(cases))


def _with_requests(cases: list[ServeCase]) -> list[ServeCase]:
    """Complete benchmarks that do not say how many requests they queue: as many as the same source states for the most similar lengths."""
    stated: dict[str, list[Load]] = {}
    for case in cases:
        if case.most and case.load and case.load.requests:
            stated.setdefault(case.source, []).append(case.load)
    return [
        replace(case, load=replace(case.load, requests=_nearest(case.load, stated[case.source]).requests))
        if case.most and case.load and not case.load.requests and case.source in stated
        else case
        for case in cases
    ]


def _nearest(load: Load, others: list[Load]) -> Load:
    """Return the load whose prompts and outputs are closest in length, as ratios."""
    return min(
        others,
        key=lambda other: (
            abs(math.log(other.prompt.mean / load.prompt.mean)) + abs(math.log(other.output.mean / load.output.mean))
        ),
    )


def _mark_slow_prompts(cases: list[ServeCase]) -> list[ServeCase]:
    """Set `slow_prompt` of cases whose prompt was SLOW_PROMPT_FACTOR times slower than in the best format."""
    best: dict[tuple[object, ...], float] = {}
    for case in cases:
        if case.ran and case.prefill > 0:
            best[_all_but_format(case)] = max(best.get(_all_but_format(case), 0.0), case.prefill)
    return [
        replace(case, slow_prompt=True)
        if case.ran and 0 < case.prefill * SLOW_PROMPT_FACTOR < best[_all_but_format(case)]
        else case
        for case in cases
    ]


def _all_but_format(case: ServeCase) -> tuple[object, ...]:
    """Return a key that is equal for rows that differ only in their weight format."""
    return (*case.group, case.model.name, case.work.prompt, case.work.users, case.placement.split)


def comparable(a: ServeCase, b: ServeCase) -> bool:
    """Return whether two rows share coefficients: the same kind of chip, vendor and engine."""
    same_chips = (a.chip.kind, a.chip.vendor) == (b.chip.kind, b.chip.vendor)
    return same_chips and (a.runtime.engine, a.backend) == (b.runtime.engine, b.backend)


def case_of(run: Run, row_id: str, table: str = "") -> ServeCase:
    """Turn a run into a ServeCase; refuse one that states no measurement or an unknown outcome."""
    outcome = run.text("outcome").lower() or "ok"
    if outcome not in ("ok", "oom"):
        raise UserError(f"outcome is {quoted(outcome)}")
    assumed: list[str] = []
    rig = _rig(run)
    model = model_of(run.text("model"))
    runtime = with_batch(runtime_of(run, model, assumed), run)
    bits = amount(run, "bits_per_weight")
    quant = run.text("weights") or format_in(run.text("model"))
    stored = weights_of(model.source if model.tensors else model.name, quant, runtime.key, 0.0 if math.isnan(bits) else bits)
    sizes = {kind: size for kind, name in SIZES.items() if not math.isnan(size := amount(run, name))}
    work = _work(run, bool(sizes), runtime)
    load = rates.load_of(run, work, runtime)
    decode, prefill = rates.output_rate(run, work.users, len(rig.chips)), amount(run, "prefill")
    ttft, tpot, memory = amount(run, "ttft"), amount(run, "tpot"), amount(run, "memory")
    if outcome == "ok" and not sizes and all(map(math.isnan, (decode, prefill, memory, ttft, tpot))):
        raise UserError("neither a speed nor a memory is stated")
    held = CacheRequest(context=work.context, sequences=work.users, key=work.kv, value=work.kv, **pass_sizes(runtime, rig.chips))
    placement = _placement(run, model, stored, rig, runtime, held)
    placement = places.with_adapters(placement, model, work.adapters, work.rank) if work.adapters else placement
    case = ServeCase(
        row_id=row_id, table=table, model=model, weights=stored, rig=rig, runtime=runtime,
        placement=placement, work=work, held=held, decode=decode, prefill=prefill,
        load=load, most=rates.is_most(run), ttft=ttft, tpot=tpot, ttft_p95=amount(run, "ttft_p95"),
        stated_source=run.text("source"), backend=backend_of(run), memory=memory, ran=outcome == "ok", sizes=sizes,
        device=_device(run.text("sized_device")), cut_off=run.word("device_weights") == "model_mib", assumed=tuple(assumed),
    )  # fmt: skip
    return _partly_on_host(case) if case.ran and runtime.gguf and not sizes and math.isnan(memory) else case


def _partly_on_host(case: ServeCase) -> ServeCase:
    """Return a llama.cpp case that does not fit with as many layers, or experts, in host memory as must be; others as they are."""
    if case.placement.split != "layer" or case.placement.tp > 1 or case.fits:
        return case
    layers, caches = len(case.model.layers), layer_caches(case.model, case.runtime, case.held)
    shares = [1.0] * len(case.rig.chips)

    def moved(number: int) -> ServeCase:
        if case.kind == "experts":
            placed = places.split_layers(case.weights, caches, shares, pins=places.host_experts(number))
        else:
            placed = places.split_layers(case.weights, caches, shares, gpu_layers=layers - number)
        what = "the experts of " if case.kind == "experts" else ""
        note = f"does not fit on its devices, and ran: {what}{number} of {layers} layers in host memory"
        return replace(case, placement=placed, assumed=(*case.assumed, note))

    low, high = 0, layers
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if moved(middle).fits else (middle, high)
    return moved(high) if moved(high).fits else case


def _work(run: Run, memory_only: bool, runtime: Runtime) -> Serve:
    """Return the task of a run; with `memory_only`, one that fills the context."""
    prompt, output = rates.length(run, "prompt"), rates.length(run, "output")
    users, depth = rates.users(run), rates.depth(run)
    if depth == prompt and output:  # llama-bench's 'tg32 @ d32768', where the depth is also written as a prompt
        prompt = 0
    noted = re.search(r"\bn_ctx (\d+)", run.text("note"))
    context = whole(run, "context", default=int(noted[1]) if noted else 0) or depth + prompt + output or DEFAULT_CONTEXT_TOKENS
    if prompt > context and not memory_only:  # no server takes such a prompt: the stated context is not the one that ran
        context = depth + prompt + output
    if memory_only or not prompt + output:
        prompt, output = 0, context
    if depth + prompt + output > context:
        # llama.cpp drops old tokens when its context is full, and continues.
        depth = min(depth, context)
        prompt = min(prompt, context - depth)
        output = context - depth - prompt
    flash = {"on": True, "yes": True, "1": True, "off": False, "no": False, "0": False}.get(run.text("flash").lower())
    kind = cache_type(run.text("kv") or _usual_cache(run, runtime), runtime)
    sampled = not rates.BARE_PROGRAM.search(f"{run.text('source')} {run.text('engine')} {run.text('note')}")
    return Serve(
        prompt=prompt, output=output, users=users, context=context, kv=kind, flash=flash, depth=depth, sampled=sampled,
        eager=run.text("graphs").lower() in ("none", "no", "off"), adapters=whole(run, "adapters", default=0),
        rank=whole(run, "adapter_rank", default=0),
    )  # fmt: skip


def _usual_cache(run: Run, runtime: Runtime) -> str:
    """Return the KV type of a run that states none. Checkpoints that NVIDIA quantises to 8 or 4 bits store their cache in fp8."""
    narrow = run.text("weights").lower() in ("fp8", "nvfp4", "fp4")
    return "fp8" if runtime.engine == "tensorrt-llm" and narrow else "f16"


def _device(name: str) -> int:
    """Return the number of a device, counted from 1 (CUDA0, RPC1, Metal), or 0 for the host (CPU, Host, CUDA_Host)."""
    number = "".join(c for c in name if c.isdecimal())
    return 1 + int(number or 0) if number or name == "Metal" else 0


def _rig(run: Run) -> Rig:
    """Return the devices and links that a run describes."""
    devices, hosts = whole(run, "devices", default=1), whole(run, "nodes", default=1)
    if not devices or not hosts or devices % hosts or devices > 4096:
        raise UserError(f"{devices} devices in {hosts} hosts")
    chip = _capped(card(run.text("chip")), run.text("note")) if run.text("chip") else _any_chip(run)
    words = run.text("link").lower()
    named = re.search(r"([\d.]+)\s*(gbe|gbps|gbit|g\b)", words)
    network = Link(name=words, bandwidth=float(named[1]) * 1e9 / 8) if named else chip.network
    link = (chip.link or chip.bridge) if "nvlink" in words else chip.host if "pcie" in words else chip.link or chip.host
    owners = tuple(i * hosts // devices for i in range(devices))
    cpu = _host_cpu(run.text("note"))
    return Rig(chips=(chip,) * devices, hosts=owners, cpu=cpu, link=link, network=network if hosts > 1 else None)


def _host_cpu(note: str) -> Chip:
    """Return the CPU of the host that a note names ('cpu Ryzen 5 5600X;'), which computes layers in host memory; else the generic one."""
    named = re.search(r"\bcpu ([^;]+);", note)
    chip = known_chip(named[1].strip()) if named else None
    return chip if chip and chip.kind == "cpu" else find_chip(GENERIC_CPU)


def _any_chip(run: Run) -> Chip:
    """Return an arbitrary chip for a dry run, whose memory does not depend on it; refuse other runs without a chip."""
    if run.word("devices") != "n_devices":
        raise UserError("the chip is not stated")
    return find_chip("a100-80gb-sxm")


def _capped(chip: Chip, note: str) -> Chip:
    """Return a chip under a power cap: clocks, and with them FLOP/s, fall as about the square root of the power (220 W of 350: 0.8)."""
    caps = re.search(r"power caps W ([\d/]+)", note)
    least = min((float(cap) for cap in caps[1].split("/") if cap), default=0.0) if caps else 0.0
    if not least or not chip.tdp or least >= chip.tdp:
        return chip
    return replace(chip, flops={kind: rate * (least / chip.tdp) ** 0.5 for kind, rate in chip.flops.items()})


def _placement(run: Run, model: Model, stored: Weights, rig: Rig, runtime: Runtime, held: CacheRequest) -> places.Placement:
    """Place the model with the split that the run names, or the engine's default."""
    split, n = run.text("split").lower(), len(rig.chips)
    caches = layer_caches(model, runtime, held)
    if runtime.gguf:
        if split == "row":
            return places.split_rows(stored, caches, [1.0] * n)
        if split in ("", "none", "layer", "rpc"):
            return places.split_layers(stored, caches, [1.0] * n)
        if split == "tensor" or split.startswith("tp"):
            return places.split_tensors(model, stored, caches, *_degrees(split, n))
        raise UserError(f"llama.cpp has no split {quoted(split)}")
    if n > 1 and ATTENTION_DP.search(f"{run.text('split')} {run.text('note')}"):
        return places.split_experts(model, stored, caches, n)
    tp, pp = _degrees(split, n)
    return places.split_tensors(model, stored, caches, tp, pp)


def _degrees(split: str, n: int) -> tuple[int, int]:
    """Return (tp, pp) from 'tp4 pp2', 'tensor' or 'pipeline'; tensor parallelism over all devices where neither is stated."""
    stated: dict[Literal["tp", "pp"], int] = {}
    for axis in ("tp", "pp"):
        number = re.search(rf"{axis}\W*(\d+)", split)
        if number:
            stated[axis] = int(number[1])
    pp = stated.get("pp") or (n if split in ("pipeline", "layer") else 1)
    tp = stated.get("tp") or n // pp
    if tp * pp != n:
        raise UserError(f"tp {tp} and pp {pp} are not {n} devices")
    return tp, pp
