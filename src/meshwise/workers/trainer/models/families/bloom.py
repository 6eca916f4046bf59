"""BLOOM (arXiv:2211.05100): LayerNorm with biases, ALiBi instead of positions, gelu, a norm after the embedding, a tied head."""

from typing import Any

from meshwise.workers.trainer.contract.models.description import Description, Layer
from meshwise.workers.trainer.contract.models.keys import first_of, number_of
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import Packed, Storage

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def classic(config: Config, **more: Any) -> Description:
    """Return a decoder of GPT-2's generation by the keys of BLOOM and GPT-2, which are older than Llama's."""
    hidden = first_of(config, "hidden_size", "n_embed", "n_embd")
    heads = first_of(config, "num_attention_heads", "n_head")
    fields: dict[str, Any] = {
        "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": hidden // max(1, heads),
        "ffn": first_of(config, "n_inner", default=4 * hidden), "vocab": first_of(config, "vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", True)),
        "layers": (Layer(),) * first_of(config, "num_hidden_layers", "n_layer"), "norm": "layer",
        "eps": number_of(config, "layer_norm_epsilon", 1e-5), "gated": False, "activation": "gelu_tanh", "qkv_bias": True,
        "out_bias": True, "ffn_bias": True,
    }  # fmt: skip
    return Description(**(fields | more))


def describe(config: Config) -> Description:
    return classic(config, alibi=True, embedding_norm=True)


def unsupported(config: Config) -> str:
    if config.get("apply_residual_connection_post_layernorm"):
        return "apply_residual_connection_post_layernorm is not supported; the trainer adds the input of the norm"
    return ""


FAMILY = Family(
    model_types=("bloom",), describe=describe,
    storage=Storage(
        layers="transformer.h",
        names={
            "model.embed_tokens": "transformer.word_embeddings",
            "model.embed_norm": "transformer.word_embeddings_layernorm",
            "model.norm": "transformer.ln_f",
            "self_attn.o_proj": "self_attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        packed={"self_attention.query_key_value": Packed(QKV, by_head=True)},
    ),
    unsupported=unsupported, transformers_class="BloomForCausalLM", buffers=(),
)  # fmt: skip
