"""Registry entry of BLOOM: sizes, unsupported configs and tensors. No torch."""

from meshwise.workers.trainer.models.registry import Config, Family, Sizes, first_of
from meshwise.workers.trainer.models.tensors import Tensors, linear, norm

EMBEDDING = "transformer.word_embeddings.weight"


def sizes(config: Config, positions: int = 0) -> Sizes:
    """Read the sizes by the keys and defaults of BLOOM and GPT-2, which are older than Llama's."""
    hidden = first_of(config, "hidden_size", "n_embed", "n_embd")
    heads = first_of(config, "num_attention_heads", "n_head")
    return Sizes(
        hidden=hidden,
        layers=first_of(config, "num_hidden_layers", "n_layer"),
        heads=heads,
        kv_heads=heads,
        ffn=first_of(config, "n_inner", default=4 * hidden),
        vocab=first_of(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", True)),
        positions=positions,
    )


def unsupported(config: Config) -> str:
    if config.get("apply_residual_connection_post_layernorm"):
        return "apply_residual_connection_post_layernorm is not supported; the trainer adds the input of the norm"
    return ""


def tensors(config: Config, m: Sizes) -> Tensors:
    before = {EMBEDDING: (m.vocab, m.hidden)} | norm("transformer.word_embeddings_layernorm", m.hidden)
    layer = norm("input_layernorm", m.hidden) | norm("post_attention_layernorm", m.hidden)
    layer |= linear("self_attention.query_key_value", 3 * m.hidden, m.hidden)
    layer |= linear("self_attention.dense", m.hidden, m.hidden)
    layer |= linear("mlp.dense_h_to_4h", 4 * m.hidden, m.hidden)
    layer |= linear("mlp.dense_4h_to_h", m.hidden, 4 * m.hidden)
    return Tensors(before, "transformer.h", layer, norm("transformer.ln_f", m.hidden))


FAMILY = Family(
    model_types=("bloom",),
    sizes=sizes,
    unsupported=unsupported,
    tensors=tensors,
    embedding=EMBEDDING,
    transformers_class="BloomForCausalLM",
)
