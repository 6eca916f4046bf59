"""Serving: the few numbers of a served model's speed that no datasheet states. Each file says what it was fitted on."""

from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Literal

from meshwise.catalogue import files as catalogue
from meshwise.catalogue import records
from meshwise.catalogue.chips import Chip, Source
from meshwise.errors import UserError, nearest, quoted
from meshwise.units import Bytes, Count, Seconds

Kind = Literal["gpu", "tpu", "npu", "apple", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Shares of datasheet rates, and fixed costs in seconds, of one engine on one chip or on all of a kind."""

    key: str = field(default="", metadata={"derived": True})
    chips: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    """Engines, or single builds of one by the name of their file in data/runtimes."""
    architectures: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    """What it is the prior of: all chips of a kind, where nothing closer is known."""
    fitted_on: str = "nothing: the default prior"
    date: str = ""
    rows: Count = 0.0
    sources: tuple[Source, ...] = ()

    stream: Count = 0.93
    """Of the memory bandwidth, in reading weights."""
    single: Count = 1.0
    """Of that, in products of a single token by kernels of the engine's own."""
    reach: Count = 8.0
    """Bytes of weights that one SM (or core) can take in per cycle in a matrix-vector product: what bounds chips with more bandwidth."""
    cache: Count = 1.1
    """Of the memory bandwidth, in reading keys and values once for every query head, as attention without flash kernels does. Above 1
    where the chip's own cache serves heads that share keys."""
    flash_cache: Count = 0.5
    """Of the memory bandwidth, in reading them once for all heads that share them, as flash kernels do."""
    layer: Seconds = 9.5e-5
    """Per layer and step: kernels that start one behind the other."""
    step: Seconds = 1e-4
    """Per step: inputs, sampling, the program around it."""
    hop: Seconds = 1.8e-4
    """From one device to the next of its host, beyond its bytes."""
    remote: Seconds = 3e-4
    """From one host to another, beyond the network's round trip and its bytes: the program at both ends."""
    graph: Bytes = 13e3
    """Sent to another host for every layer that it is to compute, each step: llama.cpp's RPC writes out every tensor of a graph, about 45 a
    layer with 300 bytes each (from memory of ggml-rpc, not measured)."""
    row: Seconds = 2e-5
    """A product cut by rows: per device that takes part, to send inputs and collect outputs."""
    reduce: Seconds = 5e-6
    """An all-reduce, beyond its bytes and the latency of its links."""
    link: Count = 0.5
    """Of the link between devices."""
    product: Count = 0.65
    """Of the peak, in products of 16-bit weights with many tokens, where whole tiles fill all SMs."""
    tile: Count = 0.2
    """How a smaller tile of such products loses: its efficiency is (area / 256x128) to this power. The same as in training."""
    exposed: Count = 0.0
    """Of reading weights and of multiplying with them, the share of the shorter one that the longer does not hide."""
    narrow: Count = 0.72
    """How fast such products are with quantised weights, against 16-bit ones."""
    touch: Count = 2.0
    """Times that what goes into and comes out of these products passes through memory: norms, rotations, gates, changes of type."""
    scores: Count = 5.5
    """Attention without flash kernels: times that the scores go to memory or come from it."""
    flash: Count = 0.3
    """Of the peak, in flash attention over a prompt."""
    pipelined: Count = 0.95
    """How much of what micro-batches on several devices could gain at most is gained."""
    host: Count = 0.7
    """Of the bandwidth of host memory, in layers that stay there."""
    spread: Count = 0.1
    """Standard deviation of ln(predicted / measured) of decode on rows left out, by the size that 90% of them stay below."""
    prefill_spread: Count = 0.2

    def __post_init__(self) -> None:
        for name in ("stream", "single", "reach", "cache", "flash_cache", "link", "product", "narrow", "flash", "host"):
            if not getattr(self, name):
                raise UserError(f"{name} is a share of a rate and must be above zero")


FITTED = tuple(f.name for f in fields(Serving))[9:]
"""The coefficients, in order; what stands before them says where they come from."""


@cache
def servings() -> tuple[Serving, ...]:
    files = catalogue.files("serving", ".toml")
    return tuple(replace(records.read(Serving, catalogue.table_of(path), path.name), key=key) for key, path in files.items())


def choose(chip: Chip, engine: str) -> Serving:
    """What is known of this chip with this engine, or one of its builds ('llama.cpp-2024-05'); else of its architecture; else its kind.

    What was measured on the very build comes before what was measured on the engine.
    """
    names, known = dict.fromkeys((engine, engine_of(engine))), servings()
    for attribute, own in (("chips", chip.key), ("architectures", chip.architecture), ("kinds", chip.kind)):
        for name in names:
            for found in known:
                if own in getattr(found, attribute) and name in found.engines:
                    return found
    return Serving()


def prior(chip: Chip, engine: str) -> Serving:
    """What is known of all chips of this kind, and nothing closer."""
    return choose(replace(chip, key="", architecture=""), engine)


def named(name: str) -> Serving:
    for found in servings():
        if found.key == name:
            return found
    keys = [found.key for found in servings()]
    raise UserError(f"unknown calibration {quoted(name)}{nearest(name, keys)}; known: {', '.join(keys)}")


def engine_of(build: str) -> str:
    """'llama.cpp-2024-05' is a build of 'llama.cpp'."""
    return build.partition("-20")[0]
