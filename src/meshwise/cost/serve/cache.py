"""The cache of a model that is served: keys, values, latents and states, layer by layer, as the engines allocate them."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from meshwise.catalogue.engines import Runtime
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.gguf.quantiser import BLOCKS
from meshwise.models.model import Model
from meshwise.models.op import Op

SIZES = {kind.lower(): BLOCKS[kind] for kind in ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")}
SIZES["fp8"] = (1, 1)
"""Elements and bytes of a block of each cache type."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps for all sequences."""

    keys: int
    """Bytes of keys and values, or of latents."""
    heads: int
    """Key heads that they are cut by; 0 for a latent, which every part of a tensor-parallel group keeps whole."""
    state: int
    """Bytes of recurrent states."""
    tokens: int
    """Of a sequence that are kept; fewer than its context where a window bounds them."""

    @property
    def bytes(self) -> int:
        return self.keys + self.state


@dataclass(frozen=True, kw_only=True)
class Held:
    """The question: how long, how many, in which type."""

    context: int
    """Tokens of one sequence, prompt and output together."""
    sequences: int = 1
    key: str = "f16"
    value: str = "f16"
    batch: int | None = None
    """Tokens computed at once; the runtime's own where it is not said."""


def cache_type(name: str, runtime: Runtime) -> str:
    """The type of that name, if the engine has it."""
    found = {"fp16": "f16", "float16": "f16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}.get(
        name.lower(), name.lower()
    )
    if found not in runtime.cache_types:
        known = ", ".join(runtime.cache_types)
        raise UserError(f"{runtime.name} has no KV type {quoted(name)}{nearest(name, runtime.cache_types)}; it has {known}")
    return found


def element_bytes(name: str) -> float:
    """Bytes per element, scales included: q8_0 is 34 / 32."""
    block, size = SIZES[name]
    return size / block


def padded(tokens: int, step: int) -> int:
    return ceil(tokens / step) * step


def layer_caches(model: Model, runtime: Runtime, held: Held) -> tuple[LayerCache, ...]:
    """The cache of each layer, for all sequences together."""
    if held.context < 1 or held.sequences < 1:
        raise UserError(f"a cache needs at least one token and one sequence, not {held.context} and {held.sequences}")
    times = {name: sum(layer.count(name) for layer in model.layers) for name in model.blocks}
    kinds = {name: _block(model, runtime, held, ops, times[name]) for name, ops in model.blocks.items() if times[name]}
    return tuple(_sum(kinds[block] for block in layer) for layer in model.layers)


def _sum(parts: Iterable[LayerCache]) -> LayerCache:
    found = list(parts)
    return LayerCache(
        sum(part.keys for part in found),
        max(part.heads for part in found),
        sum(part.state for part in found),
        max(part.tokens for part in found),
    )


def _block(model: Model, runtime: Runtime, held: Held, ops: tuple[Op, ...], times: int) -> LayerCache:
    latent = any(op.name == "attention.kv_down" for op in ops)
    keys = tokens = 0
    for op in ops:
        if op.cache:
            tokens = kept_tokens(op, model.model_type, runtime, held)
            row = _row(op, latent, model, runtime, held)
            keys += row * tokens * held.sequences * op.count // times
    # The last kernel - 1 inputs of a convolution are kept; an Op counts the whole kernel.
    elements = sum(op.state * (op.k - 1) // op.k if op.kind == "conv" else op.state for op in ops)
    heads = model.decoder.kv_heads if keys and not latent else 0
    return LayerCache(keys, heads, elements * runtime.state_bytes * held.sequences, tokens)


def kept_tokens(op: Op, model_type: str, runtime: Runtime, held: Held) -> int:
    """Cells of one sequence in a layer: its context; or, behind a window, the window and the batch that is being computed.

    Worked, llama.cpp: Gemma 3's window of 1,024 with batches of 512 keeps 1,536 of a context of 32,768.
    """
    whole = padded(held.context, runtime.pad)
    if not op.window or not runtime.keeps_window(model_type):
        return whole
    return min(whole, padded(op.window + (held.batch or runtime.batch), runtime.pad))


def _row(op: Op, latent: bool, model: Model, runtime: Runtime, held: Held) -> int:
    """Bytes of one token in one layer. A latent is kept once; other caches are half keys, half values."""
    kinds = [held.key] if latent else [held.key, held.value]
    width = op.cache // len(kinds)
    found = 0
    for kind in kinds:
        block, size = SIZES[cache_type(kind, runtime)]
        piece = width if latent else width // max(model.decoder.kv_heads, 1)
        if piece % block:
            raise UserError(f"{model.name}: a KV type of {kind} needs heads of a multiple of {block} elements; they have {piece}")
        found += width // block * size
    return found
