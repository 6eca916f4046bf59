"""Phi 3 and 4 (arXiv:2404.14219): Llama with packed projections, a window, and rotary positions on a part of a head in some."""

from meshwise.workers.trainer.contract.models import keys
from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Packed, Storage

GATE_UP = Packed(("mlp.gate_proj", "mlp.up_proj"))
QKV = Packed(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))


def describe(config: Config) -> Description:
    windows = keys.windows_of(config, keys.first_of(config, "num_hidden_layers"), 0, lambda _: True)
    layers = keys.windowed(keys.rotary_of(config, keys.head_dim_of(config)), windows)
    return keys.llama_like(config, eps=keys.number_of(config, "rms_norm_eps", 1e-5), layers=layers)


FAMILY = Family(
    model_types=("phi3",), describe=describe, storage=Storage(packed={"self_attn.qkv_proj": QKV, "mlp.gate_up_proj": GATE_UP}),
    dropout=("resid_pdrop", "embd_pdrop"), transformers_class="Phi3ForCausalLM",
)  # fmt: skip
