"""A GGUF header as the keys of a config.json, and the exact list of its tensors. The weights themselves are not read."""

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from meshwise.errors import UserError, nearest, quoted
from meshwise.models.config import LARGEST
from meshwise.models.model import Model, Tensor, build

MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gptneox": "gpt_neox",
    "falcon": "falcon",
    "bloom": "bloom",
    "olmo2": "olmo2",
    "starcoder2": "starcoder2",
    "mpt": "mpt",
    "granite": "granite",
    "smollm3": "smollm3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "llama4": "llama4_text",
    "deepseek2": "deepseek_v3",
    "mamba2": "mamba2",
}
"""llama.cpp's architecture names, and the HF model_type with the same layers."""

KEYS = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "context_length": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_shared_count": ("n_shared_experts",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "interleave_moe_layer_step": ("interleave_moe_layer_step",),
    "rope.dimension_count": ("qk_rope_head_dim",),
    "ssm.conv_kernel": ("conv_kernel",),
    "ssm.state_size": ("state_size",),
    "ssm.time_step_rank": ("num_heads",),
    "ssm.group_count": ("n_groups",),
}

_ROPE_TABLES = re.compile(r"rope_(freqs|factors_\w+)\.weight")


def read(path: Path) -> Model:
    """The model of a .gguf file; of all its parts where it is split."""
    fields, tensors = _parse(path)
    for part in _other_parts(path, fields):
        more, others = _parse(part)
        # The metadata is in the first part and the embedding in any of them, whichever part was named.
        fields = more | fields | {"shapes": more["shapes"] | fields["shapes"]}
        tensors += others
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        hint = nearest(str(architecture), MODEL_TYPES) or f"; known: {', '.join(MODEL_TYPES)}"
        raise UserError(f"{path.name}: no family reads the GGUF architecture {quoted(architecture)}{hint}")
    # Tables of rotary frequencies are stored as tensors, but are computed, not learnt.
    stored = tuple(tensor for tensor in tensors if not _ROPE_TABLES.fullmatch(tensor.name))
    model = replace(build(_config(architecture, fields, stored, path.name), path.name, str(path)), tensors=stored)
    elements = sum(tensor.elements for tensor in stored)
    if elements == model.params:
        return model
    note = f"the file stores {elements:,} elements, its metadata describes {model.params:,} parameters"
    return replace(model, notes=(*model.notes, note))


