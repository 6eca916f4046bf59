"""Qwen 3 (arXiv:2505.09388): heads of 128, and queries and keys normed per head."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import llama_like
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.models.families.qwen2 import layers_of

HEAD_DIM = 128


def describe(config: Config) -> Description:
    bias, layers = bool(config.get("attention_bias")), layers_of(config, HEAD_DIM)
    return llama_like(config, head_dim=HEAD_DIM, kv_heads=32, qkv_bias=bias, out_bias=bias, qk_norm="head", layers=layers)


FAMILY = Family(model_types=("qwen3",), describe=describe, transformers_class="Qwen3ForCausalLM")
