"""The KV cache of a served model, layer by layer, as engines allocate it: keys and values, latents, recurrent states."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TypedDict

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.engines import Runtime
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.gguf.quantiser import BLOCKS
from meshwise.models.model import Model
from meshwise.models.op import Op

_GGUF = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")
SIZES = {**{kind.lower(): BLOCKS[kind] for kind in _GGUF}, "fp8": (1, 1), "int8": (64, 68), "int4": (64, 36)}
"""Elements and bytes of a block of each cache type; integers have a 16-bit scale and offset per 64 elements (MLX), or per head (others)."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer for all sequences."""

    kv: int  # bytes of keys and values, or of latents
    heads: int
    """KV heads that tensor parallelism splits `kv` by; 0 for a latent, which every device of a tensor-parallel group keeps whole."""
    state: int  # bytes of recurrent states
    tokens: int  # tokens kept per sequence; fewer than its context with sliding-window attention

    @property
    def bytes(self) -> int:
        return self.kv + self.state


@dataclass(frozen=True, kw_only=True)
class CacheRequest:
    """The size of a cache to allocate: tokens per sequence, sequences, types."""

    context: int  # tokens of one sequence, prompt plus output
    sequences: int = 1
    key: str = "f16"
    value: str = "f16"
    batch: int | None = None  # tokens per micro-batch; None: the runtime's default
    logits: int | None = None  # sequences whose logits are computed at once; None: the runtime's default


class PassSizes(TypedDict):
    """Fields of CacheRequest that depend on the device."""

    batch: int | None
    logits: int | None


def pass_sizes(runtime: Runtime, chips: Sequence[Chip]) -> PassSizes:
    """Return the tokens and the sequences of the largest pass on these devices, for which an engine keeps memory free."""
    if not chips or not runtime.paged:
        return PassSizes(batch=None, logits=None)
    return PassSizes(batch=runtime.batch_on(chips[0]), logits=runtime.sequences_on(chips[0]) if runtime.samples_all else None)


def cache_type(name: str, runtime: Runtime) -> str:
    """Return the cache type of that name; refuse one that the engine does not have."""
    also = {"fp16": "f16", "float16": "f16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
    kind = also.get(name.lower(), name.lower())
    if kind not in runtime.cache_types:
        known = ", ".join(runtime.cache_types)
        raise UserError(f"{runtime.name} has no KV type {quoted(name)}{nearest(name, runtime.cache_types)}; it has {known}")
    return kind


def round_up(tokens: int, step: int) -> int:
    return ceil(tokens / step) * step


def layer_caches(model: Model, runtime: Runtime, request: CacheRequest) -> tuple[LayerCache, ...]:
    """Return the cache of each layer, for all sequences together."""
    if request.context < 1 or request.sequences < 1:
        raise UserError(f"a cache needs at least one token and one sequence, not {request.context} and {request.sequences}")
    kinds = {name: _block(model, runtime, request, model.blocks[name], times) for name, times in model.times.items()}
    sums = {layer: _sum(kinds[block] for block in layer) for layer in dict.fromkeys(model.layers)}
    return tuple(sums[layer] for layer in model.layers)


def cached_rows(model: Model, runtime: Runtime, request: CacheRequest) -> tuple[LayerCache, ...]:
    """Return the cache of one token in each layer, without padding, and the states of its sequence."""
    single = replace(request, context=1, sequences=1)
    return layer_caches(model, replace(runtime, pad=1), single)


def layer_windows(model: Model, runtime: Runtime) -> tuple[int, ...]:
    """Return the window that limits the cache of each layer; 0 where it keeps all tokens."""
    kept = runtime.keeps_window(model.model_type)
    by_block = {name: max((op.window for op in ops if op.cache), default=0) if kept else 0 for name, ops in model.blocks.items()}
    return tuple(max((by_block[block] for block in layer), default=0) for layer in model.layers)


def _sum(parts: Iterable[LayerCache]) -> LayerCache:
    """Return the cache of a layer from those of its blocks."""
    caches = list(parts)
    return LayerCache(
        sum(part.kv for part in caches), max(part.heads for part in caches), sum(part.state for part in caches),
        max(part.tokens for part in caches),
    )  # fmt: skip


def _block(model: Model, runtime: Runtime, request: CacheRequest, ops: tuple[Op, ...], times: int) -> LayerCache:
    """Return the cache of one block; `times` layers share the counts of its Ops."""
    latent = any(op.name == "attention.kv_down" for op in ops)
    keys = tokens = 0
    for op in ops:
        if op.cache:
            tokens = kept_tokens(op, model.model_type, runtime, request)
            row = _row(op, latent, model, runtime, request)
            keys += row * tokens * request.sequences * op.count // times
    # The last kernel - 1 inputs of a convolution are kept; an Op counts the whole kernel.
    elements = sum(op.state * (op.k - 1) // op.k if op.kind == "conv" else op.state for op in ops)
    heads = model.decoder.kv_heads if keys and not latent else 0
    return LayerCache(keys, heads, elements * runtime.state_bytes * request.sequences, tokens)


def kept_tokens(op: Op, model_type: str, runtime: Runtime, request: CacheRequest) -> int:
    """Return the cells of one sequence in a layer: its context; with sliding-window attention, the window plus one micro-batch. Worked,
    llama.cpp: Gemma 3's window of 1,024 with batches of 512 keeps 1,536 of a context of 32,768."""
    whole = round_up(request.context, runtime.pad)
    if not op.window or not runtime.keeps_window(model_type):
        return whole
    return min(whole, round_up(op.window + (request.batch or runtime.batch), runtime.pad))


def _row(op: Op, latent: bool, model: Model, runtime: Runtime, request: CacheRequest) -> int:
    """Return bytes of one token in one layer. A latent is stored once; other caches are half keys, half values."""
    kinds = [request.key] if latent else [request.key, request.value]
    width = op.cache // len(kinds)
    total = 0
    for kind in kinds:
        block, size = SIZES[cache_type(kind, runtime)]
        piece = width if latent else width // max(model.decoder.kv_heads, 1)
        if piece % block:
            raise UserError(f"{model.name}: a KV type of {kind} needs heads of a multiple of {block} elements; they have {piece}")
        total += width // block * size
    return total
