"""The parts of a step and the kinds of memory: one row each, with the name, words, letter and colour used in every table, bar, trace, JSON
key and web page. A new part of the cost is a new row here plus its formula."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """One part of a step's time or of a device's memory."""

    name: str  # the key in JSON, CSV and formulas
    words: str
    letter: str  # drawn in bars without colour
    colour: str
    computes: bool = False  # whether the device computes during this part; otherwise it waits


TRAIN_TIME = (
    Part("matmul", "matrix products", "M", "#2ca02c", computes=True),
    Part("attention", "attention", "A", "#17becf", computes=True),
    Part("elementwise", "norms, activations and loss", "e", "#1f77b4", computes=True),
    Part("recompute", "recomputing activations", "R", "#9467bd", computes=True),
    Part("tp", "tensor-parallel communication", "t", "#bcbd22"),
    Part("cp", "context-parallel communication", "c", "#8dd3c7"),
    Part("ep", "expert all-to-all", "x", "#6baed6"),
    Part("launch", "CPU launch overhead", "h", "#c7c7c7"),
    Part("p2p", "pipeline sends", ">", "#e377c2"),
    Part("bubble", "pipeline bubble", "b", "#d62728"),
    Part("dp", "gradient reduction and weight gathering", "d", "#ff7f0e"),
    Part("optimizer", "optimizer", "o", "#98df8a", computes=True),
    Part("offload", "offload transfers", "f", "#ff9896"),
    Part("fixed", "fixed cost per step", "_", "#7f7f7f"),
)
TRAIN_MEMORY = (
    Part("weights", "weights", "W", "#2ca02c"),
    Part("gradients", "gradients", "G", "#ff7f0e"),
    Part("optimizer", "optimizer state", "O", "#98df8a"),
    Part("activations", "activations", "A", "#9467bd"),
    Part("logits", "logits", "L", "#1f77b4"),
    Part("context", "CUDA context and buffers", "C", "#c7c7c7"),
    Part("allocator", "kept by the allocator", "K", "#e0e0e0"),
)
SERVE_TIME = (
    Part("weights", "reading weights", "W", "#2ca02c"),
    Part("cache", "reading the KV cache", "K", "#17becf"),
    Part("compute", "compute beyond what reading hides", "C", "#1f77b4", computes=True),
    Part("launch", "kernel launches", "L", "#c7c7c7"),
    Part("hops", "hops between devices", "H", "#e377c2"),
    Part("reduce", "all-reduces", "R", "#bcbd22"),
    Part("host", "layers on the CPU", "P", "#ff9896"),
)
REPLAY_TIME = (
    Part("queue", "waiting for a place", "Q", "#d62728"),
    Part("prompt", "its prompt", "P", "#bcbd22", computes=True),
    Part("transfer", "between pools", "X", "#6baed6"),
    Part("tokens", "its tokens", "T", "#2ca02c", computes=True),
    Part("others", "prompts of others", "o", "#9467bd"),
)
"""Where the time of served requests goes."""
SERVE_MEMORY = (
    Part("weights", "weights", "W", "#2ca02c"),
    Part("cache", "KV cache", "K", "#17becf"),
    Part("compute", "compute buffers", "B", "#1f77b4"),
    Part("context", "driver context", "D", "#c7c7c7"),
)


def on_chip(parts: Iterable[Part], kind: object) -> tuple[Part, ...]:
    """Return the parts in words for a kind of chip: only GPUs have a CUDA context."""
    return tuple(part if kind == "gpu" else replace(part, words=part.words.replace("CUDA context", "runtime")) for part in parts)


def names(parts: Iterable[Part]) -> tuple[str, ...]:
    return tuple(part.name for part in parts)


def words(parts: Iterable[Part]) -> dict[str, str]:
    """Return the words for each part, by name."""
    return {part.name: part.words for part in parts}


TRAIN_PARTS, TRAIN_WORDS = names(TRAIN_TIME), words(TRAIN_TIME)
TRAIN_KINDS = names(TRAIN_MEMORY)
SERVE_PARTS, SERVE_WORDS = names(SERVE_TIME), words(SERVE_TIME)
COMPUTING = names(part for part in TRAIN_TIME if part.computes)
