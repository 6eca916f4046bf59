"""Gemma 2 (arXiv:2408.00118): norms before and after, soft caps on scores and logits, a window in every other layer."""

from typing import Any

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import (
    activation_of,
    first_of,
    head_dim_of,
    llama_like,
    number_of,
    rotary_of,
    windowed,
    windows_of,
)
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
    score_cap, logit_cap = (
        float(config.get(key, default) or 0)
        for key, default in zip(("attn_logit_softcapping", "final_logit_softcapping"), caps, strict=True)
    )
    fields: dict[str, Any] = {
        "norm": "rms+1", "norms": "both", "qkv_bias": bias, "out_bias": bias,
        "activation": activation_of(config, "hidden_activation", default="gelu_pytorch_tanh"),
        "scale": number_of(config, "query_pre_attn_scalar", 256) ** -0.5, "score_cap": score_cap, "logit_cap": logit_cap,
        "embedding_factor": first_of(config, "hidden_size") ** 0.5,
    }  # fmt: skip
    return llama_like(config, head_dim=HEAD_DIM, kv_heads=4, tied=True, **(fields | more))


def unsupported(config: Config) -> str:
    return (
        "use_bidirectional_attention is not supported; the trainer has causal attention"
        if config.get("use_bidirectional_attention")
        else ""
    )


def describe(config: Config) -> Description:
    windows = windows_of(config, first_of(config, "num_hidden_layers"), 4096, lambda i: i % 2 == 0)
    return gemma(config, (50.0, 30.0), layers=windowed(rotary_of(config, head_dim_of(config, HEAD_DIM)), windows))


FAMILY = Family(
    model_types=("gemma2",), describe=describe, storage=STORAGE, unsupported=unsupported, transformers_class="Gemma2ForCausalLM"
)
