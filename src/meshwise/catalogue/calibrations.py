"""Calibrations: the few numbers of the cost models that no datasheet states, with the data they were fitted on and their errors.

`Calibration` is for training, `ServeCalibration` for serving. The field of a coefficient states how far a fit may move it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Chip, Kind, Source
from meshwise.catalogue.modes import Mode
from meshwise.errors import UserError, unknown
from meshwise.units import Bytes, Count, Seconds

FittedTo = Literal["speed", "memory", "probed"]
Level = Literal["chip", "framework", "fabric"]
"""Owner of a coefficient: the silicon and its libraries, the training program, or the network between nodes."""


@dataclass(frozen=True)
class Coefficient:
    """How a fit treats one coefficient."""

    width: float  # standard deviation of ln(coefficient) between machines: the weight of its prior. 0: no fit moves it.
    most: float  # upper bound: 1 for a share of a rate
    fitted_to: FittedTo  # measured speeds, measured memory, or speeds on a machine whose products and memory were probed
    level: Level


def coefficient(
    prior: float, *, width: float = 0.0, most: float = math.inf, fitted_to: FittedTo = "speed", level: Level = "chip"
) -> Any:
    """Return a dataclass field for a coefficient with its prior value."""
    return field(default=prior, metadata={"coefficient": Coefficient(width, most, fitted_to, level)})


def coefficients(cls: type["Record"]) -> dict[str, Coefficient]:
    """Return the coefficients of a kind of calibration by name, in the order of their fields."""
    return {f.name: f.metadata["coefficient"] for f in fields(cls) if "coefficient" in f.metadata}


@dataclass(frozen=True, kw_only=True)
class Record:
    """Origin of a calibration, and the chips that it applies to."""

    key: str = field(default="", metadata={"derived": True})
    shipped: bool = field(default=False, metadata={"derived": True})
    """Whether it is built in, so that it was not fitted to the user's own machine."""
    chips: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    fitted_on: str = "no measurements (default prior)"
    date: str = ""
    rows: Count = 0.0
    sources: tuple[Source, ...] = ()

    @property
    def name(self) -> str:
        return self.key or "default prior"


