"""StarCoder 2 (arXiv:2402.19173): LayerNorm, biases, a feed-forward without gate, a window."""

from meshwise.workers.trainer.contract.models import keys
from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage


def describe(config: Config) -> Description:
    bias = bool(config.get("use_bias", True))
    windows = keys.windows_of(config, keys.first_of(config, "num_hidden_layers"), 0, lambda _: True)
    return keys.llama_like(
        config, kv_heads=2, tied=True, norm="layer", eps=keys.number_of(config, "norm_epsilon", 1e-5), gated=False,
        activation=keys.activation_of(config, "hidden_act", default="gelu_pytorch_tanh"), qkv_bias=bias, out_bias=bias,
        ffn_bias=bias, layers=keys.windowed(keys.rotary_of(config, keys.head_dim_of(config)), windows),
    )  # fmt: skip


FAMILY = Family(
    model_types=("starcoder2",), describe=describe,
    storage=Storage(names={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}),
    dropout=("attention_dropout", "residual_dropout", "embedding_dropout"), transformers_class="Starcoder2ForCausalLM",
)  # fmt: skip