def _parse(path: Path) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """Metadata and tensors of one file."""
    if not os.path.isfile(path):
        raise UserError(f"cannot read {quoted(str(path), 200)}: no such file")
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return _Header(data).read()
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {error.strerror}") from None
    except struct.error:
        raise UserError(f"{path.name}: not a readable GGUF file: it ends before its header does") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{path.name}: not a readable GGUF file: {error}") from None


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class _Header:
    """What stands before the weights, in its order (ggml's docs/gguf.md).

    The reader of the gguf package makes several arrays of every token and merge, 14 s for the vocabulary of Llama 3 against
    0.6 s here, and it does not end where a damaged file claims 2^40 of them.
    """

    def __init__(self, data: mmap) -> None:
        self.data = data
        self.at = 0
        self.order = "<"

    def read(self) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        self.at = 4
        version = self.number("I")
        if version & 0xFFFF == 0:  # written on a machine of the other byte order
            self.order, self.at = ">", 4
            version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}; expected 2 or 3")
        tensors, fields = self.number("Q"), self.number("Q")
        values: dict[str, Any] = {}
        for _ in range(fields):
            name = self.text()
            values[name] = self.value(self.number("I"))
        infos = [self.tensor() for _ in range(tensors)]
        self.check(infos, values.get("general.alignment", 32))
        shapes = {tensor.name: shape for tensor, shape, _ in infos}
        return values | {"shapes": shapes}, tuple(tensor for tensor, _, _ in infos)

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(self.order + code, self.data, self.at)
        self.at += struct.calcsize(self.order + code)
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        if self.at > len(self.data):
            raise ValueError(f"it ends within a text of {size} bytes")
        return str(self.data[self.at - size : self.at], "utf-8")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise ValueError(f"it holds a value of the unknown kind {kind}")
        inner, count = self.number("I"), self.number("Q")
        if count > LARGEST:
            raise ValueError(f"it claims an array of {count} values")
        return [self.value(inner) for _ in range(count)]

    def tensor(self) -> tuple[Tensor, list[int], int]:
        """A tensor, its shape with rows last, and where it begins among the weights."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # 0.2 s of imports that only this needs

        name = self.text()
        shape = [self.number("Q") for _ in range(self.number("I"))]
        kind = GGMLQuantizationType(self.number("I"))
        block, size = GGML_QUANT_SIZES[kind]
        if shape and shape[0] % block:
            raise ValueError(f"a row of the tensor {quoted(name)} has {shape[0]} elements, no multiple of {kind.name}'s {block}")
        elements = prod(shape)
        return Tensor(name, kind.name, elements, elements // block * size), shape, self.number("Q")

    def check(self, infos: list[tuple[Tensor, list[int], int]], alignment: object) -> None:
        """Names are told apart, and the weights are there to the last byte."""
        if len({tensor.name for tensor, _, _ in infos}) < len(infos):
            raise ValueError("two of its tensors have the same name")
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its alignment is {quoted(alignment)}; expected a whole number, such as 32")
        start = -(-self.at // alignment) * alignment
        end = max((start + offset + tensor.bytes for tensor, _, offset in infos), default=0)
        if end > len(self.data):
            raise ValueError(f"it has {len(self.data)} bytes, its header speaks of {end}")


def _other_parts(path: Path, fields: Mapping[str, Any]) -> list[Path]:
    """The files beside 'name-00001-of-00003.gguf' that hold the rest of its tensors."""
    count = fields.get("split.count", 1)
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not isinstance(count, int) or count < 2:
        return []
    if match is None or int(match[3]) != count:
        raise UserError(
            f"{path.name}: one of {count} parts, but not named like name-00001-of-{count:05d}.gguf, so the others cannot be found"
        )
    return [path.with_name(f"{match[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1) if i != int(match[2])]


def _config(architecture: str, fields: Mapping[str, Any], tensors: tuple[Tensor, ...], where: str) -> dict[str, object]:
    """HF's keys for what the metadata says; what only the tensors show (biases, a tied head) is taken from them."""
    values: dict[str, object] = {"model_type": MODEL_TYPES[architecture]}
    for key, names in KEYS.items():
        found = fields.get(f"{architecture}.{key}")
        if found is not None:
            values |= dict.fromkeys(names, found)
    names = {tensor.name for tensor in tensors}
    shape = fields["shapes"].get("token_embd.weight")
    if not shape:
        raise UserError(f"{where}: it holds no token_embd.weight, so not a whole language model")
    values["vocab_size"] = shape[-1]
    values["tie_word_embeddings"] = "output.weight" not in names
    bias = "blk.0.attn_q.bias" in names or "blk.0.attn_qkv.bias" in names
    values |= {"attention_bias": bias, "bias": bias, "use_bias": bias, "mlp_bias": "blk.0.ffn_up.bias" in names}
    return values | _special(architecture, fields, names, values)


def _special(architecture: str, fields: Mapping[str, Any], names: set[str], values: Mapping[str, Any]) -> dict[str, object]:
    """What single architectures write under other keys."""

    def field(key: str) -> Any:
        return fields.get(f"{architecture}.{key}")

    if architecture == "llama" and field("expert_count"):
        return {"model_type": "mixtral"}
    if architecture == "llama4":
        return {"intermediate_size_mlp": field("feed_forward_length"), "intermediate_size": field("expert_feed_forward_length")}
    if architecture == "gpt-oss":
        return {"intermediate_size": field("expert_feed_forward_length") or field("feed_forward_length")}
    if architecture == "falcon":
        new = "blk.0.attn_norm_2.weight" in names
        return {"new_decoder_architecture": new, "multi_query": field("attention.head_count_kv") == 1}
    if architecture == "deepseek2":
        # Since 2025 key_length is that of the cached latent; the heads' own is in key_length_mla.
        query = field("attention.key_length_mla") or field("attention.key_length")
        rope = field("rope.dimension_count")
        nope = query - rope if isinstance(query, int) and isinstance(rope, int) else None
        value = field("attention.value_length_mla") or field("attention.value_length")
        return {"qk_nope_head_dim": nope, "v_head_dim": value, "q_lora_rank": field("attention.q_lora_rank")}
    if architecture == "mamba2":
        inner, heads, hidden = field("ssm.inner_size"), field("ssm.time_step_rank"), values.get("hidden_size")
        if isinstance(inner, int) and isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
            return {"head_dim": inner // heads, "expand": inner // hidden}
    return {}
