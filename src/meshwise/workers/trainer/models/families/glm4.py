"""GLM 4: norms before and after, neighbouring features of half a head rotated, biases on queries, keys and values."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, llama_like, number_of, rotary_of, windowed
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage
from meshwise.workers.trainer.models.families.phi3 import GATE_UP

HEAD_DIM = 128
NAMES = {"attention_out_norm": "post_self_attn_layernorm", "mlp_out_norm": "post_mlp_layernorm"}


def describe(config: Config) -> Description:
    rotary = rotary_of(config, head_dim_of(config, HEAD_DIM), fraction=0.5, interleaved=True)
    return llama_like(
        config, head_dim=HEAD_DIM, kv_heads=2, norms="both", qkv_bias=bool(config.get("attention_bias", True)),
        eps=number_of(config, "rms_norm_eps", 1.5625e-7), layers=windowed(rotary, [0] * first_of(config, "num_hidden_layers")),
    )  # fmt: skip


FAMILY = Family(
    model_types=("glm4",), describe=describe, storage=Storage(names=NAMES, packed={"mlp.gate_up_proj": GATE_UP}),
    transformers_class="Glm4ForCausalLM",
)  # fmt: skip
