"""Mistral (arXiv:2310.06825): Llama with a sliding window in every layer."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import head_dim_of, llama_like, rotary_of, windowed, windows_of
from meshwise.workers.trainer.contract.models.registry import Config, Family


def describe(config: Config) -> Description:
    rotary = rotary_of(config, head_dim_of(config))
    windows = windows_of(config, int(config.get("num_hidden_layers") or 0), 4096, lambda _: True)
    return llama_like(config, kv_heads=8, layers=windowed(rotary, windows))


FAMILY = Family(model_types=("mistral",), describe=describe, transformers_class="MistralForCausalLM")
