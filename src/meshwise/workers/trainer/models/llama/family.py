"""Registry entry of Llama: sizes, unsupported configs and tensors. No torch."""

from typing import Any

from meshwise.workers.trainer.models.registry import Config, Family, Sizes, first_of, is_real
from meshwise.workers.trainer.models.tensors import Shapes, Tensors, linear

EMBEDDING = "model.embed_tokens.weight"
LLAMA_3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""Keys of Llama 3's scaling of rotary positions."""


def sizes(config: Config, tied: bool = False) -> Sizes:
    """Read the sizes; `tied` is the default of tie_word_embeddings."""
    heads = first_of(config, "num_attention_heads")
    return Sizes(
        hidden=first_of(config, "hidden_size"),
        layers=first_of(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=first_of(config, "num_key_value_heads", default=heads),
        ffn=first_of(config, "intermediate_size"),
        vocab=first_of(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", tied)),
    )


def rope_of(config: Config) -> dict[str, Any]:
    """Return the rotary position settings, under the key of transformers 5 or of earlier versions."""
    return {"rope_theta": config.get("rope_theta", 10000.0)} | dict(
        config.get("rope_parameters") or config.get("rope_scaling") or {}
    )


def head_dim_of(config: Config) -> int:
    m = sizes(config)
    return int(config.get("head_dim") or m.hidden // max(1, m.heads))


def unsupported(config: Config) -> str:
    if config.get("hidden_act", "silu") != "silu":
        return f"hidden_act {config['hidden_act']!r} is not supported; the trainer has silu"
    size = head_dim_of(config)
    if size % 2:
        return f"heads of {size} features: rotary positions rotate pairs, so the head size must be even"
    tables = [config.get(key) for key in ("rope_parameters", "rope_scaling")]
    if any(table is not None and not isinstance(table, dict) for table in tables):
        return "rope_parameters and rope_scaling must be tables"
    rope = rope_of(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        return f"rope_type {str(kind)[:60]!r} is not supported; the trainer has default and llama3"
    needed = ("rope_theta", *(LLAMA_3 if kind == "llama3" else ()))
    wrong = next((key for key in needed if not is_real(rope.get(key)) or rope[key] <= 0), "")
    return f"{wrong} of its rotary positions is missing or not a number above zero" if wrong else ""


def tensors(config: Config, m: Sizes) -> Tensors:
    dim, bias = head_dim_of(config), bool(config.get("attention_bias"))
    layer: Shapes = {"input_layernorm.weight": (m.hidden,), "post_attention_layernorm.weight": (m.hidden,)}
    layer |= linear("self_attn.q_proj", m.heads * dim, m.hidden, bias)
    layer |= linear("self_attn.k_proj", m.kv_heads * dim, m.hidden, bias)
    layer |= linear("self_attn.v_proj", m.kv_heads * dim, m.hidden, bias)
    layer |= linear("self_attn.o_proj", m.hidden, m.heads * dim, bias)
    layer |= gated_ffn(m, bool(config.get("mlp_bias")))
    return trunk(m, layer)


def gated_ffn(m: Sizes, bias: bool) -> Shapes:
    """Return the shapes of SwiGLU's three projections."""
    gate, up = (linear(f"mlp.{name}_proj", m.ffn, m.hidden, bias) for name in ("gate", "up"))
    return gate | up | linear("mlp.down_proj", m.hidden, m.ffn, bias)


def trunk(m: Sizes, layer: Shapes) -> Tensors:
    """Return the tensors of a model with these layers: with the embedding and the final norm."""
    return Tensors({EMBEDDING: (m.vocab, m.hidden)}, "model.layers", layer, {"model.norm.weight": (m.hidden,)})


FAMILY = Family(
    model_types=("llama",),
    sizes=sizes,
    unsupported=unsupported,
    tensors=tensors,
    embedding=EMBEDDING,
    transformers_class="LlamaForCausalLM",
    buffers=(".rotary_emb.inv_freq",),
)
