"""GPT-2 (Radford et al. 2019) and GPT-3 (arXiv:2005.14165) with dense attention: BLOOM with learned positions instead of ALiBi."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import activation_of, first_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Packed, Storage
from meshwise.workers.trainer.models.families.bloom import QKV, classic


def describe(config: Config) -> Description:
    activation = activation_of(config, "activation_function", default="gelu_new")
    return classic(config, positions=first_of(config, "n_positions", default=1024), activation=activation)


def unsupported(config: Config) -> str:
    unknown = [key for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention") if config.get(key)]
    unknown += [] if config.get("scale_attn_weights", True) else ["scale_attn_weights false"]
    return f"{unknown[0]} is not supported; the trainer has plain causal attention" if unknown else ""


FAMILY = Family(
    model_types=("gpt2",),
    describe=describe,
    storage=Storage(
        layers="transformer.h",
        names={
            "model.embed_tokens": "transformer.wte", "model.embed_positions": "transformer.wpe",
            "model.norm": "transformer.ln_f", "input_layernorm": "ln_1", "self_attn.o_proj": "attn.c_proj",
            "post_attention_layernorm": "ln_2", "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj",
        },
        packed={"attn.c_attn": Packed(QKV)},
        transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
    ),
    unsupported=unsupported,
    dropout=("attn_pdrop", "embd_pdrop", "resid_pdrop"),
    transformers_class="GPT2LMHeadModel",
    buffers=(".attn.bias", ".attn.masked_bias"),
)  # fmt: skip
