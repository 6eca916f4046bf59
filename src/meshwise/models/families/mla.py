"""Multi-head latent attention (DeepSeek V2, V3, R1): keys and values are kept as one small vector per token."""

from meshwise.models.config import Config
from meshwise.models.families.blocks import Block, Body, Decoder, experts
from meshwise.models.families.moe import MOST_EXPERTS, described, mixed
from meshwise.models.op import Op, linear, norm

model_types = frozenset({"deepseek_v2", "deepseek_v3"})


DEFAULTS = {
    "deepseek_v2": {"q_lora_rank": 1536, "n_shared_experts": 2, "first_k_dense_replace": 0},
    "deepseek_v3": {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
}
"""What the library takes these keys to be where a file leaves them out."""


def read(config: Config) -> Body:
    config = config.defaulting(**DEFAULTS[config.model_type])
    d = _decoder(config)
    number = config.whole("n_routed_experts", "num_experts", most=MOST_EXPERTS)
    active = config.whole("num_experts_per_tok", most=number)
    width = config.whole("moe_intermediate_size")
    shared = width * config.whole("n_shared_experts", default=0, least=0, most=1024)
    dense = config.whole("first_k_dense_replace", default=0, least=0)
    moe = experts(d, number, active, width, shared=shared)
    mixer = latent_attention(d, config)
    ranks = (("KV latent", config.whole("kv_lora_rank")), ("rotary head size", config.whole("qk_rope_head_dim")))
    return mixed(d, [mixer] * d.layers, moe, lambda i: i >= dense, (*described(number, active, width, shared), *ranks))


def _decoder(config: Config) -> Decoder:
    heads = config.whole("num_attention_heads")
    return Decoder(
        hidden=config.whole("hidden_size"),
        layers=config.layers("num_hidden_layers"),
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", default=4096),
        heads=heads,
        kv_heads=heads,
        head_dim=config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim"),
        ffn=config.whole("intermediate_size"),
        tied=config.flag("tie_word_embeddings", False),
        expert_reach=min(1.0, config.whole("topk_group", default=1) / config.whole("n_group", default=1)),
        ffn_bias=config.model_type == "deepseek_v2" and config.flag("mlp_bias", False),
    )


def latent_attention(d: Decoder, config: Config) -> Block:
    """Queries and keys-values go through low-rank bottlenecks; a rotary part is shared by all heads (arXiv:2405.04434, 2.1)."""
    nope, rope = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim")
    value, kv_rank = config.whole("v_head_dim"), config.whole("kv_lora_rank")
    bias = config.flag("attention_bias", False)
    wide = d.heads * d.head_dim
    if config.values.get("q_lora_rank") is None:
        queries = [linear("attention.q", "attention", wide, d.hidden, "column")]
    else:
        rank = config.whole("q_lora_rank")
        queries = [
            linear("attention.q_down", "attention", rank, d.hidden, "", bias=bias),
            norm("attention.q_norm", rank),
            linear("attention.q_up", "attention", wide, rank, "column"),
        ]
    scores = Op(
        name="attention.scores",
        part="attention",
        kind="attention",
        m=d.heads,
        n=value,
        k=d.head_dim,
        shard="heads",
        cache=kv_rank + rope,
    )
    rest = [
        linear("attention.kv_down", "attention", kv_rank + rope, d.hidden, "", bias=bias),
        norm("attention.kv_norm", kv_rank),
        linear("attention.kv_up", "attention", d.heads * (nope + value), kv_rank, "column"),
        scores,
        linear("attention.out", "attention", d.hidden, d.heads * value, "row", bias=bias),
    ]
    return Block("attention", (*queries, *rest))
