"""Configs small enough to build and run in a test, with the sizes that each model_type needs."""

from typing import Any

_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
_LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "shared_expert_intermediate_size": 20,
}

SMALL: dict[str, dict[str, Any]] = {
    "llama": _SIZES,
    "mistral": _SIZES,
    "ministral": _SIZES | {"head_dim": 8},
    "qwen2": _SIZES,
    "qwen3": _SIZES | {"head_dim": 8},
    "gemma": _SIZES | {"head_dim": 8},
    "gemma2": _SIZES | {"head_dim": 8, "sliding_window": 32},
    "gemma3_text": _SIZES | {"head_dim": 8, "sliding_window": 32},
    "phi3": _SIZES | {"pad_token_id": 0},
    "granite": _SIZES,
    "smollm3": _SIZES | {"pad_token_id": 0},
    "olmo2": _SIZES,
    "starcoder2": _SIZES,
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 4, "n_positions": 64, "vocab_size": 96},
    "gpt_neox": _SIZES,
    "opt": _SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 96},
    "bloom": {"hidden_size": 32, "n_head": 4, "n_layer": 4, "vocab_size": 96},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4, "vocab_size": 96, "max_seq_len": 64},
    "mixtral": _SIZES | _LOCAL,
    "qwen2_moe": _SIZES | _EXPERTS | {"shared_expert_intermediate_size": 20},
    "qwen3_moe": _SIZES | _EXPERTS | {"head_dim": 8},
    "gpt_oss": _SIZES | _LOCAL | {"head_dim": 8, "sliding_window": 32},
    "llama4_text": _SIZES | _LOCAL | {"head_dim": 8, "intermediate_size_mlp": 40, "attention_chunk_size": 32},
    "deepseek_v2": _SIZES | _LATENT,
    "deepseek_v3": _SIZES | _LATENT,
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "vocab_size": 96,
        "num_heads": 4,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 8,
        "chunk_size": 16,
    },
    "bamba": _SIZES | _MAMBA | {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": _SIZES
    | _LOCAL
    | _MAMBA
    | {"shared_intermediate_size": 20, "layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "qwen3_next": _SIZES | _EXPERTS | _DELTA | {"head_dim": 8},
}
"""Every model_type that transformers can build, in sizes of a few dozen."""


def small(model_type: str, **options: object) -> dict[str, Any]:
    """Return the keys of a small config.json; an option of None omits a key."""
    values = {"model_type": model_type} | SMALL[model_type] | options
    return {key: value for key, value in values.items() if value is not None}
