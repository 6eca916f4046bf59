"""Facts: what a launch file can say about a run, in meshwise's own words. One row each; every program maps its keys to these names."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from meshwise.cost.axes import AXES

Value = int | float | str | bool | tuple[str, ...] | tuple[int, ...]
How = Literal["said", "default", "derived", "unknown"]
Group = Literal["layout", "stages", "batch", "work", "model", "machine", "serving"]


@dataclass(frozen=True)
class Span:
    """A piece of a file: the line it is on, and the characters that hold the value, which `--fix` replaces."""

    file: str
    line: int
    start: int = -1
    """Offset of the first character in the file; -1 where no piece of text can be replaced."""
    end: int = -1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def writable(self) -> bool:
        return self.start >= 0


@dataclass(frozen=True)
class Fact:
    """One fact of a run."""

    name: str
    help: str
    group: Group


FACTS = (
    *(Fact(axis.name, axis.help, "layout") for axis in AXES),
    Fact("dp", "Data-parallel ranks.", "layout"),
    Fact("recompute_modules", "Modules whose activations are recomputed, in the program's words.", "layout"),
    Fact("recompute_layers", "Layers of a stage (or of one group, if uniform) that are recomputed.", "layout"),
    Fact("first_stage_layers", "Layers of the first pipeline stage, where it has another number.", "stages"),
    Fact("last_stage_layers", "Layers of the last pipeline stage, where it has another number.", "stages"),
    Fact("embedding_in_split", "The embedding counts as a layer when layers are cut into stages.", "stages"),
    Fact("loss_in_split", "The output head counts as a layer when layers are cut into stages.", "stages"),
    Fact("stage_layout", "Layers of every stage, in the program's words.", "stages"),
    Fact("batch", "Sequences per step.", "batch"),
    Fact("accumulation", "Micro-batches of one data-parallel rank per step.", "batch"),
    Fact("seq", "Tokens per sequence.", "batch"),
    Fact("ramp", "Batch sizes of a ramp-up: start, increment, samples.", "batch"),
    Fact("steps", "Steps of the run.", "work"),
    Fact("samples", "Sequences of the run.", "work"),
    Fact("tokens", "Tokens of the run.", "work"),
    Fact("precision", "Precision of matrix products.", "work"),
    Fact("optimizer", "Optimizer.", "work"),
    Fact("loss", "How the loss is computed.", "work"),
    Fact("compile", "Layers are compiled.", "work"),
    Fact("adapter", "Trains adapters (lora, dora, qlora) instead of all weights.", "work"),
    Fact("rank", "Rank of the adapters.", "work"),
    Fact("alpha", "Numerator of the adapters' scale.", "work"),
    Fact("targets", "Modules that have adapters.", "work"),
    Fact("objective", "Loss: sft, dpo, kto, orpo, reward.", "work"),
    Fact("frozen", "Some weights are frozen.", "work"),
    Fact("frozen_layers", "Layers that are frozen, the first ones, with the embedding.", "work"),
    Fact("save_every", "Steps between checkpoints.", "work"),
    Fact("seed", "Seed.", "work"),
    Fact("model", "Name, hub id or path of the model.", "model"),
    Fact("layers", "Layers.", "model"),
    Fact("hidden", "Width of the residual stream.", "model"),
    Fact("ffn", "Width of the feed-forward layer.", "model"),
    Fact("heads", "Query heads.", "model"),
    Fact("kv_heads", "Key-value heads.", "model"),
    Fact("head_dim", "Width of a head.", "model"),
    Fact("vocab", "Vocabulary.", "model"),
    Fact("positions", "Learned positions, or longest sequence.", "model"),
    Fact("gated", "The feed-forward layer is gated (SwiGLU).", "model"),
    Fact("tied", "The output head shares the embedding's weights.", "model"),
    Fact("position_kind", "Positions: learned, rope or alibi.", "model"),
    Fact("norm", "Norm: layernorm or rmsnorm.", "model"),
    Fact("biased", "Linear layers have biases.", "model"),
    Fact("qkv_bias", "Query, key and value projections have biases.", "model"),
    Fact("qk_norm", "Norm of queries and keys: head or all.", "model"),
    Fact("rope_theta", "Base of rotary positions.", "model"),
    Fact("norm_eps", "Epsilon of the norms.", "model"),
    Fact("experts", "Experts of a layer.", "model"),
    Fact("top_k", "Experts of a token.", "model"),
    Fact("expert_ffn", "Width of an expert.", "model"),
    Fact("shared_ffn", "Width of the experts that every token uses, together.", "model"),
    Fact("nodes", "Nodes.", "machine"),
    Fact("devices_per_node", "Devices, or processes, per node.", "machine"),
    Fact("devices", "Devices in all.", "machine"),
    Fact("chip", "Kind of device.", "machine"),
    Fact("hours", "Time limit of the job.", "machine"),
    Fact("users", "Requests at a time, at most; with --set, the users of the load.", "serving"),
    Fact("rate", "Requests per second that arrive.", "serving"),
    Fact("prompt", "Prompt tokens of a request.", "serving"),
    Fact("output", "Output tokens of a request.", "serving"),
    Fact("context", "Longest context of one request.", "serving"),
    Fact("batched_tokens", "Tokens of one forward pass, at most.", "serving"),
    Fact("chunked", "One pass computes decode tokens and pieces of prompts together.", "serving"),
    Fact("prefix_caching", "Prefixes of earlier prompts are kept in the cache.", "serving"),
    Fact("draft", "Tokens that speculative decoding proposes per step.", "serving"),
    Fact("adapters", "LoRA adapters that requests choose from.", "serving"),
    Fact("adapter_rank", "Largest rank of the adapters.", "serving"),
    Fact("accept", "Share of proposed tokens that are accepted.", "serving"),
    Fact("kv", "Type of the KV cache.", "serving"),
    Fact("weights", "Format of the weights.", "serving"),
    Fact("memory_share", "Share of the device's memory that the engine uses.", "serving"),
    Fact("replicas", "Copies of the served model.", "serving"),
    Fact("split", "How a model is split over cards: layer, tensor, row or none.", "serving"),
    Fact("shares", "Shares of the cards.", "serving"),
    Fact("gpu_layers", "Layers on cards.", "serving"),
    Fact("expert_layers", "Layers whose experts stay in host memory.", "serving"),
    Fact("attention_dp", "Attention is data-parallel over devices that share the experts.", "layout"),
    Fact("flash", "Flash attention.", "serving"),
)
BY_NAME = {fact.name: fact for fact in FACTS}
ENVIRONMENT = "env:"
"""Prefix of facts that are environment variables: 'env:CUDA_DEVICE_MAX_CONNECTIONS'."""
_LIBRARIES = (
    "CUDA_ NCCL_ TORCH_ PYTORCH_ XLA_ LIBTPU NVTE_ NVSHMEM_ OMP_ HF_ USE_ FORCE_TORCHRUN VLLM_ SGLANG_ OLLAMA_ UCX_ FI_ GLOO_"
)
VARIABLES = tuple(ENVIRONMENT + start for start in _LIBRARIES.split())
"""Starts of the environment variables that programs and libraries read; others are a script's own."""


