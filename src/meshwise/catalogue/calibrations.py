"""Calibrations: the few numbers of the cost models that no datasheet states, each with what it was fitted on and how well it did.

`Calibration` is of training, `ServeCalibration` of serving. A coefficient's field says how far a fit may move it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Chip, Kind, Source
from meshwise.errors import UserError, nearest, quoted
from meshwise.units import Bytes, Count, Seconds

FittedTo = Literal["speed", "memory", "probed"]


@dataclass(frozen=True)
class Coefficient:
    """How a fit treats one coefficient."""

    width: float
    """Standard deviation of ln(coefficient) between machines: the weight of its prior. 0: no fit moves it."""
    most: float
    """Upper bound: 1 for a share of a rate."""
    fitted_to: FittedTo
    """Measured speeds, measured memory, or speeds on a machine whose products and memory were probed."""


def coefficient(prior: float, *, width: float = 0.0, most: float = math.inf, fitted_to: FittedTo = "speed") -> Any:
    """A dataclass field for a coefficient with its prior value."""
    return field(default=prior, metadata={"coefficient": Coefficient(width, most, fitted_to)})


def coefficients(cls: type["Record"]) -> dict[str, Coefficient]:
    """The coefficients of a kind of calibration by name, in the order of their fields."""
    return {f.name: f.metadata["coefficient"] for f in fields(cls) if "coefficient" in f.metadata}


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where a calibration comes from, and which chips it is for."""

    key: str = field(default="", metadata={"derived": True})
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
    """Training: fractions of datasheet rates, and fixed costs in seconds and bytes. The defaults are the prior, set by hand with
    the shipped tables in view."""

    frameworks: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    """Coefficients that a probe timed on the machine itself, so that a fit to runs moves them less."""

    matmul: Count = coefficient(0.75, width=0.1, most=1)
    """Of the peak, in a product of ideal shape. A100: 0.8 in Korthikanti et al. 2022; H200: 0.77 over 1,029 shapes measured."""
    tile: Count = coefficient(0.2)
    """How a smaller tile loses: efficiency is (area / 256x128) to this power."""
    depth: Count = coefficient(116.0)
    """Steps of k that filling and draining a tile's pipeline is worth (H200, 1,029 shapes)."""
    fp8: Count = coefficient(0.83)
    """Of `matmul`, in products of 8 bits with a scale for every row (H200, 16 shapes: benchmarks/fp8_sweep.py)."""
    memory: Count = coefficient(0.75, width=0.12, most=1)
    """Of the memory bandwidth, streaming."""
    elementwise: Count = coefficient(1.0, width=0.6, fitted_to="probed")
    """Bytes that norms, rotary positions and activation functions move, over those that the framework is said to (Framework.unfused). Only
    where `memory` is measured can runs tell the two apart."""
    scan: Count = coefficient(1.0, width=1.5, fitted_to="probed")
    """How fast the products inside a recurrent layer (TTT, SSM) are, over those of linear layers of the same depth."""
    flash: Count = coefficient(0.6, width=0.15, most=1)
    """Of the peak, in flash attention with heads of 128."""
    uneven: Count = coefficient(1.25, width=0.4)
    """How much longer softmax attention without flash kernels takes where micro-batch x heads on a device is no multiple of 32. Fitted on
    A100: 2.4 to the BLOOM notes, 2.0 to vTrain's runs, 1.1 to Megatron's; on an H200 there is no such step (benchmarks/bmm_sweep.py)."""
    link: Count = coefficient(0.77, width=0.5, most=1)
    """Of the link inside a node (A100: 230 of 300 GB/s in NCCL's ring)."""
    link_latency: Seconds = coefficient(6e-6, width=1.5)
    """One step of a ring inside a node, beyond its bytes, with the wait for the slowest member."""
    network: Count = coefficient(0.5, width=0.7, most=1)
    network_latency: Seconds = coefficient(3e-5)
    exposed_tp: Count = coefficient(1.0, width=0.3, most=1)
    """Share of tensor-parallel time that computing does not hide."""
    exposed_stage: Count = coefficient(0.5, width=1, most=1)
    """Share of the time between pipeline stages that computing does not hide."""
    hidden_dp: Count = coefficient(0.5, width=1, most=1)
    """Share of one micro-batch's backward pass that can hide gradient reduction and parameter gathering."""
    layer_launch: Seconds = coefficient(1.2e-3, width=0.8)
    """Host time to start one layer once, forward; a faster device waits for it."""
    layer_gap: Seconds = coefficient(2.5e-4, width=1.5)
    """Device time lost per layer and pass between kernels, whatever their size: gaps that are not hidden, synchronous launches."""
    stage_launch: Seconds = coefficient(2e-3, width=1.5)
    """Host time per micro-batch and stage that nothing hides."""
    step: Seconds = coefficient(2e-2, width=1.5)
    """Per step: data, clipping, logging."""
    context: Bytes = coefficient(2.0e9, width=0.5, fitted_to="memory")
    """CUDA context, NCCL buffers and workspaces per device."""
    activations: Count = coefficient(1.0, width=0.3, fitted_to="memory")
    """Measured over computed activation bytes."""
    devices: Count = 0.0
    """The most that a row of the fit had; intervals are wider beyond. 0: no rows."""
    waiting: tuple[Count, ...] = (0.3, 0.6)
    """Shares of a step in which devices wait, between which errors differ in size; one more range than there are shares."""
    low: tuple[Count, ...] = (0.16, 0.18, 0.2)
    high: tuple[Count, ...] = (0.35, 0.8, 1.6)
    """By range, how far rows left out were below their prediction and above it, as logarithms of the ratio: but for 5% on either side. The
    prior's are by hand: of the rows of the five shipped tables, 71% (nanotron) to 100% lie in them."""
    memory_spread: Count = 0.13
    """Standard deviation of ln(predicted / measured) of memory on rows left out, by the size that 90% stay below."""

    def __post_init__(self) -> None:
        if not (self.matmul and self.memory and self.flash and self.link and self.network and self.scan):
            raise UserError("matmul, memory, scan, flash, link and network are shares of a rate and must be above zero")
        if not len(self.waiting) + 1 == len(self.low) == len(self.high) or list(self.waiting) != sorted(self.waiting):
            raise UserError("'low' and 'high' need one number more than 'waiting', whose numbers rise")


