"""Llama 1 to 3 (arXiv:2302.13971, arXiv:2407.21783)."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import llama_like
from meshwise.workers.trainer.contract.models.registry import Config, Family


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias"))
    return llama_like(config, qkv_bias=bias, out_bias=bias, ffn_bias=bool(config.get("mlp_bias")))


FAMILY = Family(model_types=("llama",), describe=describe, transformers_class="LlamaForCausalLM")
