"""The model of a row: a preset, a Hugging Face id or a config.json that the row names, or one built from the sizes that it states."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.model import Model, build
from meshwise.runs.table import Row, above_zero, number, whole

SOURCE = "a table of measurements"
EXPERTS = ("n_experts", "top_k", "d_expert", "shared_experts")
"""Columns of a mixture of experts: experts of a layer, experts of a token, width of an expert (default: d_ff), experts that every token
uses."""


def common_heads(rows: Iterable[Row]) -> dict[int, int]:
    """Return the most common number of heads for each width, for rows that do not state theirs."""
    stated: dict[int, Counter[int]] = {}
    for row in rows:
        width, heads = row.get("d_model") or row.get("d_model_derived") or "", row.get("n_heads", "")
        if width.isdecimal() and heads.isdecimal():
            stated.setdefault(int(width), Counter())[int(heads)] += 1
    return {width: counts.most_common(1)[0][0] for width, counts in stated.items()}


def model_of(row: Row, heads: dict[int, int], assumed: list[str]) -> Model:
    """Return the model of a row. Where it names a known model, that one, unless it states other sizes."""
    named = _named(row.get("model", ""))
    if named and (math.isnan(number(row, "d_model", "d_model_derived")) or _states_sizes_of(row, named)):
        return named
    if math.isnan(number(row, "d_model", "d_model_derived")):
        unknown = f"model {quoted(row['model'])} is unknown, and " if row.get("model") else ""
        raise UserError(f"{unknown}d_model is not stated")
    hidden, layers = above_zero(row, "d_model", "d_model_derived"), above_zero(row, "n_layers", "n_layers_derived")
    if math.isnan(number(row, "n_heads")):
        assumed.append("heads not stated: as most rows of that width, or of 128")
    n_heads = above_zero(row, "n_heads", default=heads.get(hidden) or max(1, hidden // 128))
    kv_heads, vocab = above_zero(row, "n_kv_heads", default=n_heads), above_zero(row, "vocab", default=51200)
    head_dim = above_zero(row, "head_dim", default=max(1, hidden // n_heads))
    ffn, seq = above_zero(row, "d_ff", default=4 * hidden), above_zero(row, "seq_len")
    experts = (whole(row, column, default=0) for column in EXPERTS)
    shape = Shape(hidden, layers, n_heads, kv_heads, head_dim, vocab, ffn, seq, row.get("gated", "").lower(), *experts)
    candidates = _candidates(shape)
    stated = number(row, "params_b") * 1e9
    return candidates[0] if math.isnan(stated) else min(candidates, key=lambda model: abs(model.params - stated))


@cache
def _named(text: str) -> Model | None:
    """Return the model that a text names: 'Llama-3-70B', 'DeepSeekV3 (w/o MTP)', 'meta-llama/Llama-3.1-8B', a path; None if unknown."""
    for name in dict.fromkeys((text, re.sub(r"\(.*?\)", "", text).strip(), text.rpartition("/")[2])):
        if name and (find.find_preset(name) or name.endswith(".json")):
            return find.find_model(name)
    return None


def _states_sizes_of(row: Row, model: Model) -> bool:
    """Return whether the sizes that a row states are those of the model it names, so that the other facts of the model apply too."""
    d = model.decoder
    sizes = {
        "d_model": d.hidden,
        "n_layers": d.layers,
        "n_heads": d.heads,
        "n_kv_heads": d.kv_heads,
        "d_ff": d.ffn,
        "vocab": d.vocab,
        "head_dim": d.head_dim,
    }
    return all(math.isnan(stated := number(row, column)) or stated == size for column, size in sizes.items())


class Shape(NamedTuple):
    """The sizes that a row states."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    ffn: int
    seq: int
    gated: str
    experts: int
    active: int
    expert_ffn: int
    shared: int


@cache
def _candidates(shape: Shape) -> tuple[Model, ...]:
    """Build a GPT of these sizes, and a Llama with and without a tied head. Tables seldom state gate and tying; the caller picks by
    parameter count."""
    s = shape
    name = f"h{s.hidden}-l{s.layers}-a{s.heads}-f{s.ffn}-v{s.vocab}"
    llama: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "intermediate_size": s.ffn,
        "vocab_size": s.vocab,
    }
    if s.experts:
        return (_mixture(s, llama, name),)
    gpt = {
        "model_type": "gpt2",
        "n_embd": s.hidden,
        "n_layer": s.layers,
        "n_head": s.heads,
        "n_inner": s.ffn,
        "vocab_size": s.vocab,
        "n_positions": s.seq,
    }
    suffix = f"k{s.kv_heads}" + f"-d{s.head_dim}" * (s.head_dim * s.heads != s.hidden)
    llamas = _tied_or_not(llama, f"llama-{name}-{suffix}")
    plain = _tied_or_not(llama | {"model_type": "starcoder2", "use_bias": False}, f"plain-{name}-{suffix}")
    if s.gated in ("no", "false", "0"):
        return plain
    if s.gated in ("yes", "true", "1"):
        return llamas
    if s.kv_heads != s.heads or s.head_dim * s.heads != s.hidden:
        return (*llamas, *plain)
    gpts = (build(gpt, f"gpt-{name}", SOURCE),)
    return gpts + llamas if s.ffn == 4 * s.hidden else llamas + gpts


def _tied_or_not(values: dict[str, object], name: str) -> tuple[Model, ...]:
    return tuple(build(values | {"tie_word_embeddings": tied}, name + "-tied" * tied, SOURCE) for tied in (False, True))


def _mixture(s: Shape, llama: dict[str, object], name: str) -> Model:
    width = s.expert_ffn or s.ffn
    mixture: dict[str, object] = {
        "num_experts": s.experts,
        "num_local_experts": s.experts,
        "num_experts_per_tok": s.active or 1,
    }
    if s.shared:
        sizes = {"moe_intermediate_size": width, "shared_expert_intermediate_size": s.shared * width}
        mixture |= {"model_type": "qwen2_moe"} | sizes
    else:
        mixture |= {"model_type": "mixtral", "intermediate_size": width}
    return build(llama | mixture, f"moe-{name}-e{s.experts}-k{s.active}-w{width}-s{s.shared}", SOURCE)
