"""DeepSeek V3 and R1 (arXiv:2412.19437): latent attention, shared and routed experts, a sigmoid router balanced by a bias.

The extra layer that predicts a second token is not built.
"""

import math

from meshwise.workers.trainer.contract.models.description import Description, Experts, Latent, Layer
from meshwise.workers.trainer.contract.models.keys import first_of, llama_like, number_of, rotary_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias"))
    still, rotated = first_of(config, "qk_nope_head_dim", default=128), first_of(config, "qk_rope_head_dim", default=64)
    rotary = rotary_of(config, rotated, interleaved=bool(config.get("rope_interleave", True)))
    dense = first_of(config, "first_k_dense_replace", default=3)
    layers = tuple(Layer(rotary=rotary, mixed=i >= dense) for i in range(first_of(config, "num_hidden_layers")))
    every, scale = float(rotary.scaling.get("mscale_all_dim") or 0), (still + rotated) ** -0.5
    if rotary.kind != "default" and every:
        factor = float(rotary.scaling["factor"])
        scale *= (1.0 if factor <= 1 else 0.1 * every * math.log(factor) + 1.0) ** 2
    latent = Latent(
        query_rank=first_of(config, "q_lora_rank", default=1536 if "q_lora_rank" not in config else 0),
        rank=first_of(config, "kv_lora_rank", default=512), still=still, rotated=rotated,
        value=first_of(config, "v_head_dim", default=128),
    )  # fmt: skip
    return llama_like(
        {**config, "head_dim": None}, head_dim=still + rotated, qkv_bias=bias, out_bias=bias, scale=scale, layers=layers,
        latent=latent, experts=_experts(config),
    )  # fmt: skip


def _experts(config: Config) -> Experts:
    width = first_of(config, "moe_intermediate_size", default=2048)
    return Experts(
        count=first_of(config, "n_routed_experts", "num_local_experts", default=256),
        chosen=first_of(config, "num_experts_per_tok", default=8), width=width,
        shared=width * first_of(config, "n_shared_experts", default=1), sigmoid=True,
        normed=bool(config.get("norm_topk_prob", True)), factor=number_of(config, "routed_scaling_factor", 2.5),
        groups=first_of(config, "n_group", default=8), kept_groups=first_of(config, "topk_group", default=4), biased=True,
        aux=number_of(config, "aux_loss_alpha", 0.0001),
    )  # fmt: skip


def unsupported(config: Config) -> str:
    scoring, method = config.get("scoring_func", "sigmoid"), config.get("topk_method", "noaux_tc")
    if (scoring, method) != ("sigmoid", "noaux_tc"):
        return f"scoring_func {scoring!r} with topk_method {method!r} is not supported; the trainer has sigmoid with noaux_tc"
    return ""


FAMILY = Family(
    model_types=("deepseek_v3",), describe=describe,
    storage=Storage(
        names={
            "mlp.router": "mlp.gate",
            "mlp.router.balance": "mlp.gate.e_score_correction_bias",
            "self_attn.q_a_norm": "self_attn.q_a_layernorm",
            "self_attn.kv_a_norm": "self_attn.kv_a_layernorm",
            "self_attn.kv_a_proj": "self_attn.kv_a_proj_with_mqa",
        }
    ),
    unsupported=unsupported, transformers_class="DeepseekV3ForCausalLM",
)  # fmt: skip
