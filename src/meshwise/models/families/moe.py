"""Mixtures of experts with ordinary attention: Mixtral, Qwen 2/3 MoE, OLMoE, gpt-oss, Llama 4."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from meshwise.models.architecture import Architecture, Metadata, rename
from meshwise.models.config import Config, as_list
from meshwise.models.families.blocks import Block, Body, Decoder, assemble, attention, attentions, experts, mlp
from meshwise.models.families.dense import alternating, llama_like, mistral, qwen3, qwen_windows, windows

MOST_EXPERTS = 2**16


def read(config: Config) -> Body:
    return READERS[config.model_type](config)


def expert_counts(config: Config, *keys: str) -> tuple[int, int]:
    """Read the number of experts, and how many of them a token uses."""
    number = config.whole(*keys, most=MOST_EXPERTS)
    return number, config.whole("num_experts_per_tok", most=number)


def assemble_sparse(
    d: Decoder, mixers: Iterable[Block], moe: Block, sparse: Callable[[int], bool], extra: tuple[tuple[str, int], ...]
) -> Body:
    """Assemble layers with the experts `moe` where `sparse` holds, and a plain feed-forward of width d.ffn elsewhere."""
    plain = mlp(d, d.ffn)
    return assemble(d, list(mixers), [moe if sparse(i) else plain for i in range(d.layers)], extra=extra)


def expert_hyperparameters(number: int, active: int, width: int, shared: int = 0) -> tuple[tuple[str, int], ...]:
    """Return the hyperparameters of a mixture that a dense model does not have."""
    rows = (("experts", number), ("experts per token", active), ("expert FFW width", width))
    return (*rows, ("shared expert FFW width", shared)) if shared else rows


def mixtral(config: Config) -> Body:
    d = replace(mistral(config), windows=windows(config, config.layers("num_hidden_layers"), lambda i: True))
    number, active = expert_counts(config, "num_local_experts", "num_experts")
    return assemble_sparse(
        d, attentions(d), experts(d, number, active, d.ffn), lambda i: True, expert_hyperparameters(number, active, d.ffn)
    )


def sparse_qwen(config: Config, layers: int) -> Callable[[int], bool]:
    """Return which layers have experts: every decoder_sparse_step-th, unless the file lists it as dense."""
    step = config.whole("decoder_sparse_step", default=1)
    dense = config.indices("mlp_only_layers", layers) or frozenset()
    return lambda i: i not in dense and (i + 1) % step == 0


def qwen3_moe(config: Config) -> Body:
    d = replace(
        qwen3(config, kv_heads=4),
        head_dim=config.whole("head_dim", default=config.whole("hidden_size") // config.whole("num_attention_heads")),
    )
    number, active = expert_counts(config, "num_experts", "num_local_experts")
    width = config.whole("moe_intermediate_size")
    moe = experts(d, number, active, width)
    return assemble_sparse(d, attentions(d), moe, sparse_qwen(config, d.layers), expert_hyperparameters(number, active, width))


def olmoe(config: Config) -> Body:
    bias = config.flag("attention_bias", False)
    d = replace(llama_like(config), qkv_bias=bias, out_bias=bias, qk_norm="all")
    number, active = expert_counts(config, "num_experts", "num_local_experts")
    moe = experts(d, number, active, d.ffn)
    return assemble_sparse(d, attentions(d), moe, lambda i: True, expert_hyperparameters(number, active, d.ffn))


def qwen2_moe(config: Config) -> Body:
    d = llama_like(config, kv_heads=16)
    d = replace(d, qkv_bias=config.flag("qkv_bias", True), windows=qwen_windows(config, d.layers))
    number, active = expert_counts(config, "num_experts")
    width, shared = config.whole("moe_intermediate_size"), config.whole("shared_expert_intermediate_size")
    moe = experts(d, number, active, width, shared=shared, shared_gate=True)
    return assemble_sparse(
        d, attentions(d), moe, sparse_qwen(config, d.layers), expert_hyperparameters(number, active, width, shared)
    )


def gpt_oss(config: Config) -> Body:
    d = llama_like(config, kv_heads=8, head_dim=64)
    bias = config.flag("attention_bias", True)
    d = replace(d, qkv_bias=bias, out_bias=bias)
    number, active = expert_counts(config, "num_local_experts", "num_experts")
    kinds = [attention(d, window, sinks=True) for window in alternating(config, d.layers, 128)]
    moe = experts(d, number, active, d.ffn, bias=True)
    return assemble_sparse(d, kinds, moe, lambda i: True, expert_hyperparameters(number, active, d.ffn))


def llama4(config: Config) -> Body:
    d = llama_like(config, kv_heads=8, head_dim=128)
    bias = config.flag("attention_bias", False)
    width = d.ffn
    d = replace(d, qkv_bias=bias, out_bias=bias, ffn=config.whole("intermediate_size_mlp", default=width))
    number, active = expert_counts(config, "num_local_experts", "num_experts")
    step = config.whole("interleave_moe_layer_step", default=1)
    listed = config.indices("moe_layers", d.layers)
    sparse = frozenset(range(step - 1, d.layers, step)) if listed is None else listed
    local, full = attention(d, config.whole("attention_chunk_size", default=8192), chunked=True), attention(d)
    moe = experts(d, number, active, width, shared=width)
    mixers = [local if chunked else full for chunked in _llama4_chunked(config, d.layers)]
    return assemble_sparse(d, mixers, moe, lambda i: i in sparse, expert_hyperparameters(number, active, width, width))


def _llama4_chunked(config: Config, layers: int) -> list[bool]:
    """Return which layers attend to their chunk only: those with rotary positions. Every fourth has none and attends to everything."""
    kinds = config.words("layer_types", layers, ("chunked_attention", "full_attention"))
    if kinds is not None:
        return [kind == "chunked_attention" for kind in kinds]
    rope = as_list(config.values.get("no_rope_layers"))
    if len(rope) == layers:  # 1 where the layer has rotary positions, despite the name
        return [bool(value) for value in rope]
    every = config.whole("no_rope_layer_interval", default=4)
    return [(i + 1) % every != 0 for i in range(layers)]


READERS: dict[str, Callable[[Config], Body]] = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "olmoe": olmoe,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
}
model_types = frozenset(READERS)


def _gpt_oss_keys(metadata: Metadata, tensors: AbstractSet[str]) -> dict[str, object]:
    return {"intermediate_size": metadata.get("expert_feed_forward_length") or metadata.get("feed_forward_length")}


def _llama4_keys(metadata: Metadata, tensors: AbstractSet[str]) -> dict[str, object]:
    widths = {
        "intermediate_size_mlp": metadata.get("feed_forward_length"),
        "intermediate_size": metadata.get("expert_feed_forward_length"),
    }
    return widths | rename(metadata, {"interleave_moe_layer_step": ("interleave_moe_layer_step",)})


gguf = (
    Architecture(name="llama", model_types=("mixtral",), requires="expert_count", writable=True),
    Architecture(name="qwen2moe", model_types=("qwen2_moe",)),
    Architecture(name="qwen3moe", model_types=("qwen3_moe",), writable=True),
    Architecture(name="gpt-oss", model_types=("gpt_oss",), norms=("attn_norm", "post_attention_norm"), config=_gpt_oss_keys),
    Architecture(name="llama4", model_types=("llama4_text",), config=_llama4_keys),
)
