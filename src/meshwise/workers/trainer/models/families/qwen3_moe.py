"""Qwen 3 with experts (arXiv:2505.09388)."""

from dataclasses import replace

from meshwise.workers.trainer.contract.models.description import Description, Experts
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, number_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage
from meshwise.workers.trainer.models.families.qwen2 import layers_of
from meshwise.workers.trainer.models.families.qwen3 import describe as dense


def describe(config: Config) -> Description:
    experts = Experts(
        count=first_of(config, "num_experts", "num_local_experts", default=128),
        chosen=first_of(config, "num_experts_per_tok", default=8), width=first_of(config, "moe_intermediate_size", default=768),
        normed=bool(config.get("norm_topk_prob", False)), aux=number_of(config, "router_aux_loss_coef", 0.001),
    )  # fmt: skip
    every, plain = first_of(config, "decoder_sparse_step", default=1), list[int](config.get("mlp_only_layers") or [])
    kinds = layers_of(config, head_dim_of(config))
    layers = tuple(replace(kind, mixed=i not in plain and (i + 1) % max(1, every) == 0) for i, kind in enumerate(kinds))
    return replace(dense(config), head_dim=head_dim_of(config), layers=layers, experts=experts)


FAMILY = Family(
    model_types=("qwen3_moe",), describe=describe, storage=Storage(names={"mlp.router": "mlp.gate"}),
    transformers_class="Qwen3MoeForCausalLM",
)  # fmt: skip
