"""Qwen 2 and 2.5 (arXiv:2407.10671): Llama with biases on queries, keys and values, and windows from some layer on if asked for."""

from meshwise.workers.trainer.contract.models.description import Description, Layer
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, llama_like, rotary_of, windowed, windows_of
from meshwise.workers.trainer.contract.models.registry import Config, Family


def layers_of(config: Config, head_dim: int = 0) -> tuple[Layer, ...]:
    """Return the layers. Files state a window, but it applies only with use_sliding_window, and from max_window_layers on."""
    count, full = first_of(config, "num_hidden_layers"), first_of(config, "max_window_layers", default=28)
    windows = windows_of(config, count, 4096, lambda i: i >= full) if config.get("use_sliding_window") else [0] * count
    return windowed(rotary_of(config, head_dim_of(config, head_dim)), windows)


def describe(config: Config) -> Description:
    return llama_like(config, kv_heads=32, qkv_bias=True, layers=layers_of(config))


FAMILY = Family(model_types=("qwen2",), describe=describe, transformers_class="Qwen2ForCausalLM")
