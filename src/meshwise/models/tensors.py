"""Tensors: the names and shapes in which a model is stored, as llama.cpp writes them, derived from the Ops of a Model."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from meshwise.errors import UserError
from meshwise.models.architecture import Architecture, TensorNames
from meshwise.models.families.blocks import EMBEDDING, HEAD, TENSOR_NAMES
from meshwise.models.model import Model, family_of
from meshwise.models.op import Op, Shard

EMBEDDING_LAYER = -1  # the layer number of the embedding. The head has the number after the last layer.

SHARD_BYTES = 5 * 10**9  # bytes of a safetensors file in which most models are published

NO_CONVERSION = Architecture(name="", model_types=())  # no conversion: tensors as the layers compute them


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor before its type is chosen. A row holds the weights of one output; its `columns` are contiguous in memory."""

    name: str
    rows: int
    columns: int
    copies: int = 1  # experts, or heads with one matrix each
    layer: int = EMBEDDING_LAYER
    shard: Shard = ""
    share: float = 1.0  # fraction of it that one token reads: 1 / vocabulary for the embedding, top_k / experts for the experts
    product: bool = False  # multiplies activations inside a layer. Engines other than llama.cpp quantise only these.
    stored: bool = True  # false for a head that is tied to the embedding

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.copies

    @property
    def expert(self) -> bool:
        """Whether a token reads only those of its copies that it is routed to; scales of all experts in one row are read whole."""
        return "_exps." in self.name and self.share < 1


def architecture(model: Model) -> Architecture:
    """Return how llama.cpp stores this model; refuse a model that llama.cpp does not run."""
    stored_as = stored_by_llamacpp(model.model_type)
    if stored_as is None:
        raise UserError(f"llama.cpp does not run {model.name} (model_type '{model.model_type}'), so no GGUF type applies to it")
    if stored_as.expert_name and any(op.expert for op in model.ops):
        return replace(stored_as, name=stored_as.expert_name)
    return stored_as


@cache
def stored_by_llamacpp(model_type: str) -> Architecture | None:
    """Return how llama.cpp stores models of a type; None where it does not run them."""
    module = family_of(model_type)
    if hasattr(module, "stored_as"):
        return module.stored_as(model_type)
    known: tuple[Architecture, ...] = getattr(module, "gguf", ())
    return next((stored_as for stored_as in known if model_type in stored_as.model_types), None)


@cache
def _tensor_names(model_type: str) -> TensorNames:
    return {**TENSOR_NAMES, **getattr(family_of(model_type), "tensor_names", {})}


@lru_cache(maxsize=16)
def slots(model: Model, gguf: bool) -> tuple[Slot, ...]:
    """Return every tensor, layer by layer. `gguf`: fused and split as by llama.cpp's converter; else as the layers compute."""
    arch = architecture(model) if gguf else None
    times = Counter(name for layer in model.layers for name in layer)
    blocks = {name: _block(model, arch, name, times[name]) for name in model.blocks}
    listed = list(blocks[EMBEDDING])
    for i, layer in enumerate(model.layers):
        for block in layer:
            # Not replace(): it takes ten times as long, which shows in a plan that tries every format.
            listed += [
                Slot(f"blk.{i}.{s.name}", s.rows, s.columns, s.copies, i, s.shard, s.share, s.product, s.stored)
                for s in blocks[block]
            ]
    listed += [replace(slot, layer=len(model.layers)) for slot in blocks[HEAD]]
    return tuple(listed)


def file_order(slots: Iterable[Slot]) -> list[Slot]:
    """Sort tensors as in a file converted in 2023 or 2024: by the hub's 5 GB parts in bf16, and in each by the layer number as text.
    Layer 10 therefore precedes layer 9 where both are in one part. Quantisers before the end of 2024 counted layers in this order."""
    parts: list[list[Slot]] = [[]]
    filled = 0
    for slot in slots:
        filled += 2 * slot.elements
        if filled > SHARD_BYTES and parts[-1]:
            parts.append([])
            filled = 2 * slot.elements
        parts[-1].append(slot)
    return [slot for part in parts for slot in sorted(part, key=lambda slot: f"{slot.layer}.")]


def _block(model: Model, arch: Architecture | None, block: str, times: int) -> list[Slot]:
    """Return the tensors of one block of one layer, not yet prefixed with the layer's number."""
    ops = [replace(op, count=op.count // times) if times else op for op in model.blocks[block]]
    if arch:
        ops = _as_converted(arch, ops)
    names = {**_tensor_names(model.model_type), **(arch.names if arch else {})}
    norms = (arch or NO_CONVERSION).norms
    slots: list[Slot] = []
    for op in ops:
        if op.name == "layer_norm":
            for name in norms[: op.count]:
                slots += _gains(name, op)
            continue
        name = names.get(op.name, op.name)
        if isinstance(name, tuple):
            slots += [Slot(tensor, 1, op.n // len(name), shard=op.shard) for tensor in name]
        elif op.params or op.name == "head":
            slots += _weight(name, op)
    return slots


def _gains(name: str, op: Op) -> list[Slot]:
    """Return a norm's gain, and its bias where it has one."""
    biased = op.params == 2 * op.n
    gain = Slot(f"{name}.weight", 1, op.params // (1 + biased))
    return [gain, replace(gain, name=f"{name}.bias")] if biased else [gain]


def _weight(name: str, op: Op) -> list[Slot]:
    if op.kind == "norm":
        return _gains(name, op)
    if op.kind == "vector":
        return [Slot(f"{name}.weight", 1, op.params, shard=op.shard)]
    if op.kind == "lookup":
        return [Slot(f"{name}.weight", op.n, op.k, shard=op.shard, share=1 / op.n)]
    if op.kind == "scan":  # initial weights of a recurrence (TTT), one row per head
        return [Slot(f"{name}.weight", 1, op.params, shard=op.shard)]
    share = op.m if op.expert else 1.0
    product = op.kind == "matmul" and op.part not in ("vocabulary", "router")
    stored = op.params > 0
    weight = Slot(f"{name}.weight", op.n, op.k, op.count, shard=op.shard, share=share, product=product, stored=stored)
    if op.params <= op.n * op.k:
        return [weight]
    # A product split by input features adds its bias once, after the sum, so every shard keeps the whole bias.
    shard = "" if op.shard == "row" else op.shard
    return [weight, Slot(f"{name}.bias", op.count, op.n, shard=shard, share=share)]


def _as_converted(arch: Architecture, ops: list[Op]) -> list[Op]:
    """Fuse and split Ops as llama.cpp's converter does."""
    if arch.fused_qkv:
        ops = _fused(ops, ("attention.q", "attention.k", "attention.v"), "attention.qkv")
    if arch.fused_gate:
        ops = _fused(ops, ("ffw.gate", "ffw.up"), "ffw.up")
    if arch.fused_experts:
        ops = _fused(ops, ("experts.gate", "experts.up"), "experts.gate_up")
    return [part for op in ops for part in arch.split(op, ops)]


def _fused(ops: Iterable[Op], parts: tuple[str, ...], name: str) -> list[Op]:
    """Replace the Ops named in `parts` by one that is as wide as all of them."""
    fused = [op for op in ops if op.name in parts]
    rest = [op for op in ops if op.name not in parts]
    if not fused:
        return rest
    whole = replace(fused[0], name=name, n=sum(op.n for op in fused), params=sum(op.params for op in fused))
    return [whole, *rest]
