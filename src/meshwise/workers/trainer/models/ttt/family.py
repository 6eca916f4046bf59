"""Registry entry of TTT: sizes, unsupported configs and tensors. No torch."""

from meshwise.workers.trainer.models.llama import family as llama
from meshwise.workers.trainer.models.registry import Config, Family, Sizes
from meshwise.workers.trainer.models.tensors import Shapes, Tensors, linear, norm

LEARNERS = ("linear", "mlp")


def sizes(config: Config) -> Sizes:
    return llama.sizes(config, tied=True)


def learner_of(config: Config) -> tuple[str, int]:
    """Return the inner model's kind and the tokens of its mini-batch; defaults are those of the paper's code."""
    return str(config.get("ttt_layer_type", "linear")), int(config.get("mini_batch_size", 16))


def unsupported(config: Config) -> str:
    learner, _ = learner_of(config)
    if learner not in LEARNERS:
        return f"ttt_layer_type {learner!r} is not supported; the trainer has {' and '.join(LEARNERS)}"
    for key in ("use_gate", "share_qk", "pre_conv"):
        if config.get(key):
            return f"{key} is not supported; the trainer has TTT-Linear and TTT-MLP without gate, shared queries and convolution"
    return llama.unsupported(config)


def tensors(config: Config, m: Sizes) -> Tensors:
    learner, tokens = learner_of(config)
    dim = m.hidden // m.heads
    width = 4 * dim if learner == "mlp" else dim
    block: Shapes = {"ttt_norm_weight": (m.heads, dim), "ttt_norm_bias": (m.heads, dim), "learnable_token_idx": (tokens,)}
    block |= {"learnable_ttt_lr_weight": (m.heads, 1, m.hidden), "learnable_ttt_lr_bias": (m.heads, 1)}
    block |= {"W1": (m.heads, dim, width), "b1": (m.heads, 1, width)}
    block |= {"W2": (m.heads, width, dim), "b2": (m.heads, 1, dim)} if learner == "mlp" else {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        block |= linear(name, m.hidden, m.hidden, False)
    block |= norm("post_norm", m.hidden)
    layer: Shapes = {"seq_norm.weight": (m.hidden,), "ffn_norm.weight": (m.hidden,)} | llama.gated_ffn(m, False)
    return llama.trunk(m, layer | {f"seq_modeling_block.{name}": shape for name, shape in block.items()})


FAMILY = Family(
    model_types=("ttt",),
    sizes=sizes,
    unsupported=unsupported,
    tensors=tensors,
    embedding=llama.EMBEDDING,
    buffers=llama.FAMILY.buffers,
    recurrent=True,
)