@dataclass(frozen=True)
class Stated:
    """One fact of a file, with its origin."""

    fact: str
    """A name of FACTS, 'env:NAME', or a name of the program's own that its `meaning` turns into facts."""
    value: Value | None
    """None where it is unknown."""
    how: How = "said"
    span: Span | None = None
    """Where the file says it; where its default or its parts stand, if any."""
    key: str = ""
    """The key in the file's own words: '--tensor-model-parallel-size'."""
    note: str = ""
    """Default of which version, derived from what, or why it is unknown."""

    @property
    def where(self) -> str:
        return str(self.span) if self.span else ""


@dataclass(frozen=True)
class Facts:
    """The facts of one run by name, and the statements that a later one replaced."""

    by_name: Mapping[str, Stated]
    replaced: tuple[Stated, ...] = ()

    @staticmethod
    def of(stated: Iterable[Stated]) -> "Facts":
        """Collect statements; the last one about a fact counts, and the one before it is kept in `replaced`."""
        by_name: dict[str, Stated] = {}
        replaced: list[Stated] = []
        for one in stated:
            before = by_name.get(one.fact)
            if before is not None and before.how == "said" and one.how == "said":
                replaced.append(before)
            by_name[one.fact] = one
        return Facts(by_name, tuple(replaced))

    def __iter__(self) -> Iterator[Stated]:
        return iter(self.by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def get(self, name: str) -> Stated | None:
        return self.by_name.get(name)

    def value(self, name: str) -> Value | None:
        """Return the value of a fact; None where it is unknown or not stated."""
        stated = self.by_name.get(name)
        return stated.value if stated else None

    def whole(self, name: str, default: int = 0) -> int:
        """Return a whole number; `default` where the fact is unknown or not stated."""
        value = self.value(name)
        return int(value) if isinstance(value, int | float) else default

    def says(self, name: str) -> bool:
        """Return whether the file itself says the fact, with a value."""
        stated = self.by_name.get(name)
        return stated is not None and stated.how == "said" and stated.value is not None

    def adding(self, stated: Iterable[Stated]) -> "Facts":
        """Return these facts with others that follow from them, or that take their place."""
        return Facts({**self.by_name, **{one.fact: one for one in stated}}, self.replaced)

    def without(self, *names: str) -> "Facts":
        """Return these facts less those names."""
        return Facts({name: one for name, one in self.by_name.items() if name not in names}, self.replaced)

    def derived(self, name: str, value: Value | None, note: str, *parts: str) -> Stated:
        """Return a fact that follows from others: `parts` are their names, the first of which gives its place in the file."""
        first = next((self.by_name[part] for part in parts if part in self.by_name), None)
        how: How = "unknown" if value is None else "derived"
        return Stated(name, value, how, first.span if first else None, first.key if first else "", note)

    def meaning(self, name: str, value: Value, *parts: str) -> Stated:
        """Return a fact that these parts say together, in the program's own words: as sure as the least sure of them."""
        known = [self.by_name[part] for part in parts if part in self.by_name]
        if not known:
            return Stated(name, value, "default")
        first = known[0]
        how: How = "default" if all(part.how == "default" for part in known) else "said"
        return replace(first, fact=name, value=value, how=how)
