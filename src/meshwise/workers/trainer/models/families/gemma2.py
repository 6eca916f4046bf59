"""Gemma 2 (arXiv:2408.00118): norms before and after, soft caps on scores and logits, a window in every other layer."""

from typing import Any

from meshwise.workers.trainer.contract.models import keys
from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage

HEAD_DIM = 256
STORAGE = Storage(
    names={
        "attention_out_norm": "post_attention_layernorm",
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
    }
)


def gemma(config: Config, caps: tuple[float, float], **more: Any) -> Description:
    """Return what Gemma 2 and 3 share; `caps` are the defaults of the soft caps on scores and on logits."""
    bias = bool(config.get("attention_bias"))
    score_cap = float(config.get("attn_logit_softcapping", caps[0]) or 0)
    logit_cap = float(config.get("final_logit_softcapping", caps[1]) or 0)
    fields: dict[str, Any] = {
        "norm": "rms+1", "norms": "both", "qkv_bias": bias, "out_bias": bias,
        "activation": keys.activation_of(config, "hidden_activation", default="gelu_pytorch_tanh"),
        "scale": keys.number_of(config, "query_pre_attn_scalar", 256) ** -0.5, "score_cap": score_cap, "logit_cap": logit_cap,
        "embedding_factor": keys.first_of(config, "hidden_size") ** 0.5,
    }  # fmt: skip
    return keys.llama_like(config, head_dim=HEAD_DIM, kv_heads=4, tied=True, **(fields | more))


def unsupported(config: Config) -> str:
    both_ways = config.get("use_bidirectional_attention")
    return "use_bidirectional_attention is not supported; the trainer has causal attention" if both_ways else ""


def describe(config: Config) -> Description:
    windows = keys.windows_of(config, keys.first_of(config, "num_hidden_layers"), 4096, lambda i: i % 2 == 0)
    return gemma(config, (50.0, 30.0), layers=keys.windowed(keys.rotary_of(config, keys.head_dim_of(config, HEAD_DIM)), windows))


FAMILY = Family(
    model_types=("gemma2",), describe=describe, storage=STORAGE, unsupported=unsupported, transformers_class="Gemma2ForCausalLM"
)