@dataclass(frozen=True, kw_only=True)
class Calibration(Record):
    """Training: fractions of datasheet rates, and fixed costs in seconds and bytes. The defaults are the prior, chosen by hand
    in view of the shipped tables."""

    frameworks: tuple[str, ...] = ()
    fabric: str = ""  # the network between nodes that it was fitted on; a run on another one takes that network's coefficients
    measured: tuple[str, ...] = ()
    """Coefficients that a probe measured on the machine itself, so that a fit to runs moves them less."""
    learned: tuple[str, ...] = field(default=(), metadata={"derived": True})
    """Coefficients fitted to other machines or programs of the same level (catalogue/levels.py), with narrower priors."""

    matmul: Count = coefficient(0.75, width=0.1, most=1)
    """Fraction of the peak in a product of ideal shape. A100: 0.8 in Korthikanti et al. 2022; H200: 0.77 over 1,029 shapes measured."""
    tile: Count = coefficient(0.2)  # loss of a smaller tile: efficiency is (area / 256x128) to this power
    depth: Count = coefficient(116.0)  # cost of filling and draining a tile's pipeline, in steps of k (H200, 1,029 shapes)
    fp8: Count = coefficient(0.93, width=0.1, most=1)
    """Fraction of `matmul` in 8-bit products, without their casts (H200, torch 2.11: 0.93 to 1.0 of the 16-bit share in Llama 8B's
    shapes)."""
    fp4: Count = coefficient(0.65, width=0.2, most=1)  # fraction of `matmul` in 4-bit products, without their casts
    grouped: Count = coefficient(0.75, width=0.2, most=1)
    """Fraction of `matmul` in grouped products of experts, which are of unequal size."""
    memory: Count = coefficient(0.75, width=0.12, most=1)  # fraction of the memory bandwidth when streaming
    elementwise: Count = coefficient(1.0, width=0.4, fitted_to="probed", level="framework")
    """Bytes moved by norms, rotary positions and activation functions, over the framework's nominal bytes (Framework.unfused). Runs can
    separate this from `memory` only if `memory` was measured."""
    scan: Count = coefficient(1.0, width=1.5, fitted_to="probed")
    """Speed of the products inside a recurrent layer (TTT, SSM), over that of linear layers of the same depth."""
    flash: Count = coefficient(0.6, width=0.15, most=1)  # fraction of the peak in flash attention with heads of 128
    uneven: Count = coefficient(1.25, width=0.4)
    """Slowdown of softmax attention without flash kernels if micro-batch x heads on a device is not a multiple of 32. Fitted on
    A100: 2.4 to the BLOOM notes, 2.0 to vTrain's runs, 1.1 to Megatron's; an H200 shows no such step (benchmarks/kernels/bmm_sweep.py)."""
    link: Count = coefficient(0.77, width=0.5, most=1)
    """Fraction of the bandwidth of the link inside a node (A100: 230 of 300 GB/s in NCCL's ring)."""
    link_latency: Seconds = coefficient(6e-6, width=1.5)
    """One step of a ring inside a node, in addition to its bytes, including the wait for stragglers."""
    network: Count = coefficient(0.5, width=0.7, most=1, level="fabric")  # fraction of the bandwidth between nodes
    network_latency: Seconds = coefficient(1e-5, width=0.7, level="fabric")
    """One step of a ring between nodes, in addition to its bytes."""
    exposed_tp: Count = coefficient(1.0, width=0.3, most=1, level="framework")
    """Fraction of tensor-parallel communication that is not overlapped with compute."""
    exposed_stage: Count = coefficient(0.5, width=0.7, most=1, level="framework")
    """Fraction of the communication between pipeline stages that is not overlapped with compute."""
    hidden_dp: Count = coefficient(0.85, width=0.4, most=1, level="framework")
    """Fraction of one micro-batch's backward pass that can overlap gradient reduction and parameter all-gathers."""
    contention: Count = coefficient(0.4, width=0.5, most=1, level="framework")
    """Fraction of the hidden traffic of ZeRO 3 that slows the compute beside it, whose SMs and memory it shares; not with tensor
    parallelism, nor on TPUs."""
    layer_launch: Seconds = coefficient(1.2e-3, width=0.8, level="framework")
    """CPU launch overhead of one layer, forward; a faster device waits for it."""
    layer_gap: Seconds = coefficient(2e-4, width=0.8, level="framework")
    """Device time lost between kernels per layer and pass, independent of their size: exposed gaps, synchronous launches."""
    expert_launch: Seconds = coefficient(2e-3, width=0.7, level="framework")
    """CPU launch overhead of the experts of a layer, forward, in addition to `layer_launch`: router, top-k, sort, permutation and grouped
    products are kernels of their own, and the host waits for the number of tokens of each expert."""
    expert_gap: Seconds = coefficient(1e-4, width=0.7, level="framework")
    """Device time lost between these kernels, per layer and pass."""
    stage_launch: Seconds = coefficient(2e-3, width=0.8, level="framework")
    """Exposed CPU launch overhead per micro-batch and stage."""
    update: Count = coefficient(1.0, width=0.7, level="framework")
    """Bytes moved by the update of weights, over those of a fused kernel: eager optimizers, gradient norms and clipping pass over memory
    several times."""
    step: Seconds = coefficient(2e-2, width=0.8, level="framework")  # per step: data, clipping, logging
    context: Bytes = coefficient(2.0e9, width=0.5, fitted_to="memory", level="framework")
    """CUDA context, NCCL buffers and workspaces per device."""
    collectives: Bytes = 0.0
    """Buffers of NCCL where there are several devices, if `context` is that of a device alone; 0: they are part of it."""
    activations: Count = coefficient(1.0, width=0.3, fitted_to="memory", level="framework")
    """Measured activation bytes over computed ones."""
    devices: Count = 0.0  # the most devices in a row of the fit; intervals are wider beyond. 0: no rows.
    waiting: tuple[Count, ...] = (0.3, 0.6)
    """Boundaries between ranges of the fraction of a step in which devices wait; prediction errors differ by range."""
    low: tuple[Count, ...] = (0.16, 0.18, 0.2)
    high: tuple[Count, ...] = (0.35, 0.8, 1.6)
    """By range, ln(predicted / measured) and ln(measured / predicted) that 95% of the held-out rows stay below. The prior's are chosen by
    hand: of the rows of the five shipped tables, 71% (nanotron) to 100% lie in them."""
    between: Count = 0.0
    """Standard deviation of ln(measured / predicted) between sources: clusters, releases and kernels differ in what no formula knows. 0
    where the calibration was fitted to runs of the machine that it predicts."""
    expert_spread: Count = 0.0
    """Further standard deviation for models with experts, whose routing and communication were measured less."""
    memory_spread: Count = 0.13
    """Standard deviation of ln(predicted / measured) memory on held-out rows, from the size that 90% stay below."""
    modes: tuple[Mode, ...] = ()
    """States in which some of the rows were slower; those rows are not in `low` and `high`, nor in the fit where they are the fewer."""

    def __post_init__(self) -> None:
        if not (self.matmul and self.memory and self.flash and self.link and self.network and self.scan):
            raise UserError("matmul, memory, scan, flash, link and network are shares of a rate and must be above zero")
        if not len(self.waiting) + 1 == len(self.low) == len(self.high) or list(self.waiting) != sorted(self.waiting):
            raise UserError("'low' and 'high' need one number more than 'waiting', whose numbers must increase")


