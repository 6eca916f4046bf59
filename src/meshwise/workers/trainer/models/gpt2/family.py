"""Registry entry of GPT-2: sizes, unsupported configs and tensors. No torch."""

from meshwise.workers.trainer.models.bloom import family as bloom
from meshwise.workers.trainer.models.registry import Config, Family, Sizes, first_of
from meshwise.workers.trainer.models.tensors import Shapes, Tensors, norm

EMBEDDING = "transformer.wte.weight"


def sizes(config: Config) -> Sizes:
    return bloom.sizes(config, first_of(config, "n_positions", default=1024))


def unsupported(config: Config) -> str:
    if config.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"):
        return f"activation_function {config['activation_function']!r} is not supported; the trainer has gelu_new"
    unknown = [key for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention") if config.get(key)]
    unknown += [] if config.get("scale_attn_weights", True) else ["scale_attn_weights false"]
    return f"{unknown[0]} is not supported; the trainer has plain causal attention" if unknown else ""


def ignored_dropout(config: Config) -> float:
    """Return the largest dropout in the config; all published GPT-2 configs set one."""
    return max(float(config.get(key) or 0) for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop"))


def tensors(config: Config, m: Sizes) -> Tensors:
    before = {EMBEDDING: (m.vocab, m.hidden), "transformer.wpe.weight": (m.positions, m.hidden)}
    layer: Shapes = norm("ln_1", m.hidden) | norm("ln_2", m.hidden)
    for name, inputs, outputs in (
        ("attn.c_attn", m.hidden, 3 * m.hidden),
        ("attn.c_proj", m.hidden, m.hidden),
        ("mlp.c_fc", m.hidden, m.ffn),
        ("mlp.c_proj", m.ffn, m.hidden),
    ):
        layer |= {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}  # HF stores inputs first
    return Tensors(before, "transformer.h", layer, norm("transformer.ln_f", m.hidden))


FAMILY = Family(
    model_types=("gpt2",),
    sizes=sizes,
    unsupported=unsupported,
    ignored_dropout=ignored_dropout,
    tensors=tensors,
    embedding=EMBEDDING,
    transformers_class="GPT2LMHeadModel",
    buffers=(".attn.bias", ".attn.masked_bias"),
)
