"""Engines: programs that serve a model, with their abilities on several devices (data/engines) and their memory allocation
(data/runtimes: facts and calibrated sizes)."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Chip, Kind, Source
from meshwise.errors import UserError, quoted, unknown
from meshwise.units import Bytes, Count

Split = Literal["layer", "row", "tensor"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "fp8", "int8", "int4"]

VERSION = re.compile(r"([a-zA-Z][\w.-]*?)[\s@=:-]*=*[\s-]*v?b?\d[\w.+-]*")
"""A name with a version: vllm==0.9, sglang-0.5.1, llama.cpp b4000."""
LARGE_CHIP_BYTES = 70 * 2.0**30  # memory from which vLLM and SGLang use larger defaults


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The abilities of a serving program on several devices, as facts from its documentation."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    runtime: str
    """The file in data/runtimes that describes its memory allocation."""
    lean: tuple[str, ...] = ()
    """Model types that it runs with kernels of its own; others run by `other_runtime`. Empty: all."""
    other_runtime: str = ""
    splits: tuple[Split, ...]
    default_format: str
    """The weight format that most people use with it."""
    common_formats: tuple[str, ...]
    """Formats in which models are published for it, widest first."""
    sources: tuple[Source, ...]
    formats: tuple[str, ...] = ()
    """The only formats that are planned for it; empty: all that it can read."""
    gguf: bool = False
    """Whether it reads GGUF files."""
    kinds: tuple[Kind, ...] = ("gpu", "apple", "cpu")
    """Kinds of chip for which it is planned."""
    server: bool = True
    """Whether it serves requests over HTTP."""
    hosts: bool = True
    """Whether one replica may span several hosts."""
    shares: bool = False
    """Whether a user can set each device's share of the model."""
    offload: bool = False
    """Whether layers may stay in host memory."""
    experts_on_host: bool = False
    """Whether only the experts may stay in host memory."""
    copies: bool = True
    """Whether several replicas may share the devices of a host."""
    stages: bool = True
    """Whether tensor parallelism may be combined with pipeline stages."""
    replicates_kv_heads: bool = True
    """Whether tensor-parallel devices hold copies of KV heads if there are fewer heads than devices."""
    max_devices: int = 64
    """The most devices of one replica."""
    vendors: tuple[str, ...] = ()
    """Vendors of the chips it runs on; empty: all."""
    expert_parallel: bool = False
    """Whether whole experts may lie on single devices of a tensor-parallel group."""
    attention_dp: bool = False
    """Whether devices may compute attention for requests of their own, while they share the experts."""
    disaggregates: bool = False
    """Whether prompts and decoding may run on separate replicas."""
    drafts: bool = False
    """Whether it can decode speculatively."""
    adapters: bool = False
    """Whether it can serve LoRA adapters beside the model."""
    words: tuple[str, ...] = ()
    """Other words for it in tables of measurements."""
    converts_to_fp8: bool = True
    """Whether it converts 16-bit weights to fp8 when it loads them."""
    native_formats: tuple[str, ...] = ()
    """Formats that it does not run on chips without units for them."""
    install: str = ""
    """The command that installs its server, where one command with --host and --port starts it."""
    by_hand: str = ""
    """Why `meshwise run` does not start its server: 'runs as a service'."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The memory allocation of an engine, or of one build of it. Sizes called `hidden` count arrays of batch x hidden elements."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    engine: str  # the engine's name
    releases: tuple[str, ...] = ()  # beginnings of the versions that an earlier build stands for: '0.5', '0.6'
    fitted_on: str  # source of the calibrated sizes
    sources: tuple[Source, ...]

    cache_types: tuple[CacheType, ...]
    pad: int = 256  # the KV cache of a sequence is padded to a multiple of this many tokens
    windows: tuple[str, ...] = ()  # model types whose sliding windows limit their KV cache; 'all' for every type
    files_by_order: bool = False
    """Files of this build's time were quantised with layers counted in file order (formats.weights, by_file)."""
    state_bytes: int = 4  # bytes per element of a recurrent state
    batch: int = 512  # tokens of a long prompt that are computed at once (llama.cpp's n_ubatch, vLLM's max_num_batched_tokens)
    graph_tokens: int = 0  # tokens up to which CUDA graphs launch passes with prompts too (vLLM's largest captured size); 0: none
    scheduled: int = 0
    """Tokens that the scheduler hands over at once, if they are computed in several micro-batches (llama.cpp's n_batch); 0: `batch`."""
    cache_share: Count = 1.0  # fraction of the memory left by weights and buffers that the KV cache takes
    sequences: int = 256  # the most requests that are computed at once (vLLM's max_num_seqs, TensorRT-LLM's max_batch_size)
    large_batch: int = 0  # `batch` on devices of 70 GiB and more, where the engine's default differs; 0: the same
    large_sequences: int = 0  # `sequences` on devices of 70 GiB and more; 0: the same
    continuous: bool = True  # whether a request joins the others as soon as there is room, and leaves when it is done
    chunked: bool = True
    """Whether one pass computes decode tokens and parts of prompts together; otherwise passes of prompts interrupt decoding."""
    small_on: tuple[str, ...] = ()  # architectures on which the smaller defaults are used whatever the memory (vLLM: A100)
    poll_passes: int = 1  # passes between two looks for new requests (SGLang's --scheduler-recv-interval)
    ahead: int = (
        0  # passes that are scheduled before the one that runs has ended, so that requests join later (vLLM's --async-scheduling)
    )
    fused_reduce: bool = False
    """Whether the kernel of an all-reduce also adds the residual, normalises and rounds what the next product reads."""
    paged: bool = False
    """Whether a request occupies the blocks of the tokens it has; otherwise its whole context is allocated at the start."""
    grouped_pages: bool = False
    """Whether layers of all kinds take equal pages from one pool (vLLM), so that windows and states fill pages of full attention."""
    samples_all: bool = False  # whether memory is kept for the logits of as many requests as can be computed at once
    reserves: bool = False
    """Whether a paged engine admits a request only if its whole output fits too, so that none is ever preempted (TensorRT-LLM)."""
    repeats_keys: bool = False
    """Whether attention copies keys and values for every query head that shares them before it reads them."""
    per_head_on: tuple[str, ...] = ()  # backends whose flash kernels read shared keys and values again for every query head
    per_head_narrow: tuple[str, ...] = ()  # vendors of the chips on which they do so where the cache is quantised
    per_head: bool = False  # whether the build is one of these
    prefixes: bool = False  # whether it finds prefixes of earlier prompts in its cache
    launches: int = 56  # kernels of a layer in a prompt's micro-batch
    queue: int = 1024
    """Kernels that the host can queue on a device before it waits for the device. A stage with more of them holds up the host, which then
    feeds the next device late, so that micro-batches do not overlap (70B in Q4_K_M on 2 and 4 RTX 4090)."""
    flash: bool = True  # whether flash attention is on by default
    gguf: bool = False  # reads GGUF files, and splits by layers by default
    int8_products: bool = False
    """Multiplies in int8 or accumulates in 16 bits, so that GeForce cards, which halve the rate of 32-bit sums, run at full rate."""
    joined: bool = False  # products that read the same input are fused: queries, keys and values; gate and up
    alone: Count = 1.0
    """Fraction of a layer's kernels that remain with one sequence, if the engine has kernels for a single token that include norms, gates
    and sums; 1 if it has none."""

    element: int = 4  # bytes of an activation
    copies: int = 1  # copies of its inputs, if several devices work on micro-batches as a pipeline
    mask_bytes: Count = 2.0  # per token and key, with flash attention
    plain_mask_bytes: Count = 4.0  # per token and key, without flash attention
    plain_masks: Count = 0.0  # masks in addition to the copies, without flash attention
    attention_hidden: Count = 4.0  # in addition to the scores, without flash attention
    ffn_widths: Count = 3.0  # arrays of batch x feed-forward width alive at once
    ffn_hidden: Count = 4.0
    logits_hidden: Count = 1.0
    logit_rows: Count = 0.0  # tokens whose logits are computed at once; 0: the whole batch
    logit_copies: Count = 1.0  # arrays of logits in float32 that are alive at once, where tokens are sampled on the device
    token_reserve: Bytes = 0.0
    """Kept free for every token of the largest pass, whatever the model, where the engine does not measure activations (SGLang)."""
    communication: Bytes = 0.0  # buffers of collectives on each device of a tensor-parallel group
    hop_hidden: Count = 0.0  # for inputs from another device, in addition to the copies
    first_hops: Count = 1.0  # number of such inputs on the first of several devices; every other has one
    host_hidden: Count = 1.0
    host_copied: Count = 0.0  # in host memory, per copy

    context: Bytes = 0.0  # CUDA context, libraries and workspaces per device
    reported: Count = 1.0
    """Share of a device's memory that its driver reports as the total, of which `usable` is a share: 79.11 of an H100's 80 GiB."""
    usable: dict[Kind, Count] = field(default_factory=dict[Kind, Count])
    """Fraction of a device's memory that a program can allocate, by kind of chip; 1 for kinds that are not listed."""

    def keeps_window(self, model_type: str) -> bool:
        """Return whether sliding windows limit the KV cache of this model type."""
        return "all" in self.windows or model_type in self.windows

    def batch_on(self, chip: Chip) -> int:
        """Return the tokens of a pass on this chip."""
        return self.large_batch if self.large_batch and self._large(chip) else self.batch

    def tokens_on(self, chip: Chip) -> int:
        """Return the most tokens that the scheduler hands over at once on this chip."""
        return self.scheduled or self.batch_on(chip)

    def sequences_on(self, chip: Chip) -> int:
        """Return the most requests of a pass on this chip."""
        return self.large_sequences if self.large_sequences and self._large(chip) else self.sequences

    def _large(self, chip: Chip) -> bool:
        return chip.memory >= LARGE_CHIP_BYTES and chip.architecture not in self.small_on

    def room(self, chip: Chip) -> float:
        """Return the bytes on one device that weights, KV cache and buffers can fill."""
        return chip.memory * self.reported * self.usable.get(chip.kind, 1.0) - self.context