@dataclass(frozen=True, kw_only=True)
class ServeCalibration(Record):
    """Serving: fractions of datasheet rates, and fixed costs in seconds, of one engine on one chip or on all chips of a kind."""

    engines: tuple[str, ...] = ()  # engines, or builds by the names of their files in data/runtimes
    kinds: tuple[Kind, ...] = ()  # kinds of chip for which it is the prior, where nothing more specific is known
    vendors: tuple[str, ...] = ()  # vendors of the chips of these kinds; empty: all
    backends: tuple[str, ...] = ()
    """Libraries that the engine was built for: cuda, rocm, rocm-wmma, vulkan, metal, sycl; empty: any."""

    stream: Count = coefficient(0.93, width=0.08, most=0.97)  # fraction of the memory bandwidth when reading weights
    single: Count = coefficient(1.0, width=0.1)  # fraction of `stream` in single-token products by the engine's own kernels
    reach: Count = coefficient(8.0, width=0.25)
    """Bytes of weights that one SM (or core) can read per cycle in a matrix-vector product: the bound on chips with more bandwidth."""
    cache: Count = coefficient(1.1, width=0.5, most=3)
    """Fraction of the memory bandwidth when reading the KV cache once per query head, as attention without flash kernels does. Above 1
    if the chip's own cache serves heads that share keys."""
    flash_cache: Count = coefficient(0.5, width=0.4, most=1)
    """Fraction of the memory bandwidth when reading the KV cache once for all heads that share it, as flash kernels do."""
    cache_reach: Count = coefficient(0.0, width=0.4)
    """Bytes of the KV cache that flash kernels read per cycle of all SMs, where that bounds them before the bandwidth does; 0: no bound."""
    layer: Seconds = coefficient(9.5e-5, width=0.4)  # per layer and step: kernels that start one after another
    expert: Seconds = coefficient(3e-5, width=0.5)
    """Per layer with routed experts and step, in addition to `layer`: router, top-k, sort, grouped products, combination."""
    cycles: Count = coefficient(0.0, width=0.4)
    """Clock cycles of a layer's kernels in a step, in addition to `layer`: what a faster clock shortens."""
    expert_cycles: Count = coefficient(0.0, width=0.5)  # the same of routed experts, in addition to `expert`
    grouped: Count = coefficient(1.0)
    """Fraction of `stream` in reading the weights of experts, whose grouped products have a few rows each."""
    step: Seconds = coefficient(1e-4, width=0.5)  # per step: inputs, sampling, the program's own work
    sequence: Seconds = coefficient(2e-7, width=0.7)
    """Per decoding sequence and step: scheduling, sampling, detokenization that the device waits for."""
    sample: Seconds = coefficient(0.0, width=0.5)
    """Per decoding sequence, step and token of the vocabulary: choosing a token on the host, one sequence after another."""
    request: Seconds = coefficient(0.0, width=0.7)
    """Per request: from its arrival to its first pass, and from its first token to the user: HTTP, tokens of the text, queues between
    processes."""
    request_layer: Seconds = coefficient(0.0, width=0.7)
    """The same per layer of the model: the host prepares and launches a prompt while devices finish the steps before it."""
    prompt_launch: Seconds = coefficient(0.0, width=0.7)
    """The host's launch of one layer of a prompt, where no graph does; a faster device waits for it."""
    hop: Seconds = coefficient(1.8e-4, width=0.7)  # from one device to the next of its host, in addition to the bytes
    remote: Seconds = coefficient(3e-4)
    """From one host to another, in addition to the network's round trip and the bytes: the programs at both ends."""
    graph: Bytes = coefficient(13e3)
    """Sent to another host each step for every layer that it computes: llama.cpp's RPC serializes every tensor of a graph, about 45 per
    layer with 300 bytes each (from memory of ggml-rpc, not measured)."""
    row: Seconds = coefficient(2e-5, width=0.7)
    """A product split by rows: per participating device, to send inputs and collect outputs."""
    reduce: Seconds = coefficient(5e-6, width=0.5)  # an all-reduce, in addition to its bytes and the latency of its links
    link: Count = coefficient(0.5, width=0.8, most=1)  # fraction of the bandwidth of the link between devices
    product: Count = coefficient(0.65, width=0.25, most=1)
    """Fraction of the peak in products of 16-bit weights with many tokens, where whole tiles fill all SMs."""
    tile: Count = coefficient(0.2)
    """Loss of a smaller tile in these products: efficiency is (area / 256x128) to this power. The same as in training."""
    exposed: Count = coefficient(0.0, width=0.4, most=1)  # share of min(read time, compute time) that the other does not hide
    narrow: Count = coefficient(0.72, width=0.2)  # speed of these products with quantised weights, relative to 16-bit weights
    quantized: Count = coefficient(0.0, width=0.2)
    """FLOPs per SM and cycle in products of quantised weights with many tokens, where the engine's own kernels unpack them; 0: `product` x
    `narrow` of the peak."""
    vector: Count = coefficient(0.0, width=0.4)
    """FLOPs per SM and cycle in products of quantised weights with 2 to 8 tokens, which have kernels of their own; 0: as with many."""
    expert_product: Count = coefficient(1.0, width=0.3, most=1.2)
    """Speed of the grouped products of experts, relative to dense ones with as full tiles."""
    expert_gain: Count = coefficient(1.0)
    """How much of the gain of 8- and 4-bit products over 16-bit ones the products of experts have, as a power of it: the rest is gathering
    rows and padding tiles, which no format shortens."""
    touch: Count = coefficient(2.0, width=0.5)
    """Number of times that the inputs and outputs of these products pass through memory: norms, rotations, gates, type conversions."""
    scores: Count = coefficient(5.5, width=0.3)
    """Attention without flash kernels: number of times that the scores are written to or read from memory."""
    flash: Count = coefficient(0.3, width=0.4, most=1)  # fraction of the peak in flash attention over a prompt
    pipelined: Count = coefficient(0.95, width=0.2, most=1)
    """Fraction of the ideal gain of micro-batches on several devices that is reached."""
    host: Count = coefficient(0.7)  # fraction of the host memory's bandwidth in layers that stay there
    spread: Count = 0.1
    """Standard deviation of ln(predicted / measured) decode speed on held-out rows, from the size that 90% of them stay below."""
    prefill_spread: Count = 0.2
    between_sources: bool = False
    """Whether the spread is that of whole sources left out of the fit, so that it contains what differs between machines and releases."""
    all_reduces: bool = False  # whether rows of tensor parallelism were fitted; the time of all-reduces is less certain otherwise
    experts: bool = False  # whether rows of models with experts were fitted; predictions for them are less certain otherwise

    def __post_init__(self) -> None:
        shares = "stream single grouped reach cache flash_cache link product narrow expert_product flash host"
        for name in shares.split():
            if not getattr(self, name):
                raise UserError(f"{name} is a share of a rate and must be above zero")


