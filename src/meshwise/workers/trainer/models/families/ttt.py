"""TTT-Linear and TTT-MLP (arXiv:2407.04620): Llama with attention replaced by a small model per head that learns while it reads."""

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.keys import llama_like
from meshwise.workers.trainer.contract.models.registry import Config, Family
from meshwise.workers.trainer.contract.models.tensors import LAYERS, Part, Shapes, Stored, ffn_shapes, linear, norm, outer_shapes

LEARNERS = ("linear", "mlp")


def describe(config: Config) -> Description:
    return llama_like(config, tied=True)


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
    return ""


def stored(config: Config) -> dict[str, Stored]:
    """Return the tensors of a file: the model's own parameters."""
    d, each = describe(config), _layer_shapes(config)
    layers = {f"{LAYERS}.{i}.{name}": shape for i in range(len(d.layers)) for name, shape in each.items()}
    return {name: Stored((Part(name, shape),)) for name, shape in (outer_shapes(d) | layers).items()}


def _layer_shapes(config: Config) -> Shapes:
    d, (learner, tokens) = describe(config), learner_of(config)
    dim = d.hidden // max(1, d.heads)
    width = 4 * dim if learner == "mlp" else dim
    block: Shapes = {"ttt_norm_weight": (d.heads, dim), "ttt_norm_bias": (d.heads, dim), "learnable_token_idx": (tokens,)}
    block |= {"learnable_ttt_lr_weight": (d.heads, 1, d.hidden), "learnable_ttt_lr_bias": (d.heads, 1)}
    block |= {"W1": (d.heads, dim, width), "b1": (d.heads, 1, width)}
    block |= {"W2": (d.heads, width, dim), "b2": (d.heads, 1, dim)} if learner == "mlp" else {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        block |= linear(name, d.hidden, d.hidden, False)
    block |= norm("post_norm", d.hidden)
    layer: Shapes = {"seq_norm.weight": (d.hidden,), "ffn_norm.weight": (d.hidden,)} | ffn_shapes(d)
    return layer | {f"seq_modeling_block.{name}": shape for name, shape in block.items()}


FAMILY = Family(model_types=("ttt",), describe=describe, package="ttt", stored=stored, unsupported=unsupported, recurrent=True)
