"""Mixtral (arXiv:2401.04088): Mistral with eight experts, of which two compute a token."""

from meshwise.workers.trainer.contract.models.description import Description, Experts, Layer
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, llama_like, number_of, rotary_of, windows_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage


def describe(config: Config) -> Description:
    count = first_of(config, "num_hidden_layers")
    rotary = rotary_of(config, head_dim_of(config), theta=1e6)
    windows = windows_of(config, count, 0, lambda _: True)
    experts = Experts(
        count=first_of(config, "num_local_experts", "num_experts", default=8),
        chosen=first_of(config, "num_experts_per_tok", default=2),
        width=first_of(config, "intermediate_size"),
        aux=number_of(config, "router_aux_loss_coef", 0.001),
    )
    layers = tuple(Layer(rotary=rotary, window=window, mixed=True) for window in windows)
    return llama_like(config, kv_heads=8, eps=number_of(config, "rms_norm_eps", 1e-5), layers=layers, experts=experts)


FAMILY = Family(
    model_types=("mixtral",),
    describe=describe,
    storage=Storage(
        names={"mlp.router": "block_sparse_moe.gate"},
        experts="block_sparse_moe.experts",
        expert_names={"gate": "w1", "up": "w3", "down": "w2"},
    ),
    transformers_class="MixtralForCausalLM",
)