@dataclass(frozen=True, kw_only=True)
class ServeCalibration(Record):
    """Serving: shares of datasheet rates, and fixed costs in seconds, of one engine on one chip or on all chips of a kind."""

    engines: tuple[str, ...] = ()
    """Engines, or single builds of one by the name of their file in data/runtimes."""
    kinds: tuple[Kind, ...] = ()
    """Kinds of chip that it is the prior of, where nothing closer is known."""

    stream: Count = coefficient(0.93, width=0.08, most=0.97)
    """Of the memory bandwidth, in reading weights."""
    single: Count = coefficient(1.0, width=0.1)
    """Of that, in products of a single token by kernels of the engine's own."""
    reach: Count = coefficient(8.0, width=0.25)
    """Bytes of weights that one SM (or core) can take in per cycle in a matrix-vector product: what bounds chips with more bandwidth."""
    cache: Count = coefficient(1.1, width=0.5, most=3)
    """Of the memory bandwidth, in reading keys and values once for every query head, as attention without flash kernels does. Above 1
    where the chip's own cache serves heads that share keys."""
    flash_cache: Count = coefficient(0.5, width=0.4, most=1)
    """Of the memory bandwidth, in reading them once for all heads that share them, as flash kernels do."""
    layer: Seconds = coefficient(9.5e-5, width=0.4)
    """Per layer and step: kernels that start one behind the other."""
    step: Seconds = coefficient(1e-4, width=0.5)
    """Per step: inputs, sampling, the program around it."""
    hop: Seconds = coefficient(1.8e-4, width=0.7)
    """From one device to the next of its host, beyond its bytes."""
    remote: Seconds = coefficient(3e-4)
    """From one host to another, beyond the network's round trip and its bytes: the program at both ends."""
    graph: Bytes = coefficient(13e3)
    """Sent to another host for every layer that it is to compute, each step: llama.cpp's RPC writes out every tensor of a graph, about 45 a
    layer with 300 bytes each (from memory of ggml-rpc, not measured)."""
    row: Seconds = coefficient(2e-5, width=0.7)
    """A product cut by rows: per device that takes part, to send inputs and collect outputs."""
    reduce: Seconds = coefficient(5e-6)
    """An all-reduce, beyond its bytes and the latency of its links."""
    link: Count = coefficient(0.5, width=0.8, most=1)
    """Of the link between devices."""
    product: Count = coefficient(0.65, width=0.25, most=1)
    """Of the peak, in products of 16-bit weights with many tokens, where whole tiles fill all SMs."""
    tile: Count = coefficient(0.2)
    """How a smaller tile of such products loses: its efficiency is (area / 256x128) to this power. The same as in training."""
    exposed: Count = coefficient(0.0)
    """Of reading weights and of multiplying with them, the share of the shorter one that the longer does not hide."""
    narrow: Count = coefficient(0.72, width=0.2)
    """How fast such products are with quantised weights, against 16-bit ones."""
    touch: Count = coefficient(2.0, width=0.5)
    """Times that what goes into and comes out of these products passes through memory: norms, rotations, gates, changes of type."""
    scores: Count = coefficient(5.5, width=0.3)
    """Attention without flash kernels: times that the scores go to memory or come from it."""
    flash: Count = coefficient(0.3, width=0.4, most=1)
    """Of the peak, in flash attention over a prompt."""
    pipelined: Count = coefficient(0.95, width=0.2, most=1)
    """How much of what micro-batches on several devices could gain at most is gained."""
    host: Count = coefficient(0.7)
    """Of the bandwidth of host memory, in layers that stay there."""
    spread: Count = 0.1
    """Standard deviation of ln(predicted / measured) of decode on rows left out, by the size that 90% of them stay below."""
    prefill_spread: Count = 0.2

    def __post_init__(self) -> None:
        for name in ("stream", "single", "reach", "cache", "flash_cache", "link", "product", "narrow", "flash", "host"):
            if not getattr(self, name):
                raise UserError(f"{name} is a share of a rate and must be above zero")


