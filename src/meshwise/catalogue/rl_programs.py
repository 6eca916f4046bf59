"""RlProgram: what a program that trains on generated answers does (data/rl_programs); Overheads: what its phases cost beside the same work
alone, fitted to published steps (data/rl)."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Source
from meshwise.errors import unknown
from meshwise.units import Count, Seconds

Rows = Literal["packed", "padded", "longest"]
Mode = Literal["colocated", "split", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)
USUAL = "verl"  # the program that is assumed where none is named


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One of the training frameworks that a program runs, with the largest degree of each axis that it can express; 1 for axes that are
    not listed."""

    framework: str
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: tuple[str, ...] = ("3",)  # the least and the most stage of ZeRO that it has

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The bounds on axes: no replicas of shards, and no interleaved stages, which none of these programs is configured with."""
        most = {axis: (1, getattr(self, axis)) for axis in ("tp", "pp", "cp", "ep")}
        return most | {"zero": (int(self.zero[0]), int(self.zero[-1])), "dp_replicate": (1, 1), "vpp": (1, 1)}


@dataclass(frozen=True, kw_only=True)
class RlProgram:
    """A program that generates answers with an engine and trains on them. Facts from its documentation and code."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    words: tuple[str, ...] = ()  # other names for it
    release: str  # the release whose keys and defaults these are
    trainers: tuple[Trainer, ...]  # in the order in which they are tried
    engine: str = "vllm"
    modes: tuple[Mode, ...]
    """colocated: all devices train and generate in turn; split: some generate the answers of the next step while others train; async: the
    same, and engines never wait for the longest answer of a step."""
    in_turn_apart: bool = False  # whether devices that generate and devices that train wait for each other where they are split
    objectives: dict[str, str]  # objectives that it has, in its own words
    share: Count  # share of a device's memory that the engine takes, where it also trains
    share_apart: Count = 0.9  # the same of a device that only generates
    sequences: int = 0  # the most answers of one engine at once; 0: the engine's own default
    eager: bool = False  # whether the engine launches kernels one by one instead of replaying CUDA graphs
    offloads: bool = False  # whether states of training are moved to host memory while the same devices generate
    old_log_prob: bool = True  # whether the trainer reads every answer once to get its probabilities before the update
    rows: Rows = "packed"
    """How rows of many lengths fill a micro-batch: packed, padded to the longest of a micro-batch, or to the longest of all."""
    recomputes: bool = False  # whether activations are recomputed unless its settings say otherwise
    adapters: bool = True
    partial: bool = False  # whether unfinished answers may be continued in the next step
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Coefficients of a step on generated answers. 1 or 0 is what the parts would take alone."""

    key: str = field(default="", metadata={"derived": True})
    fitted_on: str
    rows: int = 0
    date: str = ""
    programs: tuple[str, ...] = ()  # programs whose steps were fitted
    engine_layer: Seconds = 0.0
    """Seconds of every step of decoding in which devices wait for the host, per layer (a layer with experts counts twice): an engine
    inside such a program is a library that its workers call, without the overlap of a server's processes."""
    training: Count = 1.0
    """Seconds of the update and of passes for log-probabilities over those of training on packed rows of one length (pretraining)."""
    phase: Seconds = 0.0
    """Seconds of each phase of training in which devices wait: rows are handed over, sorted into micro-batches, and moved."""
    switch: Seconds = 0.0
    """Seconds of a step in which no device computes: engines sleep and wake, rewards are computed, metrics are gathered."""
    reload: Count = 0.1
    """Share of the bandwidth between devices at which weights reach the engines, with their names and shapes changed."""
    adapter_launch: Seconds = 5e-5  # host seconds of one kernel of an adapter in the engine, where no graph replays it
    spread: Count = 0.3  # standard deviation of ln(predicted / measured) of steps of programs that were left out
    spreads: dict[str, Count] = field(default_factory=dict[str, float])  # the same of each phase


@files.cached
def rl_programs() -> dict[str, RlProgram]:
    """Return every program that trains on generated answers, by name."""
    paths = files.files("rl_programs", ".toml")
    return {key: replace(records.read(RlProgram, files.table_of(path), path.name), key=key) for key, path in paths.items()}


def find_rl_program(name: str) -> RlProgram | None:
    """Return the program of that name, or one of its other names; None where it is none of these. Case and punctuation do not count."""
    plain = files.squeeze(name).replace(".", "")
    for one in rl_programs().values():
        if plain in (files.squeeze(word).replace(".", "") for word in (one.key, one.name, *one.words)):
            return one
    return None


@files.cached
def overheads() -> dict[str, Overheads]:
    """Return every set of coefficients by name: 'all', and 'without-PROGRAM' for each program that was left out of a fit."""
    paths = files.files("rl", ".toml")
    return {key: replace(records.read(Overheads, files.table_of(path), path.name), key=key) for key, path in paths.items()}


def overheads_of(name: str = "all") -> Overheads:
    """Return coefficients by name."""
    known = overheads()
    if name not in known:
        raise unknown("coefficients", name, known)
    return known[name]
