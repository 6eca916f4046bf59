"""Parts that families share: the blocks of a decoder, and their assembly into a Body."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meshwise.models.architecture import TensorNames
from meshwise.models.op import Op, Part, Shard, linear, norm, vector

EMBEDDING = "embedding"
HEAD = "head"
MIXTURE = "moe"

PositionKind = Literal["rotary", "learned", "alibi", "none"]

TENSOR_NAMES: TensorNames = {
    "embedding": "token_embd", "positions": "position_embd", "embedding_norm": "token_embd_norm",
    "final_norm": "output_norm", "head": "output",
    "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v", "attention.qkv": "attn_qkv",
    "attention.out": "attn_output", "attention.q_norm": "attn_q_norm", "attention.k_norm": "attn_k_norm",
    "attention.sinks": "attn_sinks",
    "ffw.gate": "ffn_gate", "ffw.up": "ffn_up", "ffw.down": "ffn_down",
    "router": "ffn_gate_inp", "router.shared": "ffn_gate_inp_shexp", "experts.gate": "ffn_gate_exps",
    "experts.up": "ffn_up_exps", "experts.down": "ffn_down_exps", "experts.gate_up": "ffn_gate_up_exps",
    "shared.gate": "ffn_gate_shexp", "shared.up": "ffn_up_shexp", "shared.down": "ffn_down_shexp",
    "router.correction": ("exp_probs_b.bias",),
    "attention.gate": "attn_gate", "attention.q_down": "attn_q_a", "attention.q_up": "attn_q_b",
    "attention.kv_down": "attn_kv_a_mqa", "attention.kv_norm": "attn_kv_a_norm", "attention.kv_up": "attn_kv_b",
    "attention.k_up": "attn_k_b", "attention.v_up": "attn_v_b", "attention.sub_norm": "attn_sub_norm",
    "ffw.sub_norm": "ffn_sub_norm",
    "index.q": "indexer.attn_q_b", "index.k": "indexer.attn_k", "index.k_norm": "indexer.k_norm",
    "index.weights": "indexer.proj",
    "ssm.in": "ssm_in", "ssm.conv": "ssm_conv1d", "ssm.dt_a_d": ("ssm_dt.bias", "ssm_a", "ssm_d"), "ssm.x": "ssm_x",
    "ssm.dt": "ssm_dt", "ssm.a": ("ssm_a",), "ssm.d": ("ssm_d",), "ssm.dt_norm": "ssm_dt_norm", "ssm.b_norm": "ssm_b_norm",
    "ssm.c_norm": "ssm_c_norm", "ssm.norm": "ssm_norm", "ssm.out": "ssm_out",
    "delta.beta_decay": "ssm_ba", "delta.beta": "ssm_beta", "delta.alpha": "ssm_alpha", "delta.conv": "ssm_conv1d",
    "delta.dt_a": ("ssm_dt.bias", "ssm_a"), "delta.gate": "attn_gate", "delta.norm": "ssm_norm", "delta.out": "ssm_out",
    "delta.qkv": "attn_qkv",
    "head.bias": ("output.bias",),
}  # fmt: skip
"""llama.cpp's names for the weights of the blocks below. A family adds those of its own Ops in `tensor_names`."""