COEFFICIENTS = tuple(coefficients(Calibration))
SERVE_COEFFICIENTS = tuple(coefficients(ServeCalibration))

# Which one to use.

Some = TypeVar("Some", bound=Record)


@files.cached
def calibrations() -> tuple[Calibration, ...]:
    """The user's own first."""
    found = files.files("calibration", ".toml")
    return _read(Calibration, dict(sorted(found.items(), key=lambda item: item[1].is_relative_to(files.BUILT_IN))))


@files.cached
def serve_calibrations() -> tuple[ServeCalibration, ...]:
    return _read(ServeCalibration, files.files("serving", ".toml"))


def _read(cls: type[Some], found: dict[str, Path]) -> tuple[Some, ...]:
    return tuple(replace(records.read(cls, files.table_of(path), path.name), key=key) for key, path in found.items())


def named(name: str) -> Calibration:
    """A calibration by its name, or a .toml file that `meshwise calibrate --out` wrote."""
    return _from_file(Calibration, name) or _named(name, calibrations())


def named_serve(name: str) -> ServeCalibration:
    """The same of serving."""
    return _from_file(ServeCalibration, name) or _named(name, serve_calibrations())


def _from_file(cls: type[Some], name: str) -> Some | None:
    path = Path(name)
    return replace(records.read(cls, files.table_of(path), path.name), key=path.stem) if path.suffix == ".toml" else None


def _named(name: str, known: Iterable[Some]) -> Some:
    by_key = {found.key: found for found in known}
    if name not in by_key:
        raise UserError(f"unknown calibration {quoted(name)}{nearest(name, by_key)}; known: {', '.join(by_key)}, or a .toml file")
    return by_key[name]


def choose(chip: Chip, framework: str) -> Calibration:
    """The calibration for this chip and framework; else for the chip with any; else for its architecture; else the prior."""
    known = calibrations()
    for found in known:
        if chip.key in found.chips and framework in found.frameworks:
            return found
    for found in known:
        if chip.key in found.chips and not found.frameworks:
            return found
    for found in known:
        if chip.architecture in found.architectures:
            return found
    return Calibration()


def choose_serve(chip: Chip, engine: str) -> ServeCalibration:
    """The calibration for this chip with this engine, or one of its builds ('llama.cpp-2024-05'); else for its architecture; else its
    kind. One measured on the very build comes before one measured on another build of the engine."""
    names, known = dict.fromkeys((engine, engine_of(engine))), serve_calibrations()
    for attribute, own in (("chips", chip.key), ("architectures", chip.architecture), ("kinds", chip.kind)):
        for name in names:
            for found in known:
                if own in getattr(found, attribute) and name in found.engines:
                    return found
    return ServeCalibration()


def serve_prior(chip: Chip, engine: str) -> ServeCalibration:
    """The calibration for all chips of this kind."""
    return choose_serve(replace(chip, key="", architecture=""), engine)


def engine_of(build: str) -> str:
    """'llama.cpp-2024-05' is a build of 'llama.cpp'."""
    return build.partition("-20")[0]
