"""Linear attention: Qwen3-Next, with three gated DeltaNet layers per attention layer, and experts in every layer."""

from collections.abc import Sequence
from dataclasses import replace

from meshwise.models.architecture import Architecture, TensorNames
from meshwise.models.config import Config
from meshwise.models.families.blocks import Block, Body, assemble, attention, experts, mlp
from meshwise.models.families.dense import llama_like
from meshwise.models.families.moe import expert_counts, expert_hyperparameters, sparse_qwen
from meshwise.models.op import Op, linear, norm, vector

model_types = frozenset({"qwen3_next"})

CHUNK = 64
"""Tokens per chunk of the delta rule in flash-linear-attention and in transformers; part of the code, not of the config."""


def read(config: Config) -> Body:
    d = llama_like(config, kv_heads=2, head_dim=256)
    bias = config.flag("attention_bias", False)
    d = replace(d, qkv_bias=bias, out_bias=bias, qk_norm="head")
    number, active = expert_counts(config, "num_experts", "num_local_experts")
    width, shared = config.whole("moe_intermediate_size"), config.whole("shared_expert_intermediate_size")
    moe = experts(d, number, active, width, shared=shared, shared_gate=True)
    plain, sparse = mlp(d, d.ffn), sparse_qwen(config, d.layers)
    kinds = config.words("layer_types", d.layers, ("linear_attention", "full_attention"))
    every = config.whole("full_attention_interval", default=4)
    full = [(i + 1) % every == 0 if kinds is None else kinds[i] == "full_attention" for i in range(d.layers)]
    delta, attend = gated_delta_net(d.hidden, config), _gated(attention(d))
    mixers = [attend if whole else delta for whole in full]
    ffws = [moe if sparse(i) else plain for i in range(d.layers)]
    extra = (("attention layers", sum(full)), *expert_hyperparameters(number, active, width, shared))
    return assemble(d, mixers, ffws, extra=extra)


def _gated(block: Block) -> Block:
    """Return attention with a gated output: the query projection also computes the gate, so it is twice as wide."""
    twice = [replace(op, n=2 * op.n, params=2 * op.params) if op.name == "attention.q" else op for op in block.ops]
    return Block(block.name, tuple(twice))


def gated_delta_net(hidden: int, config: Config) -> Block:
    """Return a block with a state of key x value size per head, updated by the delta rule in chunks (arXiv:2412.06464, section 3.3)."""
    heads, key_heads = config.whole("linear_num_value_heads"), config.whole("linear_num_key_heads")
    config.require_multiple(heads, key_heads, "linear_num_value_heads must be a multiple of linear_num_key_heads")
    key, value = config.whole("linear_key_head_dim"), config.whole("linear_value_head_dim")
    kernel = config.whole("linear_conv_kernel_dim", default=4, most=4096)
    keys, values = key_heads * key, heads * value
    conv = 2 * keys + values

    def scan(name: str, n: int, k: int, times: int, state: int = 0) -> Op:
        return Op(
            name=f"delta.{name}", part="linear attention", kind="scan", m=times * heads, n=n, k=k, shard="heads", state=state
        )

    return Block(
        "linear_attention",
        (
            linear("delta.qkvz", "linear attention", 2 * keys + 2 * values, hidden, "column"),
            linear("delta.beta_decay", "linear attention", 2 * heads, hidden, "column"),
            Op(
                name="delta.conv",
                part="linear attention",
                kind="conv",
                n=conv,
                k=kernel,
                params=conv * kernel,
                shard="column",
                state=conv * kernel,
            ),
            vector("delta.dt_a", "linear attention", 2 * heads, "heads"),
            scan("within_chunk_keys", CHUNK, key, 3),  # K K', Q K', and T K
            scan("within_chunk_values", value, CHUNK, 2),  # T V and (Q K') U
            scan("state", value, key, 3, state=heads * key * value),  # W S, Q S, and K' U
            norm("delta.norm", value),
            linear("delta.out", "linear attention", hidden, values, "row"),
        ),
    )


tensor_names: TensorNames = {
    "delta.beta_decay": "ssm_ba",
    "delta.conv": "ssm_conv1d",
    "delta.dt_a": ("ssm_dt.bias", "ssm_a"),
    "delta.gate": "attn_gate",
    "delta.norm": "ssm_norm",
    "delta.out": "ssm_out",
    "delta.qkv": "attn_qkv",
}


def _split_gate(op: Op, ops: Sequence[Op]) -> list[Op]:
    """Split the gate from the queries, keys and values, which pass through the convolution, as the converter does."""
    if op.name != "delta.qkvz":
        return [op]
    (conv,) = (other for other in ops if other.name == "delta.conv")
    gate = op.n - conv.n
    return [
        replace(op, name="delta.qkv", n=conv.n, params=conv.n * op.k),
        replace(op, name="delta.gate", n=gate, params=gate * op.k),
    ]


gguf = (
    Architecture(
        name="qwen3next",
        model_types=("qwen3_next",),
        readable=False,
        norms=("attn_norm", "post_attention_norm"),
        split=_split_gate,
    ),
)
