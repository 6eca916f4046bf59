"""The tensors that a model is stored as: names and shapes as llama.cpp writes them, from the Ops of a Model."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwise.errors import UserError
from meshwise.models.families.blocks import EMBEDDING, HEAD
from meshwise.models.model import Model
from meshwise.models.op import Op, Shard

INPUT = -1
"""The layer of what stands before the first: the embedding. What stands behind the last has the number of layers."""

PART = 5 * 10**9
"""Bytes of a safetensors file in which most models are published."""

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "ministral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "falcon": "falcon",
    "bloom": "bloom",
    "olmo2": "olmo2",
    "starcoder2": "starcoder2",
    "mpt": "mpt",
    "granite": "granite",
    "smollm3": "smollm3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "llama4_text": "llama4",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "mamba2": "mamba2",
    "bamba": "granitehybrid",
    "granitemoehybrid": "granitehybrid",
    "qwen3_next": "qwen3next",
}
"""HF's model_type, and the architecture that llama.cpp's converter writes for it."""

FUSED = frozenset({"phi3", "gpt2", "gptneox", "falcon", "bloom", "mpt"})
"""Architectures whose queries, keys and values are one tensor."""
FUSED_GATE = frozenset({"phi3"})

NORMS = {
    "gemma2": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
    "gemma3": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
    "gpt-oss": ("attn_norm", "post_attention_norm"),
    "qwen3next": ("attn_norm", "post_attention_norm"),
    "olmo2": ("post_attention_norm", "post_ffw_norm"),
    "falcon": ("attn_norm", "attn_norm_2"),
}
PLAIN_NORMS = ("attn_norm", "ffn_norm", "norm_3", "norm_4")

NAMES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "embedding_norm": "token_embd_norm",
    "final_norm": "output_norm",
    "head": "output",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.qkv": "attn_qkv",
    "attention.out": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.sinks": "attn_sinks",
    "attention.q_down": "attn_q_a",
    "attention.q_up": "attn_q_b",
    "attention.kv_down": "attn_kv_a_mqa",
    "attention.kv_norm": "attn_kv_a_norm",
    "attention.kv_up": "attn_kv_b",
    "ffw.gate": "ffn_gate",
    "ffw.up": "ffn_up",
    "ffw.down": "ffn_down",
    "router": "ffn_gate_inp",
    "router.shared": "ffn_gate_inp_shexp",
    "experts.gate": "ffn_gate_exps",
    "experts.up": "ffn_up_exps",
    "experts.down": "ffn_down_exps",
    "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp",
    "shared.down": "ffn_down_shexp",
    "ssm.in": "ssm_in",
    "ssm.conv": "ssm_conv1d",
    "ssm.norm": "ssm_norm",
    "ssm.out": "ssm_out",
    "delta.beta_decay": "ssm_ba",
    "delta.conv": "ssm_conv1d",
    "delta.norm": "ssm_norm",
    "delta.out": "ssm_out",
}
"""What llama.cpp calls an Op's weights, without the layer; an Op that it does not know keeps its own name."""

VECTORS = {"ssm.dt_a_d": ("ssm_dt.bias", "ssm_a", "ssm_d"), "delta.dt_a": ("ssm_dt.bias", "ssm_a")}
"""Ops that stand for several small tensors of the same size."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor before its type is chosen. A row is what one output reads; its `columns` lie side by side in memory."""

    name: str
    rows: int
    columns: int
    copies: int = 1
    """Experts, or heads that have a matrix each."""
    layer: int = INPUT
    shard: Shard = ""
    share: float = 1.0
    """Part of it that one token reads: 1 / vocabulary of the embedding, top_k / experts of the experts."""
    product: bool = False
    """Multiplies activations inside a layer: what engines other than llama.cpp quantise."""
    stored: bool = True
    """False for a head that is the embedding's own table."""

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.copies

    @property
    def expert(self) -> bool:
        return "_exps." in self.name


def architecture(model: Model) -> str:
    """llama.cpp's name for the layers of this model."""
    found = ARCHITECTURES.get(model.model_type)
    if found is None:
        raise UserError(f"llama.cpp does not run {model.name} (model_type '{model.model_type}'), so no GGUF type applies to it")
    return found


@lru_cache(maxsize=16)
def slots(model: Model, gguf: bool) -> tuple[Slot, ...]:
    """Every tensor, layer by layer. `gguf`: fused and split as llama.cpp's converter does; else as the layers compute."""
    arch = architecture(model) if gguf else ""
    times = Counter(name for layer in model.layers for name in layer)
    blocks = {name: _block(model, arch, name, times[name]) for name in model.blocks}
    found = list(blocks[EMBEDDING])
    for i, layer in enumerate(model.layers):
        for block in layer:
            # Not replace(): it takes ten times as long, and a plan that tries every format feels it.
            found += [
                Slot(f"blk.{i}.{s.name}", s.rows, s.columns, s.copies, i, s.shard, s.share, s.product, s.stored)
                for s in blocks[block]
            ]
    found += [replace(slot, layer=len(model.layers)) for slot in blocks[HEAD]]
    return tuple(found)


