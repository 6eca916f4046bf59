"""A small model of every family that the trainer builds, as its config.json."""

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 100,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 256, "hidden_size": 128, "n_layer": 2, "n_head": 4},
    "gpt2": {"vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "ttt": {key: SIZES[key] for key in SIZES if "key" not in key} | {"num_attention_heads": 2},
    "llama": SIZES,
    "mistral": SIZES,
    "qwen2": SIZES,
    "qwen3": SIZES | {"head_dim": 64},
    "phi3": SIZES,
    "olmo2": SIZES,
    "gemma2": SIZES | {"head_dim": 64, "query_pre_attn_scalar": 50},
    "gemma2, wide heads": SIZES | {"model_type": "gemma2", "head_dim": 256, "sliding_window": 4096},
    "gemma3_text": SIZES | {"head_dim": 64, "sliding_window_pattern": 2},
    "smollm3": SIZES | {"num_hidden_layers": 4},
    "granite": SIZES
    | {"attention_multiplier": 0.1, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "glm4": SIZES | {"head_dim": 32},
    "starcoder2": SIZES,
    "gpt_neox": SIZES,
    "mixtral": SIZES | {"num_local_experts": 4, "sliding_window": None},
    "olmoe": SIZES | {"num_experts": 8, "num_experts_per_tok": 3},
    "olmoe, whole tiles": SIZES
    | {"model_type": "olmoe", "hidden_size": 256, "num_experts": 8, "num_experts_per_tok": 3, "router_aux_loss_coef": 0.01},
    "qwen3_moe": SIZES | {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "deepseek_v3": SIZES
    | {
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "num_key_value_heads": 4,
    },
}
FAMILIES: dict[str, dict[str, Any]] = {name: {"model_type": name} | sizes for name, sizes in _FAMILIES.items()}
