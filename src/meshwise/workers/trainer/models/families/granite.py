"""Granite 3 (dense): Llama with factors on embedding, residual sums, scores and logits."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import llama_like, number_of
from meshwise.workers.trainer.contract.models.registry import Config, Family


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias"))
    return llama_like(
        config, qkv_bias=bias, out_bias=bias, ffn_bias=bool(config.get("mlp_bias")),
        embedding_factor=number_of(config, "embedding_multiplier", 1.0),
        residual_factor=number_of(config, "residual_multiplier", 1.0), scale=number_of(config, "attention_multiplier", 1.0),
        logit_factor=1 / number_of(config, "logits_scaling", 1.0),
    )  # fmt: skip


FAMILY = Family(model_types=("granite",), describe=describe, transformers_class="GraniteForCausalLM")
