"""GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373): LayerNorm, biases, a quarter of a head rotated, parallel residual."""

from meshwise.workers.trainer.contract.models import keys
from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Packed, Storage

QKV = Packed(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), by_head=True)
STORAGE = Storage(
    layers="gpt_neox.layers",
    names={
        "model.embed_tokens": "gpt_neox.embed_in", "model.norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out",
        "self_attn.o_proj": "attention.dense", "mlp.up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h",
    },
    packed={"attention.query_key_value": QKV},
)  # fmt: skip


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias", True))
    rotary = keys.rotary_of(config, keys.head_dim_of(config), fraction=0.25)
    return keys.llama_like(
        config, norm="layer", eps=keys.number_of(config, "layer_norm_eps", 1e-5), gated=False,
        activation=keys.activation_of(config, "hidden_act", default="gelu"),
        parallel=bool(config.get("use_parallel_residual", True)), qkv_bias=bias, out_bias=bias, ffn_bias=True,
        layers=keys.windowed(rotary, [0] * keys.first_of(config, "num_hidden_layers")),
    )  # fmt: skip


FAMILY = Family(
    model_types=("gpt_neox",), describe=describe, storage=STORAGE, transformers_class="GPTNeoXForCausalLM",
    buffers=(".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
)  # fmt: skip