@dataclass(frozen=True)
class Block:
    """The operations of one mixer or feed-forward of one layer. Blocks with the same name are equal."""

    name: str
    ops: tuple[Op, ...]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The sizes and variants that every decoder has, whatever its config calls them."""

    hidden: int
    layers: int
    vocab: int
    context: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    tied: bool = False
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    norm_bias: bool = False  # LayerNorm with a bias, instead of a gain only
    norms: int = 2  # norms of hidden width per layer
    affine: bool = True  # whether the norms have gains
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: Literal["", "head", "all"] = ""  # norm of queries and keys: none, per head, or over all heads together
    positions: int = 0  # rows of a learned position table
    position_kind: PositionKind = "rotary"
    """How layers know the order of tokens: rotated queries and keys (in some layers at least), a learned table, biased scores, nothing."""
    embedded: int = 0  # width of the vocabulary tables if it differs from `hidden` (OPT 350M)
    capped: bool = False  # attention scores have a soft cap: cap x tanh(score / cap)
    expert_reach: float = 1.0  # fraction of the expert groups that the experts of one token may come from (DeepSeek-V3: 4 of 8)
    windows: tuple[int, ...] = ()  # sliding window of each layer; 0: full attention. Empty: full attention in every layer.


@dataclass(frozen=True, kw_only=True)
class Body:
    """A model as a family reads it: the blocks of each layer, and all Ops with their counts."""

    decoder: Decoder
    layers: tuple[tuple[str, ...], ...]
    ops: tuple[tuple[str, Op], ...]  # each Op with the name of its block: one in `layers`, or 'embedding' or 'head'
    extra: tuple[tuple[str, int], ...] = ()  # hyperparameters beyond a plain decoder's, for the table
    family: str = ""  # the kind of model, where one module reads several: 'dense', 'moe'; else the module's name


def attention(d: Decoder, window: int = 0, *, chunked: bool = False, sinks: bool = False, value_dim: int = 0) -> Block:
    """Return multi-head or grouped-query attention. `value_dim`: the size of a value where it differs from that of a key (MiMo-V2)."""
    wide, narrow = d.heads * d.head_dim, d.kv_heads * d.head_dim
    value = value_dim or d.head_dim
    qk = {"": (), "head": (d.head_dim, d.head_dim), "all": (wide, narrow)}[d.qk_norm]
    scores = Op(
        name="attention.scores", part="attention", kind="attention", m=d.heads, n=value, k=d.head_dim, shard="heads",
        cache=d.kv_heads * (d.head_dim + value), window=window, chunked=chunked,
    )  # fmt: skip
    ops = [
        linear("attention.q", "attention", wide, d.hidden, "column", bias=d.qkv_bias),
        linear("attention.k", "attention", narrow, d.hidden, "kv", bias=d.qkv_bias),
        linear("attention.v", "attention", d.kv_heads * value, d.hidden, "kv", bias=d.qkv_bias),
        scores,
        linear("attention.out", "attention", d.hidden, d.heads * value, "row", bias=d.out_bias),
        *(norm(f"attention.{which}_norm", width) for which, width in zip("qk", qk, strict=False)),
    ]
    if sinks:
        ops.append(vector("attention.sinks", "attention", d.heads, "heads"))
    name = f"attention.{'chunk' if chunked else 'window'}{window}" if window else "attention"
    return Block(name, tuple(ops))


def attentions(d: Decoder) -> list[Block]:
    """Return the attention block of every layer, with its window."""
    kinds = {window: attention(d, window) for window in set(d.windows or (0,))}
    return [kinds[window] for window in d.windows or (0,) * d.layers]


def mlp(d: Decoder, ffn: int, *, name: str = "ffw", part: Part = "ffw") -> Block:
    """Return a feed-forward block: up and down projections, and a gate if the family has one (SwiGLU, GeGLU)."""
    return Block(name, tuple(_mlp_ops(d, ffn, name, part)))


def _mlp_ops(d: Decoder, ffn: int, name: str, part: Part) -> list[Op]:
    up: list[tuple[str, Shard]] = [("gate", "column"), ("up", "column")] if d.gated else [("up", "column")]
    return [
        *(linear(f"{name}.{which}", part, ffn, d.hidden, shard, bias=d.ffn_bias) for which, shard in up),
        linear(f"{name}.down", part, d.hidden, ffn, "row", bias=d.ffn_bias),
    ]


def experts(
    d: Decoder, number: int, active: int, ffn: int, *, shared: int = 0, shared_gate: bool = False, bias: bool = False
) -> Block:
    """Return a mixture of experts: a router, `number` feed-forwards of which a token uses `active`, and one of width `shared` for all.
    `bias` applies to the router and the experts; the shared one has a bias if every other feed-forward has."""
    routed = replace(d, ffn_bias=bias)
    ops = [linear("router", "router", number, d.hidden, "", bias=bias)]
    if shared_gate:
        ops.append(linear("router.shared", "router", 1, d.hidden, ""))
    ops += [replace(op, m=active / number, count=number, expert=True) for op in _mlp_ops(routed, ffn, "experts", "experts")]
    if shared:
        ops += _mlp_ops(d, shared, "shared", "ffw")
    return Block(MIXTURE, tuple(ops))


def assemble(
    d: Decoder, mixers: Sequence[Block], ffws: Sequence[Block | None], *, extra: tuple[tuple[str, int], ...] = ()
) -> Body:
    """Assemble layers of one mixer and one feed-forward each, between the embedding and the head."""
    layers = tuple(tuple(block.name for block in pair if block) for pair in zip(mixers, ffws, strict=True))
    blocks = {block.name: block for pair in zip(mixers, ffws, strict=True) for block in pair if block}
    times = Counter(name for layer in layers for name in layer)
    inner = [(name, replace(op, count=op.count * times[name])) for name, block in blocks.items() for op in block.ops]
    if d.norms and d.affine:
        # Every layer has the same norms, so they are counted with its mixer.
        mixer_times = Counter(block.name for block in mixers)
        inner += [(name, replace(layer_norm(d), count=d.norms * n)) for name, n in mixer_times.items()]
    return Body(decoder=d, layers=layers, ops=(*embedding_ops(d), *inner, *head_ops(d)), extra=extra)


def layer_norm(d: Decoder) -> Op:
    """Return one norm of hidden width."""
    return norm("layer_norm", d.hidden, bias=d.norm_bias)


def embedding_ops(d: Decoder) -> list[tuple[str, Op]]:
    width = d.embedded or d.hidden
    ops = [Op(name="embedding", part="vocabulary", kind="lookup", n=d.vocab, k=width, params=d.vocab * width, shard="vocab")]
    if d.positions:
        size = d.positions * d.hidden
        ops.append(Op(name="positions", part="positions", kind="lookup", n=d.positions, k=d.hidden, params=size))
    if d.embedded and d.embedded != d.hidden:
        ops.append(linear("embedding.project", "vocabulary", d.hidden, width, ""))
    if d.embedding_norm:
        ops.append(norm("embedding_norm", d.hidden, bias=d.norm_bias))
    return [(EMBEDDING, op) for op in ops]


def head_ops(d: Decoder) -> list[tuple[str, Op]]:
    width = d.embedded or d.hidden
    ops: list[Op] = []
    if d.final_norm and d.affine:
        ops.append(norm("final_norm", d.hidden, bias=d.norm_bias))
    if d.embedded and d.embedded != d.hidden:
        ops.append(linear("head.project", "vocabulary", width, d.hidden, ""))
    head = linear("head", "vocabulary", d.vocab, width, "vocab")
    ops.append(replace(head, params=0) if d.tied else head)
    return [(HEAD, op) for op in ops]
