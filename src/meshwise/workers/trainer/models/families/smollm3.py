"""SmolLM 3: Llama, without positions in every fourth layer."""

from meshwise.workers.trainer.contract.models.description import Description, Layer
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, llama_like, rotary_of, windows_of
from meshwise.workers.trainer.contract.models.registry import Config, Family


def describe(config: Config) -> Description:
    count, every = first_of(config, "num_hidden_layers"), first_of(config, "no_rope_layer_interval", default=4)
    given = config.get("no_rope_layers")
    rotates = list(given) if given is not None else [int((i + 1) % every != 0) for i in range(count)]
    sliding = bool(config.get("use_sliding_window"))
    windows = windows_of(config, count, 0, lambda i: not rotates[i]) if sliding else [0] * count
    rotary, bias = rotary_of(config, head_dim_of(config), theta=2e6), bool(config.get("attention_bias"))
    layers = tuple(Layer(rotary=rotary if rotates[i] else None, window=windows[i]) for i in range(count))
    return llama_like(
        config, tied=True, kv_heads=4, qkv_bias=bias, out_bias=bias, ffn_bias=bool(config.get("mlp_bias")), layers=layers
    )


FAMILY = Family(model_types=("smollm3",), describe=describe, transformers_class="SmolLM3ForCausalLM")
