"""Calibration: the few numbers of the cost model that no datasheet states. Each says what it was fitted on and how well it did."""

from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from meshwise.catalogue import files as catalogue
from meshwise.catalogue import records
from meshwise.catalogue.chips import Chip, Source
from meshwise.errors import UserError, nearest, quoted
from meshwise.units import Bytes, Count, Seconds


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fractions of datasheet rates, and fixed costs in seconds and bytes. The defaults are the prior, set by hand with the
    shipped tables in view."""

    key: str = field(default="", metadata={"derived": True})
    chips: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    fitted_on: str = "nothing: the default prior"
    date: str = ""
    rows: Count = 0.0
    sources: tuple[Source, ...] = ()
    measured: tuple[str, ...] = ()
    """Coefficients that were timed one by one on the machine itself, so that runs can tell little more of them."""

    matmul: Count = 0.75
    """Of the peak, in a product of ideal shape. A100: 0.8 in Korthikanti et al. 2022; H200: 0.77 over 1,029 shapes measured."""
    tile: Count = 0.2
    """How a smaller tile loses: efficiency is (area / 256x128) to this power."""
    depth: Count = 116.0
    """Steps of k that filling and draining a tile's pipeline is worth (H200, 1,029 shapes)."""
    fp8: Count = 0.83
    """Of `matmul`, in products of 8 bits with a scale for every row (H200, 16 shapes: benchmarks/fp8_sweep.py)."""
    memory: Count = 0.75
    """Of the memory bandwidth, streaming."""
    elementwise: Count = 1.0
    """Bytes that norms, rotary positions and activation functions move, over those that the framework is said to (Framework.unfused). Only
    where `memory` is measured can runs tell the two apart."""
    scan: Count = 1.0
    """How fast the products inside a recurrent layer (TTT, SSM) are, over those of linear layers of the same depth."""
    flash: Count = 0.6
    """Of the peak, in flash attention with heads of 128."""
    uneven: Count = 1.25
    """How much longer softmax attention without flash kernels takes where micro-batch x heads on a device is no multiple of 32. Fitted on
    A100: 2.4 to the BLOOM notes, 2.0 to vTrain's runs, 1.1 to Megatron's; on an H200 there is no such step (benchmarks/bmm_sweep.py)."""
    link: Count = 0.77
    """Of the link inside a node (A100: 230 of 300 GB/s in NCCL's ring)."""
    link_latency: Seconds = 6e-6
    """One step of a ring inside a node, beyond its bytes, with the wait for the slowest member."""
    network: Count = 0.5
    network_latency: Seconds = 3e-5
    exposed_tp: Count = 1.0
    """Share of tensor-parallel time that computing does not hide."""
    exposed_stage: Count = 0.5
    """Share of the time between pipeline stages that computing does not hide."""
    hidden_dp: Count = 0.5
    """Share of one micro-batch's backward pass that can hide gradient reduction and parameter gathering."""
    layer_launch: Seconds = 1.2e-3
    """Host time to start one layer once, forward; a faster device waits for it."""
    layer_gap: Seconds = 2.5e-4
    """Device time lost per layer and pass between kernels, whatever their size: gaps that are not hidden, synchronous launches."""
    stage_launch: Seconds = 2e-3
    """Host time per micro-batch and stage that nothing hides."""
    step: Seconds = 2e-2
    """Per step: data, clipping, logging."""
    context: Bytes = 2.0e9
    """CUDA context, NCCL buffers and workspaces per device."""
    activations: Count = 1.0
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


FITTED = tuple(f.name for f in fields(Calibration))[9:-5]
"""The coefficients, in order; what stands before them says where they come from, what follows how far off they are."""


@cache
def calibrations() -> tuple[Calibration, ...]:
    files = catalogue.files("calibration", ".toml")
    files = dict(sorted(files.items(), key=lambda item: item[1].is_relative_to(catalogue.BUILT_IN)))
    return tuple(replace(records.read(Calibration, catalogue.table_of(path), path.name), key=key) for key, path in files.items())


def named(name: str) -> Calibration:
    """A calibration by its name, or a .toml file that `meshwise calibrate --out` wrote."""
    if name.endswith(".toml"):
        path = Path(name)
        return replace(records.read(Calibration, catalogue.table_of(path), path.name), key=path.stem)
    for found in calibrations():
        if found.key == name:
            return found
    keys = [found.key for found in calibrations()]
    raise UserError(f"unknown calibration {quoted(name)}{nearest(name, keys)}; known: {', '.join(keys)}, or a .toml file")


def choose(chip: Chip, framework: str) -> Calibration:
    """The calibration of this chip and framework; else of the chip with any; else of its architecture; else the prior. A user's own come
    before those that ship."""
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
