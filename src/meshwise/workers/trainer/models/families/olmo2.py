"""OLMo 2 (arXiv:2501.00656): norms after attention and feed-forward instead of before, queries and keys normed over all heads."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import llama_like, number_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage

NAMES = {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}


def describe(config: Config) -> Description:
    bias, eps = bool(config.get("attention_bias")), number_of(config, "rms_norm_eps", 1e-5)
    return llama_like(config, qkv_bias=bias, out_bias=bias, qk_norm="all", norms="after", eps=eps)


FAMILY = Family(model_types=("olmo2",), describe=describe, storage=Storage(names=NAMES), transformers_class="Olmo2ForCausalLM")
