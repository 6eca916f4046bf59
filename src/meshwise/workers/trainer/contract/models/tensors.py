"""Names and shapes of a decoder's parameters, and how HF's files store them. No torch.

A model has the same parameter names in every family: Llama's. A family's `Storage` says under which names, in which order and packed into
which tensors HF stores them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from meshwise.workers.trainer.contract.models.description import EMBEDDING, Description, Experts, Latent, Layer

Shapes = dict[str, tuple[int, ...]]
HEAD = "lm_head.weight"
LAYERS = "model.layers"


@dataclass(frozen=True)
class Packed:
    """Several projections in one stored matrix: rows one below another, or `by_head` (q, k and v of head 0, then of head 1)."""

    parts: tuple[str, ...]
    by_head: bool = False


@dataclass(frozen=True)
class Storage:
    """Where HF stores the parameters. Names are without `.weight` and `.bias`; those of a layer are without its prefix."""

    layers: str = LAYERS
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """HF's names that differ from the model's; of a single tensor, with its last word."""
    packed: Mapping[str, Packed] = field(default_factory=dict[str, Packed])
    """Stored matrices that hold several parameters, by HF's name."""
    transposed: tuple[str, ...] = ()  # endings of HF's names of matrices that are stored inputs first
    experts: str = "mlp.experts"
    expert_names: Mapping[str, str] = field(default_factory=lambda: {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"})
    """HF's names of an expert's matrices."""


@dataclass(frozen=True)
class Part:
    """One parameter in a stored tensor."""

    parameter: str
    shape: tuple[int, ...]  # shape of the parameter, or of one matrix of it if `index` is given
    index: int | None = None  # the matrix of a stack of experts
    order: tuple[int, ...] = ()  # features of each head in the model's order, as indices of HF's; empty: the same
    first: int = 0  # first row of the part in its parameter, if other parts hold the other rows


@dataclass(frozen=True)
class Stored:
    """A tensor of HF's files, and the parameters in it."""

    parts: tuple[Part, ...]
    head_dim: int = 0  # features of a head, if the parts alternate head by head; 0: they follow each other
    transposed: bool = False  # whether it is stored inputs first

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        whole = (sum(part.shape[0] for part in self.parts), *first[1:])
        return whole[::-1] if self.transposed else whole


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int, bias: bool = True) -> Shapes:
    """Return the shapes of a norm with a gain, and a bias unless it has none."""
    return {f"{name}.weight": (width,)} | ({f"{name}.bias": (width,)} if bias else {})


def ffn_shapes(d: Description) -> Shapes:
    gate = linear("mlp.gate_proj", d.ffn, d.hidden, d.ffn_bias) if d.gated else {}
    return gate | linear("mlp.up_proj", d.ffn, d.hidden, d.ffn_bias) | linear("mlp.down_proj", d.hidden, d.ffn, d.ffn_bias)


def expert_shapes(d: Description, e: Experts) -> Shapes:
    """Return the parameters of a feed-forward of experts. Those of all experts are stacked, and an expert's gate is above its up."""
    found: Shapes = {"mlp.router.weight": (e.count, d.hidden)} | ({"mlp.router.balance": (e.count,)} if e.biased else {})
    found |= {"mlp.experts.gate_up_proj": (e.count, 2 * e.width, d.hidden), "mlp.experts.down_proj": (e.count, d.hidden, e.width)}
    for name, rows, columns in (("gate", e.shared, d.hidden), ("up", e.shared, d.hidden), ("down", d.hidden, e.shared)):
        found |= linear(f"mlp.shared_experts.{name}_proj", rows, columns, False) if e.shared else {}
    return found


def latent_shapes(d: Description, latent: Latent) -> Shapes:
    """Return the parameters of latent attention."""
    head, inputs = latent.still + latent.rotated, latent.query_rank or d.hidden
    found: Shapes = {}
    if latent.query_rank:
        found |= linear("self_attn.q_a_proj", latent.query_rank, d.hidden, d.qkv_bias)
        found |= norm("self_attn.q_a_norm", latent.query_rank, False)
    found |= linear(f"self_attn.{'q_b_proj' if latent.query_rank else 'q_proj'}", d.heads * head, inputs, False)
    found |= linear("self_attn.kv_a_proj", latent.rank + latent.rotated, d.hidden, d.qkv_bias)
    found |= norm("self_attn.kv_a_norm", latent.rank, False)
    found |= linear("self_attn.kv_b_proj", d.heads * (latent.still + latent.value), latent.rank, False)
    return found | linear("self_attn.o_proj", d.hidden, d.heads * latent.value, d.out_bias)


def norm_names(d: Description) -> tuple[str, ...]:
    """Return the norms of a layer: before attention and feed-forward, and after them."""
    before = ("input_layernorm", "post_attention_layernorm") if d.before else ()
    return before + (("attention_out_norm", "mlp_out_norm") if d.after else ())


def layer_shapes(d: Description, layer: Layer) -> Shapes:
    """Return the parameters of a layer, by name within it."""
    found: Shapes = {}
    for name in norm_names(d):
        found |= norm(name, d.hidden, d.norm == "layer")
    found |= latent_shapes(d, d.latent) if d.latent else attention_shapes(d)
    return found | (expert_shapes(d, d.experts) if layer.mixed and d.experts else ffn_shapes(d))


def attention_shapes(d: Description) -> Shapes:
    queries, keys = d.heads * d.head_dim, d.kv_heads * d.head_dim
    found: Shapes = {}
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        found |= linear(f"self_attn.{name}_proj", rows, d.hidden, d.qkv_bias)
    found |= linear("self_attn.o_proj", d.hidden, queries, d.out_bias)
    widths = {"head": (d.head_dim, d.head_dim), "all": (queries, keys)}.get(d.qk_norm, ())
    for name, width in zip("qk", widths, strict=False):
        found |= norm(f"self_attn.{name}_norm", width, False)
    return found


def outer_shapes(d: Description) -> Shapes:
    """Return the parameters outside the layers."""
    biased = d.norm == "layer"
    found: Shapes = {EMBEDDING: (d.vocab, d.hidden)}
    found |= {"model.embed_positions.weight": (d.positions, d.hidden)} if d.positions else {}
    found |= norm("model.embed_norm", d.hidden, biased) if d.embedding_norm else {}
    found |= norm("model.norm", d.hidden, biased)
    return found if d.tied else found | {HEAD: (d.vocab, d.hidden)}


def stored_tensors(d: Description, storage: Storage) -> dict[str, Stored]:
    """Return every tensor of HF's files by name, with the parameters it holds."""
    found = dict(_stored(outer_shapes(d), storage, {}, d.head_dim))
    for index, layer in enumerate(d.layers):
        prefix, theirs = f"{LAYERS}.{index}.", f"{storage.layers}.{index}."
        for name, stored in _stored(layer_shapes(d, layer), storage, _orders(d, layer), d.head_dim):
            parts = tuple(replace(part, parameter=prefix + part.parameter) for part in stored.parts)
            found[theirs + name] = replace(stored, parts=parts)
    return found


def _orders(d: Description, layer: Layer) -> dict[str, tuple[int, ...]]:
    """Return the order of rows in modules that produce queries and keys, repeated head by head."""
    if layer.rotary is None:
        return {}
    rotary, latent = layer.rotary, d.latent
    if latent is None:
        order = feature_order(d.head_dim, rotary.dim, rotary.interleaved)
        return {f"self_attn.{name}": order for name in ("q_proj", "k_proj", "q_norm", "k_norm")}
    order = feature_order(latent.rotated, latent.rotated, rotary.interleaved)

    def after(still: int) -> tuple[int, ...]:
        return (*range(still), *(still + place for place in order)) if order else ()

    queries = {f"self_attn.{name}": after(latent.still) for name in ("q_b_proj", "q_proj")}
    return queries | {"self_attn.kv_a_proj": after(latent.rank)}


def _stored(
    shapes: Shapes, storage: Storage, orders: Mapping[str, tuple[int, ...]], head_dim: int
) -> Iterator[tuple[str, Stored]]:
    """Yield the stored tensors of some parameters; packed ones where the last of their parts is."""
    within = {part: (name, packed) for name, packed in storage.packed.items() for part in packed.parts}
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        if len(shape) == 3:
            yield from _stored_experts(name, shape, storage)
            continue
        if name in storage.names:
            yield storage.names[name], Stored((Part(name, shape),))
            continue
        if module not in within:
            theirs = f"{storage.names.get(module, module)}.{kind}"
            yield theirs, Stored((Part(name, shape, None, orders.get(module, ())),), 0, _turned(theirs, shape, storage))
            continue
        theirs, packed = within[module]
        if module == packed.parts[-1]:
            parts = (Part(f"{part}.{kind}", shapes[f"{part}.{kind}"], None, orders.get(part, ())) for part in packed.parts)
            turned = _turned(f"{theirs}.{kind}", shape, storage)
            yield f"{theirs}.{kind}", Stored(tuple(parts), head_dim if packed.by_head else 0, turned)


def _stored_experts(name: str, shape: tuple[int, ...], storage: Storage) -> Iterator[tuple[str, Stored]]:
    """Yield the matrices of every expert, which HF stores one by one."""
    count, rows, columns = shape
    kinds = ("gate", "up") if name.endswith("gate_up_proj") else ("down",)
    each = rows // len(kinds)
    for index in range(count):
        for place, kind in enumerate(kinds):
            part = Part(name, (each, columns), index, (), place * each)
            yield f"{storage.experts}.{index}.{storage.expert_names[kind]}.weight", Stored((part,))


def _turned(name: str, shape: tuple[int, ...], storage: Storage) -> bool:
    return len(shape) == 2 and name.endswith(storage.transposed)


def feature_order(head_dim: int, rotated: int, interleaved: bool) -> tuple[int, ...]:
    """Return the order of a head's features in which the model rotates pairs (i, i + head_dim / 2), as indices of HF's order. HF rotates
    the first `rotated` features: pairs (i, i + rotated / 2), or neighbours if interleaved. Scores do not depend on the order of features,
    as long as queries and keys have the same. Empty if both orders are the same."""
    half, pairs = head_dim // 2, rotated // 2
    first = [2 * i if interleaved else i for i in range(pairs)]
    second = [2 * i + 1 if interleaved else i + pairs for i in range(pairs)]
    still = list(range(rotated, head_dim))
    order = tuple(first + still[: half - pairs] + second + still[half - pairs :])
    return () if order == tuple(range(head_dim)) else order
