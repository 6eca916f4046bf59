"""The model of a run: the one that it names, if the sizes that it states agree; else one built from these sizes."""

import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.model import Model, build
from meshwise.runs.run import Run, above_zero, amount, whole

SOURCE = "the sizes that a run states"
USUAL_VOCAB = 51200  # GPT-2's vocabulary as Megatron pads it, for tables that state none
HEAD_WIDTH = 128  # width of a head where neither the heads nor those of similar rows are stated
SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "head_dim")
"""Sizes in which a run may differ from the model that it names."""
REQUIRED_SIZES = ("hidden", "layers", "heads", "vocab")  # sizes without which a launch file builds no model


def common_heads(runs: Iterable[Run]) -> dict[int, int]:
    """Return the most common number of heads for each width, for runs that do not state theirs."""
    stated: dict[int, Counter[int]] = {}
    for run in runs:
        if run.stated("hidden", "heads"):
            stated.setdefault(run.whole("hidden"), Counter())[run.whole("heads")] += 1
    return {width: counts.most_common(1)[0][0] for width, counts in stated.items()}


def model_of(run: Run, heads: dict[int, int], assumed: list[str]) -> Model:
    """Return the model of a run. Where it names a known model, that one, unless it states other sizes."""
    named = find.named(run.text("model"), run.number("params"))
    if named and (math.isnan(amount(run, "hidden")) or states_sizes_of(run, named)):
        return named
    if math.isnan(amount(run, "hidden")):
        unknown = f"model {quoted(run.text('model'))} is unknown, and " if run.text("model") else ""
        raise UserError(f"{unknown}{run.word('hidden')} is not stated")
    if "heads" not in run:
        assumed.append("heads not stated: as most rows of that width, or of 128")
    candidates = _candidates(shape_of(run, heads))
    stated = run.number("params")
    return candidates[0] if math.isnan(stated) else min(candidates, key=lambda model: abs(model.params - stated))


def states_sizes_of(run: Run, model: Model) -> bool:
    """Return whether the sizes that a run states are those of the model it names, so that the other facts of the model apply too."""
    sizes = {size: getattr(model.decoder, size) for size in SIZES}
    return all(math.isnan(stated := amount(run, size)) or stated == sizes[size] for size in SIZES)