def file_order(slots: Iterable[Slot]) -> list[Slot]:
    """The order of a converted file of 2023 and 2024: the hub's parts of 5 GB in bf16, and in each the layers by the text of their number.

    So layer 10 comes before layer 9 where both are in one part. Quantisers before the end of 2024 counted layers in this order.
    """
    parts: list[list[Slot]] = [[]]
    filled = 0
    for slot in slots:
        filled += 2 * slot.elements
        if filled > PART and parts[-1]:
            parts.append([])
            filled = 2 * slot.elements
        parts[-1].append(slot)
    return [slot for part in parts for slot in sorted(part, key=lambda slot: f"{slot.layer}.")]


def _block(model: Model, arch: str, block: str, times: int) -> list[Slot]:
    """The tensors of one block of one layer, still without the layer's number."""
    ops = [replace(op, count=op.count // times) if times else op for op in model.blocks[block]]
    names = {op.name for op in ops}
    if arch:
        ops = _as_converted(model, arch, ops)
    slots: list[Slot] = []
    for op in ops:
        if op.name == "layer_norm":
            for name in NORMS.get(arch, PLAIN_NORMS)[: op.count]:
                slots += _gains(name, op)
        elif op.name in VECTORS:
            parts = VECTORS[op.name]
            slots += [Slot(name, 1, op.n // len(parts), shard=op.shard) for name in parts]
        elif op.name == "attention.q_norm" and "attention.q_down" in names:
            slots += _gains("attn_q_a_norm", op)
        elif op.name == "attention.k_b":  # the two halves of what MLA's latent is multiplied with, head by head
            slots.append(Slot("attn_k_b.weight", op.n, op.k, op.count, shard="heads", product=True))
        elif op.name == "attention.v_b":
            slots.append(Slot("attn_v_b.weight", op.n, op.k, op.count, shard="heads", product=True))
        elif op.params or op.name == "head":
            slots += _weight(NAMES.get(op.name, op.name), op)
    return slots


def _gains(name: str, op: Op) -> list[Slot]:
    """A norm's gain, and its bias where it has one."""
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
    if op.kind == "scan":  # weights that a recurrence starts from (TTT), one row per head
        return [Slot(f"{name}.weight", 1, op.params, shard=op.shard)]
    share = op.m if op.expert else 1.0
    product = op.kind == "matmul" and op.part not in ("vocabulary", "router")
    stored = op.params > 0
    weight = Slot(f"{name}.weight", op.n, op.k, op.count, shard=op.shard, share=share, product=product, stored=stored)
    if op.params <= op.n * op.k:
        return [weight]
    # What is cut by input features adds its bias once, after the sum, so every part keeps all of it.
    shard = "" if op.shard == "row" else op.shard
    return [weight, Slot(f"{name}.bias", op.count, op.n, shard=shard, share=share)]


def _as_converted(model: Model, arch: str, ops: list[Op]) -> list[Op]:
    """The Ops with what the converter joins joined, and what it cuts cut."""
    if arch in FUSED:
        ops = _joined(ops, ("attention.q", "attention.k", "attention.v"), "attention.qkv")
    if arch in FUSED_GATE:
        ops = _joined(ops, ("ffw.gate", "ffw.up"), "ffw.up")
    return [part for op in ops for part in _cut(model, op, ops)]


def _joined(ops: Iterable[Op], parts: tuple[str, ...], name: str) -> list[Op]:
    """The first of `parts` made as wide as all of them; the others gone."""
    those = [op for op in ops if op.name in parts]
    rest = [op for op in ops if op.name not in parts]
    if not those:
        return rest
    whole = replace(those[0], name=name, n=sum(op.n for op in those), params=sum(op.params for op in those))
    return [whole, *rest]


def _cut(model: Model, op: Op, ops: list[Op]) -> list[Op]:
    if op.name == "attention.kv_up":
        (scores,) = (other for other in ops if other.kind == "attention")
        heads, rank, value = model.decoder.heads, op.k, scores.n
        nope = op.n // heads - value
        key = replace(op, name="attention.k_b", n=rank, k=nope, count=heads)
        return [key, replace(op, name="attention.v_b", n=value, k=rank, count=heads)]
    if op.name == "delta.qkvz":
        (conv,) = (other for other in ops if other.name == "delta.conv")
        mixed = replace(op, name="attention.qkv", n=conv.n, params=conv.n * op.k)
        return [mixed, replace(op, name="attn_gate", n=op.n - conv.n, params=(op.n - conv.n) * op.k)]
    return [op]