COEFFICIENTS = tuple(coefficients(Calibration))
SERVE_COEFFICIENTS = tuple(coefficients(ServeCalibration))

# Choosing a calibration.

AnyRecord = TypeVar("AnyRecord", bound=Record)


@files.cached
def calibrations() -> tuple[Calibration, ...]:
    """Return all calibrations for training, the user's own first."""
    paths = files.files("calibration", ".toml")
    return _read(Calibration, dict(sorted(paths.items(), key=lambda item: item[1].is_relative_to(files.BUILT_IN))))


@files.cached
def serve_calibrations() -> tuple[ServeCalibration, ...]:
    """Return all calibrations for serving."""
    return _read(ServeCalibration, files.files("serving", ".toml"))


def _read(cls: type[AnyRecord], paths: dict[str, Path]) -> tuple[AnyRecord, ...]:
    return tuple(
        replace(records.read(cls, files.table_of(path), path.name), key=key, shipped=path.is_relative_to(files.BUILT_IN))
        for key, path in paths.items()
    )


def named(name: str) -> Calibration:
    """Return a calibration for training by its name, or from a .toml file that `meshwise calibrate --out` wrote."""
    return _from_file(Calibration, name) or _named(name, calibrations())


def named_serve(name: str) -> ServeCalibration:
    """Return a calibration for serving by its name, or from a .toml file."""
    return _from_file(ServeCalibration, name) or _named(name, serve_calibrations())