class Shape(NamedTuple):
    """The sizes that a run states, with what is usual for the others."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    ffn: int
    seq: int
    gated: str  # 'yes', 'no', or '' where it is not stated
    tied: str
    positions: str  # learned, rope or alibi; '' where it is not stated
    biased: bool
    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    dense_layers: int = 0
    groups: tuple[int, int] = (0, 0)  # groups of experts, and those of a token
    latent: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    """Of latent attention: the ranks of queries and of keys and values, and the widths of a head without positions, with them, and of its
    values; zeros for another kind."""
    head_norm: bool = False  # whether queries and keys are normalized, each head by itself


def shape_of(run: Run, heads: dict[int, int]) -> Shape:
    """Return the sizes from which a model is built."""
    hidden, layers = above_zero(run, "hidden"), above_zero(run, "layers")
    n_heads = above_zero(run, "heads", default=heads.get(hidden) or max(1, hidden // HEAD_WIDTH))
    ffn = above_zero(run, "ffn", default=4 * hidden)
    width = whole(run, "expert_ffn", default=0) or ffn
    return Shape(
        hidden=hidden, layers=layers, heads=n_heads, kv_heads=above_zero(run, "kv_heads", default=n_heads),
        head_dim=above_zero(run, "head_dim", default=max(1, hidden // n_heads)), vocab=padded(run) or USUAL_VOCAB, ffn=ffn,
        seq=whole(run, "positions", default=0) or above_zero(run, "seq", default=1024), gated=_yes_or_no(run, "gated"),
        tied=_yes_or_no(run, "tied"), positions=run.text("position_kind"), biased=run.value("biased") is True,
        experts=whole(run, "experts", default=0), top_k=whole(run, "top_k", default=1), expert_ffn=width,
        shared_ffn=whole(run, "shared_ffn", default=0) or whole(run, "shared_experts", default=0) * width,
        dense_layers=whole(run, "dense_layers", default=0),
        groups=(whole(run, "expert_groups", default=0), whole(run, "group_top_k", default=0)), latent=_latent(run),
        head_norm=run.text("qk_norm") == "head",
    )  # fmt: skip


def _latent(run: Run) -> tuple[int, int, int, int, int]:
    q, kv, nope, rope, v = (whole(run, name, default=0) for name in ("q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim"))
    return (q, kv, nope, rope, v) if kv else (0, 0, 0, 0, 0)


def _yes_or_no(run: Run, name: str) -> str:
    return {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no"}.get(run.text(name).lower(), "")


def padded(run: Run) -> int:
    """Return the vocabulary, padded as Megatron does to a multiple of 128 x tp where it is that of a tokenizer; 0 where none is stated."""
    vocab, stated = above_zero(run, "vocab", default=0), run.get("vocab")
    if not vocab or stated is None or stated.how != "derived":
        return vocab
    multiple = 128 * run.whole("tp", 1)
    return -(-vocab // multiple) * multiple


@cache
def _candidates(s: Shape) -> tuple[Model, ...]:
    """Build the models that have these sizes, a GPT and a Llama with and without a tied head, less those that the run rules out."""
    name = f"h{s.hidden}-l{s.layers}-a{s.heads}-f{s.ffn}-v{s.vocab}"
    llama: dict[str, object] = {
        "model_type": "qwen3" if s.head_norm else "llama", "hidden_size": s.hidden, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.ffn,
        "vocab_size": s.vocab,
    }  # fmt: skip
    if s.latent[1] or (s.experts and s.dense_layers):
        return (_sparse(s, llama, name),)
    if s.experts:
        return (_mixture(s, llama, name),)
    gpt = {
        "n_embd": s.hidden,
        "n_layer": s.layers,
        "n_head": s.heads,
        "n_inner": s.ffn,
        "vocab_size": s.vocab,
        "n_positions": s.seq,
    }
    suffix = f"k{s.kv_heads}" + f"-d{s.head_dim}" * (s.head_dim * s.heads != s.hidden)
    llamas = _tied_or_not(s, llama, f"llama-{name}-{suffix}")
    plain = _tied_or_not(s, llama | {"model_type": "starcoder2", "use_bias": s.biased}, f"plain-{name}-{suffix}")
    square = s.kv_heads == s.heads and s.head_dim * s.heads == s.hidden
    if s.positions == "alibi":
        bloom = {"hidden_size": s.hidden, "n_layer": s.layers, "n_head": s.heads, "vocab_size": s.vocab}
        return (build(bloom | {"model_type": "bloom"}, f"bloom-{name}", SOURCE),)
    if s.gated == "yes":
        return llamas
    if s.positions == "learned" and square:
        tied = {"tie_word_embeddings": s.tied == "yes"} if s.tied else {}
        return (build(gpt | {"model_type": "gpt2"} | tied, f"gpt-{name}", SOURCE),)
    if s.gated == "no" or s.positions:
        return plain
    if not square:
        return (*llamas, *plain)
    gpts = (build(gpt | {"model_type": "gpt2"}, f"gpt-{name}", SOURCE),)
    return gpts + llamas if s.ffn == 4 * s.hidden else llamas + gpts


def _tied_or_not(s: Shape, values: dict[str, object], name: str) -> tuple[Model, ...]:
    ways = (s.tied == "yes",) if s.tied else (False, True)
    return tuple(build(values | {"tie_word_embeddings": tied}, name + "-tied" * tied, SOURCE) for tied in ways)


def _sparse(s: Shape, llama: dict[str, object], name: str) -> Model:
    """Build a model with latent attention, or with dense layers before those with experts: DeepSeek's and GLM's."""
    q, kv, nope, rope, v = s.latent
    shared = s.shared_ffn // s.expert_ffn if s.expert_ffn else 0
    sizes: dict[str, object] = {
        "first_k_dense_replace": s.dense_layers if s.experts else s.layers, "n_routed_experts": s.experts or 1,
        "num_experts_per_tok": (s.experts and s.top_k) or 1, "moe_intermediate_size": s.expert_ffn, "n_shared_experts": shared,
        "tie_word_embeddings": s.tied == "yes", "n_group": s.groups[0] or 1, "topk_group": s.groups[1] or s.groups[0] or 1,
    }  # fmt: skip
    if kv:
        widths = {"qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": v}
        sizes |= {"model_type": "deepseek_v3", "kv_lora_rank": kv, "q_lora_rank": q or None, **widths}
    else:
        sizes |= {"model_type": "glm4_moe", "use_qk_norm": s.head_norm}
    kept = {key: value for key, value in llama.items() if not kv or key not in ("head_dim", "num_key_value_heads")}
    label = f"sparse-{name}-e{s.experts}-k{s.top_k}-w{s.expert_ffn}-s{s.shared_ffn}-d{s.dense_layers}-r{kv}"
    return build(kept | sizes, label, SOURCE)


def _mixture(s: Shape, llama: dict[str, object], name: str) -> Model:
    tied: dict[str, object] = {"tie_word_embeddings": s.tied == "yes"} if s.tied else {}
    mixture = tied | {"num_experts": s.experts, "num_local_experts": s.experts, "num_experts_per_tok": s.top_k or 1}
    if s.shared_ffn:
        sizes = {"moe_intermediate_size": s.expert_ffn, "shared_expert_intermediate_size": s.shared_ffn}
        mixture |= {"model_type": "qwen2_moe"} | sizes
    elif s.head_norm:
        mixture |= {"model_type": "qwen3_moe", "moe_intermediate_size": s.expert_ffn}
    else:
        mixture |= {"model_type": "mixtral", "intermediate_size": s.expert_ffn}
    return build(llama | mixture, f"moe-{name}-e{s.experts}-k{s.top_k}-w{s.expert_ffn}-s{s.shared_ffn}", SOURCE)
