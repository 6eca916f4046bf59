"""Engines: programs that serve a model. What each can do with several devices (data/engines), and how each allocates memory
(data/runtimes: facts and calibrated sizes)."""

from dataclasses import dataclass, field, replace
from typing import Literal

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Chip, Kind, Source
from meshwise.errors import UserError, nearest, quoted
from meshwise.units import Bytes, Count

Split = Literal["layer", "row", "tensor"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a serving program can do with several devices. Facts of its documentation."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    runtime: str
    """How it allocates memory: a file of data/runtimes."""
    splits: tuple[Split, ...]
    default_format: str
    """The weight format that most people run with it."""
    common_formats: tuple[str, ...]
    """Formats that models are published in for it, the widest first."""
    sources: tuple[Source, ...]
    formats: tuple[str, ...] = ()
    """The only formats that it is planned with; empty: all that it can read."""
    gguf: bool = False
    """Whether it reads GGUF files."""
    kinds: tuple[Kind, ...] = ("gpu", "apple", "cpu")
    """Kinds of chip that it is planned on."""
    server: bool = True
    """Whether it answers requests."""
    hosts: bool = True
    """Whether one copy may span several hosts."""
    shares: bool = False
    """Whether a user can set how much each device gets."""
    offload: bool = False
    """Whether layers may stay in host memory."""
    experts_on_host: bool = False
    """Whether the experts alone may stay in host memory."""
    copies: bool = True
    """Whether several copies may share the devices of a host."""
    stages: bool = True
    """Whether a tensor split may also have pipeline stages."""
    replicates_kv_heads: bool = True
    """Whether devices of a tensor split hold copies of KV heads, where there are fewer heads than devices."""
    max_devices: int = 64
    """Devices of one copy."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """An engine, and where it matters the age of its build. Sizes called hidden count arrays of batch x hidden elements."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    engine: Literal["llama.cpp", "vllm", "transformers"]
    fitted_on: str
    """What the calibrated sizes come from."""
    sources: tuple[Source, ...]

    cache_types: tuple[CacheType, ...]
    pad: int = 256
    """A sequence's cache holds a multiple of so many tokens."""
    windows: tuple[str, ...] = ()
    """The model types whose sliding windows bound their cache; 'all' for every one."""
    files_by_order: bool = False
    """Files of its time were quantised with layers counted in the order of the file (quant.weights, by_file)."""
    state_bytes: int = 4
    """Of an element of a recurrent state."""
    batch: int = 512
    """Tokens computed at once in a long prompt (llama.cpp's n_ubatch, vLLM's max_num_batched_tokens)."""
    flash: bool = True
    """Flash attention, where the user says nothing."""
    gguf: bool = False
    """Reads GGUF files, and splits by layers unless told otherwise."""
    int8_products: bool = False
    """Multiplies in int8 or sums in 16 bits, so that GeForce cards, which halve the rate of 32-bit sums, run at the full one."""
    joined: bool = False
    """Products that read the same input are one: queries, keys and values; gate and up."""
    alone: Count = 1.0
    """Share of a layer's kernels that is left with one user, where the engine has products of its own for a single token, with norms, gates
    and sums inside; 1 where it has none."""

    element: int = 4
    """Bytes of an activation."""
    copies: int = 1
    """Of its inputs, where several devices work on micro-batches one behind the other."""
    mask_bytes: Count = 2.0
    """Per token and key, with flash attention."""
    plain_mask_bytes: Count = 4.0
    plain_masks: Count = 0.0
    """Masks beside the copies, without flash attention."""
    attention_hidden: Count = 4.0
    """Beside the scores, without flash attention."""
    ffn_widths: Count = 3.0
    """Arrays of batch x feed-forward width alive at once."""
    ffn_hidden: Count = 4.0
    logits_hidden: Count = 1.0
    logit_rows: Count = 0.0
    """Tokens whose logits are computed at once; 0 is all of the batch."""
    hop_hidden: Count = 0.0
    """Beside the copies, for what comes from another device."""
    first_hops: Count = 1.0
    """How many such inputs the first of several devices has; every other has one."""
    host_hidden: Count = 1.0
    host_copied: Count = 0.0
    """In host memory, per copy."""

    context: Bytes = 0.0
    """Driver context, libraries and workspaces per device."""
    usable: dict[Kind, Count] = field(default_factory=dict[Kind, Count])
    """Share of a device's memory that a program can have at all, by kind of chip; 1 where it says nothing."""

    def keeps_window(self, model_type: str) -> bool:
        return "all" in self.windows or model_type in self.windows

    def room(self, chip: Chip) -> float:
        """Bytes that weights, cache and buffers can fill on one device."""
        return chip.memory * self.usable.get(chip.kind, 1.0) - self.context


@files.cached
def runtimes() -> dict[str, Runtime]:
    found = files.files("runtimes", ".toml")
    return {key: replace(records.read(Runtime, files.table_of(path), path.name), key=key) for key, path in found.items()}


def find_runtime(name: str) -> Runtime:
    known = runtimes()
    for key, found in known.items():
        if files.squeeze(name) in (files.squeeze(key), files.squeeze(found.name)):
            return found
    raise UserError(f"unknown engine {quoted(name)}{nearest(name, known)}; known: {', '.join(known)}")


@files.cached
def engines() -> dict[str, Engine]:
    """Every engine by its name."""
    found = files.files("engines", ".toml")
    return {key: replace(records.read(Engine, files.table_of(path), path.name), key=key) for key, path in found.items()}


def find_engine(name: str) -> Engine:
    known = engines()
    for key, found in known.items():
        if files.squeeze(name).replace(".", "") == files.squeeze(key).replace(".", ""):
            return found
    raise UserError(f"unknown engine {quoted(name)}{nearest(name, known)}; known: {', '.join(known)}")
