"""Small GGUF files as llama.cpp's converter writes them, with the tensors of each architecture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian, GGUFWriter

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD, VOCAB, CONTEXT = 32, 48, 2, 4, 2, 8, 96, 64
EXPERTS, ACTIVE, EXPERT_FFN, SHARED_FFN = 5, 2, 24, 20
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 16, 12, 6, 4, 10
INNER, STATE, GROUPS, KERNEL = 64, 8, 2, 4

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
F32 = GGMLQuantizationType.F32


@dataclass
class Gguf:
    """The content of a file: its metadata under the architecture's prefix, and the shapes of its tensors, rows first."""

    architecture: str
    fields: dict[str, int]
    tensors: Shapes
    types: dict[str, GGMLQuantizationType] = field(default_factory=dict)

    def write(self, path: Path, part: int = 0, parts: int = 1, names: Sequence[str] | None = None, big: bool = False) -> Path:
        """Write the whole file, or one part with the tensors `names`. As in llama.cpp's files, only the first part has the metadata."""
        endian = GGUFEndian.BIG if big else GGUFEndian.LITTLE
        writer = GGUFWriter(path, self.architecture if part == 0 else "", endianess=endian)
        if part == 0:
            for key, value in self.fields.items():
                writer.add_uint32(f"{self.architecture}.{key}", value)
            writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
            writer.add_array("tokenizer.ggml.token_type", [1, 1, 1])
        if parts > 1:
            writer.add_uint16("split.no", part)
            writer.add_uint16("split.count", parts)
        for name in list(self.tensors)[part::parts] if names is None else names:
            writer.add_tensor(name, *self.data(name))
        return finish(writer, path)

    def data(self, name: str) -> tuple[np.ndarray, None, GGMLQuantizationType]:
        """Return zeros in the tensor's own type; a quantised row is a row of bytes."""
        shape, kind = self.tensors[name], self.types.get(name, F32)
        if kind == F32:
            return np.zeros(shape, dtype=np.float32), None, kind
        block, size = GGML_QUANT_SIZES[kind]
        return np.zeros((*shape[:-1], shape[-1] // block * size), dtype=np.uint8), None, kind

    def with_tensors(self, tensors: Shapes) -> "Gguf":
        return Gguf(self.architecture, self.fields, self.tensors | tensors, self.types)

    def without(self, *names: str) -> "Gguf":
        kept = {name: shape for name, shape in self.tensors.items() if name not in names}
        return Gguf(self.architecture, self.fields, kept, self.types)

    @property
    def elements(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.tensors.values())


def finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SIZES = {
    "embedding_length": HIDDEN,
    "block_count": LAYERS,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "feed_forward_length": FFN,
    "context_length": CONTEXT,
}
MIXTURE = {"expert_count": EXPERTS, "expert_used_count": ACTIVE, "expert_feed_forward_length": EXPERT_FFN}
KEY = {"attention.key_length": HEAD}
LATENT = {
    "attention.q_lora_rank": Q_RANK,
    "attention.kv_lora_rank": KV_RANK,
    "attention.key_length": KV_RANK + ROPE,
    "attention.value_length": KV_RANK,
    "attention.key_length_mla": NOPE + ROPE,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": ROPE,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
}
SCAN = {
    "ssm.conv_kernel": KERNEL,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": GROUPS,
}


def weights(shapes: Shapes, *, biased: Iterable[str] = ()) -> Shapes:
    """Return `name.weight` for each shape, and `name.bias`, one per row, for the names in `biased`."""
    found = {f"{name}.weight": shape for name, shape in shapes.items()}
    for name in biased:
        shape = shapes[name]
        found[f"{name}.bias"] = shape if len(shape) == 1 else shape[:-1]
    return found


def norms(*names: str, width: int = HIDDEN) -> Shapes:
    return dict.fromkeys(names, (width,))


TWO_NORMS = norms("attn_norm", "ffn_norm")
FOUR_NORMS = norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
QK_NORMS = norms("attn_q_norm", "attn_k_norm", width=HEAD)
QKVO: Shapes = {
    "attn_q": (HEADS * HEAD, HIDDEN),
    "attn_k": (KV_HEADS * HEAD, HIDDEN),
    "attn_v": (KV_HEADS * HEAD, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD),
}
UP_DOWN: Shapes = {"ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
GATED: Shapes = {"ffn_gate": (FFN, HIDDEN)} | UP_DOWN
ROUTER: Shapes = {"ffn_gate_inp": (EXPERTS, HIDDEN)}


def fused(kv_heads: int) -> Shapes:
    """Return queries, keys and values as one tensor."""
    return {"attn_qkv": ((HEADS + 2 * kv_heads) * HEAD, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD)}


def experts(ffn: int) -> Shapes:
    up = (EXPERTS, ffn, HIDDEN)
    return ROUTER | {"ffn_gate_exps": up, "ffn_up_exps": up, "ffn_down_exps": (EXPERTS, HIDDEN, ffn)}


def shared(ffn: int) -> Shapes:
    return {"ffn_gate_shexp": (ffn, HIDDEN), "ffn_up_shexp": (ffn, HIDDEN), "ffn_down_shexp": (HIDDEN, ffn)}


def model(
    architecture: str,
    fields: dict[str, int],
    *layers: Shapes,
    tied: bool = False,
    norm_bias: bool = False,
    top: Shapes | None = None,
) -> Gguf:
    """Return a whole file: embedding, layers (one shape for all, or one each), last norm, and a head unless it is tied."""
    ends = weights({"token_embd": (VOCAB, HIDDEN)} | norms("output_norm"), biased=["output_norm"] if norm_bias else [])
    head = {} if tied else weights({"output": (VOCAB, HIDDEN)})
    each = layers * LAYERS if len(layers) == 1 else layers
    body = {f"blk.{i}.{name}": shape for i, layer in enumerate(each) for name, shape in layer.items()}
    return Gguf(architecture, fields, ends | (top or {}) | body | head)


LLAMA_LAYER = weights(TWO_NORMS | QKVO | GATED)
CLASSIC = TWO_NORMS | fused(HEADS) | UP_DOWN
CLASSIC_LAYER = weights(CLASSIC, biased=CLASSIC)
CLASSIC_SIZES = SIZES | {"attention.head_count_kv": HEADS, "feed_forward_length": 4 * HIDDEN}
WIDE: Shapes = {"ffn_up": (4 * HIDDEN, HIDDEN), "ffn_down": (HIDDEN, 4 * HIDDEN)}
FALCON = norms("attn_norm") | fused(1) | WIDE
DEEPSEEK = norms("attn_norm", "ffn_norm") | {
    "attn_q_a": (Q_RANK, HIDDEN),
    "attn_q_a_norm": (Q_RANK,),
    "attn_q_b": (HEADS * (NOPE + ROPE), Q_RANK),
    "attn_kv_a_mqa": (KV_RANK + ROPE, HIDDEN),
    "attn_kv_a_norm": (KV_RANK,),
    "attn_k_b": (HEADS, KV_RANK, NOPE),
    "attn_v_b": (HEADS, VALUE, KV_RANK),
    "attn_output": (HIDDEN, HEADS * VALUE),
}
GPT_OSS = QKVO | experts(EXPERT_FFN)
CONV = INNER + 2 * GROUPS * STATE
MAMBA_LAYER = weights(
    norms("attn_norm")
    | {
        "ssm_in": (INNER + CONV + HEADS, HIDDEN),
        "ssm_conv1d": (CONV, KERNEL),
        "ssm_norm": (GROUPS, INNER // GROUPS),
        "ssm_out": (HIDDEN, INNER),
    },
    biased=["ssm_conv1d"],
) | {"ssm_dt.bias": (HEADS,), "ssm_a": (HEADS, 1), "ssm_d": (HEADS, 1)}
POSITIONS = weights({"position_embd": (CONTEXT, HIDDEN)})
EMBEDDING_NORM = weights(norms("token_embd_norm"), biased=["token_embd_norm"])

LLAMA = model("llama", SIZES, LLAMA_LAYER)
SMALL_FILES: dict[str, Gguf] = {
    "llama": LLAMA,
    "llama with a tied head": model("llama", SIZES, LLAMA_LAYER, tied=True),
    "llama with biases": model("llama", SIZES, weights(TWO_NORMS | QKVO | GATED, biased=[*QKVO, *GATED])),
    "mixtral": model("llama", SIZES | MIXTURE, weights(TWO_NORMS | QKVO | experts(FFN))),
    "qwen2": model("qwen2", SIZES, weights(TWO_NORMS | QKVO | GATED, biased=["attn_q", "attn_k", "attn_v"])),
    "qwen3": model("qwen3", SIZES | KEY, weights(TWO_NORMS | QK_NORMS | QKVO | GATED)),
    "gemma": model("gemma", SIZES | KEY, LLAMA_LAYER, tied=True),
    "gemma2": model("gemma2", SIZES | KEY | {"attention.sliding_window": 16}, weights(FOUR_NORMS | QKVO | GATED), tied=True),
    "gemma3": model(
        "gemma3", SIZES | KEY | {"attention.sliding_window": 16}, weights(FOUR_NORMS | QK_NORMS | QKVO | GATED), tied=True
    ),
    "phi3": model(
        "phi3",
        SIZES | {"attention.sliding_window": 16},
        weights(TWO_NORMS | fused(KV_HEADS) | {"ffn_up": (2 * FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}),
    ),
    "gpt2": model("gpt2", CLASSIC_SIZES | {"feed_forward_length": FFN}, CLASSIC_LAYER, tied=True, norm_bias=True, top=POSITIONS),
    "gptneox": model("gptneox", CLASSIC_SIZES | {"feed_forward_length": FFN}, CLASSIC_LAYER, norm_bias=True),
    "falcon": model(
        "falcon", CLASSIC_SIZES | {"attention.head_count_kv": 1}, weights(FALCON, biased=["attn_norm"]), norm_bias=True
    ),
    "falcon with two norms": model(
        "falcon",
        CLASSIC_SIZES | {"attention.head_count_kv": KV_HEADS},
        weights(norms("attn_norm", "attn_norm_2") | fused(KV_HEADS) | WIDE, biased=["attn_norm", "attn_norm_2"]),
        norm_bias=True,
    ),
    "bloom": model(
        "bloom",
        CLASSIC_SIZES,
        weights(TWO_NORMS | fused(HEADS) | WIDE, biased=TWO_NORMS | fused(HEADS) | WIDE),
        tied=True,
        norm_bias=True,
        top=EMBEDDING_NORM,
    ),
    "olmo2": model(
        "olmo2",
        SIZES,
        weights(
            norms("post_attention_norm", "post_ffw_norm")
            | {"attn_q_norm": (HEADS * HEAD,), "attn_k_norm": (KV_HEADS * HEAD,)}
            | QKVO
            | GATED
        ),
    ),
    "starcoder2": model(
        "starcoder2", SIZES, weights(TWO_NORMS | QKVO | UP_DOWN, biased=TWO_NORMS | QKVO | UP_DOWN), norm_bias=True
    ),
    "mpt": model("mpt", CLASSIC_SIZES, weights(TWO_NORMS | fused(HEADS) | WIDE), tied=True),
    "granite": model("granite", SIZES, LLAMA_LAYER, tied=True),
    "smollm3": model("smollm3", SIZES, LLAMA_LAYER, tied=True),
    "qwen2moe": model(
        "qwen2moe",
        SIZES | MIXTURE | {"expert_shared_feed_forward_length": SHARED_FFN},
        weights(
            TWO_NORMS | QKVO | experts(EXPERT_FFN) | shared(SHARED_FFN) | {"ffn_gate_inp_shexp": (HIDDEN,)},
            biased=["attn_q", "attn_k", "attn_v"],
        ),
    ),
    "qwen3moe": model("qwen3moe", SIZES | KEY | MIXTURE, weights(TWO_NORMS | QK_NORMS | QKVO | experts(EXPERT_FFN))),
    "gpt-oss": model(
        "gpt-oss",
        SIZES | KEY | MIXTURE | {"attention.sliding_window": 16},
        weights(norms("attn_norm", "post_attention_norm") | GPT_OSS | {"attn_sinks": (HEADS,)}, biased=GPT_OSS),
    ),
    "llama4": model(
        "llama4",
        SIZES | KEY | MIXTURE | {"interleave_moe_layer_step": 2},
        LLAMA_LAYER,
        weights(TWO_NORMS | QKVO | experts(EXPERT_FFN) | shared(EXPERT_FFN)),
    ),
    "deepseek2": model(
        "deepseek2",
        SIZES | MIXTURE | LATENT,
        weights(DEEPSEEK | GATED),
        weights(DEEPSEEK | experts(EXPERT_FFN) | shared(EXPERT_FFN)),
    ),
    "mamba2": model("mamba2", SIZES | SCAN | {"attention.head_count": 0, "feed_forward_length": 0}, MAMBA_LAYER, tied=True),
}
"""A small file of every architecture that is read, by the name that a user would give it."""