Entry = TypeVar("Entry", Engine, Runtime)


@files.cached
def runtimes() -> dict[str, Runtime]:
    """Return the memory allocation of every engine and build by name."""
    return _read(Runtime, "runtimes")


@files.cached
def engines() -> dict[str, Engine]:
    """Return every engine by name."""
    return _read(Engine, "engines")


def runtime_of(engine: Engine, model_type: str) -> Runtime:
    """Return how an engine runs a model of this type."""
    plain = engine.lean and model_type not in engine.lean
    return find_runtime(engine.other_runtime if plain else engine.runtime)


def find_runtime(name: str) -> Runtime:
    """Return the memory allocation of an engine or of one build; case and punctuation do not count."""
    return _find(runtimes(), name)


def builds_of(engine: str) -> dict[str, Runtime]:
    """Return the earlier builds of an engine by the month of each ('2024-05'), the oldest first."""
    dated = {key.removeprefix(f"{engine}-"): runtime for key, runtime in runtimes().items() if key.startswith(f"{engine}-20")}
    return dict(sorted(dated.items()))


def find_engine(name: str) -> Engine:
    """Return the engine with that name; case and punctuation do not count. UserError for a version: engines are planned as they are now."""
    versioned = VERSION.fullmatch(name.strip())
    if versioned and files.squeeze(versioned[1]) in map(files.squeeze, engines()) and not _known(engines(), name):
        raise UserError(f"unknown version {quoted(name)}: plans are for the current version only; write {versioned[1]}")
    return _find(engines(), name)


def _read(cls: type[Entry], kind: str) -> dict[str, Entry]:
    paths = files.files(kind, ".toml")
    return {key: replace(records.read(cls, files.table_of(path), path.name), key=key) for key, path in paths.items()}


def _find(known: dict[str, Entry], name: str) -> Entry:
    """Return the entry whose key or name is `name`; case, punctuation and dots do not count."""
    found = _known(known, name)
    if found is None:
        raise unknown("engine", name, known)
    return found


def _known(known: dict[str, Entry], name: str) -> Entry | None:
    plain = files.squeeze(name).replace(".", "")
    names = {key: (files.squeeze(word).replace(".", "") for word in (key, entry.name)) for key, entry in known.items()}
    return next((known[key] for key, words in names.items() if plain in words), None)
