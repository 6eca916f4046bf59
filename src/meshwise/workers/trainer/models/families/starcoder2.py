"""StarCoder 2 (arXiv:2402.19173): LayerNorm, biases, a feed-forward without gate, a window."""

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


def describe(config: Config) -> Description:
    bias = bool(config.get("use_bias", True))
    windows = windows_of(config, first_of(config, "num_hidden_layers"), 0, lambda _: True)
    return llama_like(
        config, kv_heads=2, tied=True, norm="layer", eps=number_of(config, "norm_epsilon", 1e-5), gated=False,
        activation=activation_of(config, "hidden_act", default="gelu_pytorch_tanh"), qkv_bias=bias, out_bias=bias,
        ffn_bias=bias, layers=windowed(rotary_of(config, head_dim_of(config)), windows),
    )  # fmt: skip


FAMILY = Family(
    model_types=("starcoder2",),
    describe=describe,
    storage=Storage(names={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}),
    dropout=("attention_dropout", "residual_dropout", "embedding_dropout"),
    transformers_class="Starcoder2ForCausalLM",
)
