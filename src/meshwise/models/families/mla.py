"""Multi-head latent attention (DeepSeek V2, V3, R1): the KV cache holds one small vector per token."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from meshwise.models.architecture import Architecture, Metadata, TensorNames, rename
from meshwise.models.config import Config
from meshwise.models.families.blocks import Block, Body, Decoder, experts
from meshwise.models.families.moe import MOST_EXPERTS, assemble_sparse, expert_hyperparameters
from meshwise.models.op import Op, linear, norm

model_types = frozenset({"deepseek_v2", "deepseek_v3"})

DEFAULTS = {
    "deepseek_v2": {"q_lora_rank": 1536, "n_shared_experts": 2, "first_k_dense_replace": 0},
    "deepseek_v3": {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
}
"""The library's defaults for keys that a file omits."""


def read(config: Config) -> Body:
    config = config.with_defaults(**DEFAULTS[config.model_type])
    d = _decoder(config)
    number = config.whole("n_routed_experts", "num_experts", most=MOST_EXPERTS)
    active = config.whole("num_experts_per_tok", most=number)
    width = config.whole("moe_intermediate_size")
    shared = width * config.whole("n_shared_experts", default=0, least=0, most=1024)
    dense = config.whole("first_k_dense_replace", default=0, least=0)
    moe = experts(d, number, active, width, shared=shared)
    mixer = latent_attention(d, config)
    ranks = (("KV latent", config.whole("kv_lora_rank")), ("rotary head size", config.whole("qk_rope_head_dim")))
    return assemble_sparse(
        d, [mixer] * d.layers, moe, lambda i: i >= dense, (*expert_hyperparameters(number, active, width, shared), *ranks)
    )


def _decoder(config: Config) -> Decoder:
    heads = config.whole("num_attention_heads")
    return Decoder(
        hidden=config.whole("hidden_size"),
        layers=config.layers("num_hidden_layers"),
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", default=4096),
        heads=heads,
        kv_heads=heads,
        head_dim=config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim"),
        ffn=config.whole("intermediate_size"),
        tied=config.flag("tie_word_embeddings", False),
        expert_reach=min(1.0, config.whole("topk_group", default=1) / config.whole("n_group", default=1)),
        ffn_bias=config.model_type == "deepseek_v2" and config.flag("mlp_bias", False),
    )


def latent_attention(d: Decoder, config: Config) -> Block:
    """Return attention with low-rank queries, keys and values; all heads share a rotary part (arXiv:2405.04434, 2.1)."""
    nope, rope = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim")
    value, kv_rank = config.whole("v_head_dim"), config.whole("kv_lora_rank")
    bias = config.flag("attention_bias", False)
    wide = d.heads * d.head_dim
    if config.values.get("q_lora_rank") is None:
        queries = [linear("attention.q", "attention", wide, d.hidden, "column")]
    else:
        rank = config.whole("q_lora_rank")
        queries = [
            linear("attention.q_down", "attention", rank, d.hidden, "", bias=bias),
            norm("attention.q_norm", rank),
            linear("attention.q_up", "attention", wide, rank, "column"),
        ]
    scores = Op(
        name="attention.scores",
        part="attention",
        kind="attention",
        m=d.heads,
        n=value,
        k=d.head_dim,
        shard="heads",
        cache=kv_rank + rope,
    )
    rest = [
        linear("attention.kv_down", "attention", kv_rank + rope, d.hidden, "", bias=bias),
        norm("attention.kv_norm", kv_rank),
        linear("attention.kv_up", "attention", d.heads * (nope + value), kv_rank, "column"),
        scores,
        linear("attention.out", "attention", d.hidden, d.heads * value, "row", bias=bias),
    ]
    return Block("attention", (*queries, *rest))


tensor_names: TensorNames = {
    "attention.q_down": "attn_q_a",
    "attention.q_norm": "attn_q_a_norm",
    "attention.q_up": "attn_q_b",
    "attention.kv_down": "attn_kv_a_mqa",
    "attention.kv_norm": "attn_kv_a_norm",
    "attention.kv_up": "attn_kv_b",
    "attention.k_up": "attn_k_b",
    "attention.v_up": "attn_v_b",
}

_KEYS = {
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "expert_shared_count": ("n_shared_experts",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "rope.dimension_count": ("qk_rope_head_dim",),
}


def _deepseek_keys(metadata: Metadata, tensors: AbstractSet[str]) -> dict[str, object]:
    """Return the config keys of latent attention. Since 2025 key_length is that of the cached latent, key_length_mla that of a head."""
    query = metadata.get("attention.key_length_mla") or metadata.get("attention.key_length")
    rope = metadata.get("rope.dimension_count")
    return rename(metadata, _KEYS) | {
        "qk_nope_head_dim": query - rope if isinstance(query, int) and isinstance(rope, int) else None,
        "v_head_dim": metadata.get("attention.value_length_mla") or metadata.get("attention.value_length"),
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
    }


def _split_kv_up(op: Op, ops: Sequence[Op]) -> list[Op]:
    """Split the up projection of the latent into keys and values, with one matrix per head, as the converter does."""
    if op.name != "attention.kv_up":
        return [op]
    (scores,) = (other for other in ops if other.kind == "attention")
    heads, rank, value = int(scores.m), op.k, scores.n
    nope = op.n // heads - value
    half = replace(op, shard="heads", count=heads)
    return [
        replace(half, name="attention.k_up", n=rank, k=nope, params=rank * nope),
        replace(half, name="attention.v_up", n=value, k=rank, params=value * rank),
    ]


gguf = (Architecture(name="deepseek2", model_types=("deepseek_v3", "deepseek_v2"), config=_deepseek_keys, split=_split_kv_up),)
