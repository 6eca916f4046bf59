"""OLMoE (arXiv:2409.02060): 64 experts, of which eight compute a token; queries and keys normed over all heads."""

from meshwise.workers.trainer.contract.models.description import Description, Experts, Layer
from meshwise.workers.trainer.contract.models.keys import first_of, head_dim_of, llama_like, number_of, rotary_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Storage


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias"))
    experts = Experts(
        count=first_of(config, "num_experts", "num_local_experts", default=64),
        chosen=first_of(config, "num_experts_per_tok", default=8), width=first_of(config, "intermediate_size"),
        normed=bool(config.get("norm_topk_prob", False)), aux=number_of(config, "router_aux_loss_coef", 0.01),
    )  # fmt: skip
    layers = (Layer(rotary=rotary_of(config, head_dim_of(config)), mixed=True),) * first_of(config, "num_hidden_layers")
    eps = number_of(config, "rms_norm_eps", 1e-5)
    return llama_like(config, qkv_bias=bias, out_bias=bias, qk_norm="all", eps=eps, layers=layers, experts=experts)


def unsupported(config: Config) -> str:
    return "clip_qkv is not supported; the trainer norms queries and keys" if config.get("clip_qkv") is not None else ""


FAMILY = Family(
    model_types=("olmoe",), describe=describe, storage=Storage(names={"mlp.router": "mlp.gate"}), unsupported=unsupported,
    transformers_class="OlmoeForCausalLM",
)  # fmt: skip
