"""Test-time training: TTT-Linear and TTT-MLP (arXiv:2407.04620), with the config keys of the authors' PyTorch code."""

from meshwise.models.config import Config
from meshwise.models.families.blocks import Block, Body, Decoder, assemble, mlp
from meshwise.models.op import Op, linear, norm, vector

model_types = frozenset({"ttt"})
_MIXER = {f"ttt.{name}": f"{module}_proj" for name, module in {"q": "q", "k": "k", "v": "v", "gate": "g", "out": "o"}.items()}
MODULES = _MIXER | {f"ffw.{name}": f"{name}_proj" for name in ("gate", "up", "down")}


def module_names(model_type: str) -> dict[str, str]:
    """Return the names of linear layers in the authors' PyTorch code by Op."""
    return MODULES


def read(config: Config) -> Body:
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    config.require_multiple(hidden, heads, "hidden_size must be a multiple of num_attention_heads")
    convolved = config.flag("pre_conv", False)
    d = Decoder(
        hidden=hidden, layers=config.layers("num_hidden_layers"), vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", default=2048), heads=heads, kv_heads=heads,
        head_dim=hidden // heads, ffn=config.whole("intermediate_size"), tied=config.flag("tie_word_embeddings", True),
        norms=3 if convolved else 2,
    )  # fmt: skip
    extra = (("TTT mini-batch", config.whole("mini_batch_size", default=16)),)
    return assemble(d, [mixer(d, config, convolved)] * d.layers, [mlp(d, d.ffn)] * d.layers, extra=extra)


def mixer(d: Decoder, config: Config, convolved: bool) -> Block:
    """Return a TTT block: projections as in attention, and between them a small model per head that learns from 16 tokens at a time."""
    kind = config.choice("ttt_layer_type", ("linear", "mlp"), "linear")
    batch = config.whole("mini_batch_size", default=16)
    kernel = config.whole("conv_kernel", default=4, most=4096)
    shared = config.flag("share_qk", False)
    projections = ["q", "v"] if shared else ["q", "k", "v"]
    if config.flag("use_gate", False):
        projections.append("gate")
    convs = int(convolved) + 2 * shared
    ops = [linear(f"ttt.{name}", "ttt", d.hidden, d.hidden, "column") for name in projections]
    if convs:
        size = convs * d.hidden
        conv = Op(
            name="ttt.conv", part="ttt", kind="conv", n=size, k=kernel, params=size * (kernel + 1), shard="column",
            state=size * kernel,
        )  # fmt: skip
        ops.append(conv)
    ops += [
        linear("ttt.learning_rate", "ttt", d.heads, d.hidden, "column", bias=True),
        vector("ttt.token_idx", "ttt", batch),
        *(_inner_linear(d, batch) if kind == "linear" else _inner_mlp(d, batch)),
        norm("ttt.inner_norm", d.head_dim, bias=True, copies=d.heads),
        norm("ttt.post_norm", d.hidden, bias=True),
        linear("ttt.out", "ttt", d.hidden, d.hidden, "row"),
    ]
    return Block(f"ttt.{kind}", tuple(ops))


def _scan(d: Decoder, name: str, times: int, n: int, k: int, params: int = 0, state: int = 0, serial: int = 0) -> Op:
    """Return `times` products per head; `params` and `state` are per head."""
    heads = d.heads
    return Op(
        name=f"ttt.{name}", part="ttt", kind="scan", m=times * heads, n=n, k=k, params=heads * params, shard="heads",
        state=heads * state, serial=serial,
    )  # fmt: skip


def _inner_linear(d: Decoder, batch: int) -> list[Op]:
    """Return K W, Q W and K'G with the state W (f x f), and Q K' and its product with G within a mini-batch of `batch` tokens. Worked: f
    = 64, batch 16: 2 (3 x 64 x 64 + 2 x 16 x 64) = 28,672 FLOPs per token and head, 4.1M over 12 x 12 heads."""
    f = d.head_dim
    weights = f * f + f
    # A decoder keeps W and b and, until the mini-batch is complete, the sum of their gradients: twice the weights.
    state = _scan(d, "state", 3, f, f, params=weights, state=2 * weights, serial=batch)
    return [state, _scan(d, "within_batch", 2, f, batch)]


def _inner_mlp(d: Decoder, batch: int) -> list[Op]:
    """Return seven products with W1 or W2 (f x 4f): both layers for K and for Q, G2 W2' and the two updates; and four within the batch."""
    f = d.head_dim
    weights = 8 * f * f + 5 * f
    return [
        _scan(d, "state", 7, 4 * f, f, params=weights, state=2 * weights, serial=batch),
        _scan(d, "within_batch", 2, f, batch),  # Q K' and A2 G2
        _scan(d, "within_batch_wide", 2, 4 * f, batch),  # A1 G1 and X2b X2'
    ]