def _from_file(cls: type[AnyRecord], name: str) -> AnyRecord | None:
    path = Path(name)
    return replace(records.read(cls, files.table_of(path), path.name), key=path.stem) if path.suffix == ".toml" else None


def _named(name: str, known: Iterable[AnyRecord]) -> AnyRecord:
    by_key = {record.key: record for record in known}
    if name not in by_key:
        raise unknown("calibration", name, by_key, ", or a .toml file")
    return by_key[name]


def fitted_to(chip: Chip, framework: str) -> Calibration | None:
    """Return the calibration that was fitted to this chip with this framework, or probed on this chip; None where there is none."""
    known = calibrations()
    for calibration in known:
        if chip.key in calibration.chips and framework in calibration.frameworks:
            return calibration
    return next((c for c in known if chip.key in c.chips and not c.frameworks), None)


def prior_of(chip: Chip) -> Calibration:
    """Return the prior of a chip's architecture, never a fit to training runs; the default where there is none."""
    for calibration in calibrations():
        if chip.architecture in calibration.architectures and not (calibration.chips or calibration.frameworks):
            return calibration
    return Calibration()


def choose_serve(chip: Chip, engine: str, backend: str = "") -> ServeCalibration:
    """Return the calibration for this chip with this engine or build ('llama.cpp-2024-05'); else for its architecture; else for its kind.
    One measured on this build precedes one measured on another build of the engine, and one of this backend or vendor one of any."""
    names = dict.fromkeys((engine, engine_of(engine)))
    known = [record for record in serve_calibrations() if not backend or not record.backends or backend in record.backends]
    known.sort(key=lambda record: (backend not in record.backends, not record.vendors))
    for attribute, value in (("chips", chip.key), ("architectures", chip.architecture), ("kinds", chip.kind)):
        for name in names:
            for calibration in known:
                of_vendor = not calibration.vendors or chip.vendor in calibration.vendors
                if value in getattr(calibration, attribute) and name in calibration.engines and of_vendor:
                    return calibration
    return ServeCalibration()


def serve_prior(chip: Chip, engine: str, backend: str = "") -> ServeCalibration:
    """Return the calibration for all chips of this kind and vendor."""
    return choose_serve(replace(chip, key="", architecture=""), engine, backend)


def engine_of(build: str) -> str:
    """Return the engine of a build: 'llama.cpp' for 'llama.cpp-2024-05'."""
    return build.partition("-20")[0]
