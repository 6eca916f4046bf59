"""The weights that a model has, by HF's names and in HF's shapes, from its config.json; and whether files hold them. No torch here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwise.workers.trainer.hf.safetensors import Stored, Unfit, contents, shown
from meshwise.workers.trainer.settings import Sizes, learner_of

Shapes = dict[str, tuple[int, ...]]

READ = ("F64", "F32", "F16", "BF16")
"""Types that the trainer reads, by the names of the format."""
NO_WEIGHTS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Endings of what older files of Llama and GPT-2 hold beside weights: tables that the models compute."""
CLASSES = {"llama": "LlamaForCausalLM", "bloom": "BloomForCausalLM", "gpt2": "GPT2LMHeadModel"}
"""Of transformers, which has none for TTT."""
HEAD = "lm_head.weight"
TRUNK = "transformer."
"""Some of BLOOM's and GPT-2's files leave it out of their names."""


def shapes(config: Mapping[str, Any]) -> Shapes:
    """Every weight that a file of this model must have; a head that is tied to the embedding has none of its own."""
    kind, sizes = config["model_type"], Sizes.of(config)
    before, layer, behind = {"llama": _llama, "bloom": _bloom, "gpt2": _gpt2, "ttt": _ttt}[kind](config, sizes)
    trunk = "transformer.h" if kind in ("bloom", "gpt2") else "model.layers"
    layers = {f"{trunk}.{i}.{name}": shape for i in range(sizes.layers) for name, shape in layer.items()}
    return before | layers | behind | ({} if sizes.tied else {HEAD: (sizes.vocab, sizes.hidden)})


Parts = tuple[Shapes, Shapes, Shapes]
"""Before the layers, of one layer, and behind them."""


def _llama(config: Mapping[str, Any], m: Sizes) -> Parts:
    dim = int(config.get("head_dim") or m.hidden // m.heads)
    attention, ffw = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    layer = {"input_layernorm.weight": (m.hidden,), "post_attention_layernorm.weight": (m.hidden,)}
    layer |= _linear("self_attn.q_proj", m.heads * dim, m.hidden, attention)
    layer |= _linear("self_attn.k_proj", m.kv_heads * dim, m.hidden, attention)
    layer |= _linear("self_attn.v_proj", m.kv_heads * dim, m.hidden, attention)
    layer |= _linear("self_attn.o_proj", m.hidden, m.heads * dim, attention)
    layer |= _gated(m, ffw)
    return {"model.embed_tokens.weight": (m.vocab, m.hidden)}, layer, {"model.norm.weight": (m.hidden,)}


def _bloom(config: Mapping[str, Any], m: Sizes) -> Parts:
    embedding = {"transformer.word_embeddings.weight": (m.vocab, m.hidden)}
    layer = _norm("input_layernorm", m.hidden) | _norm("post_attention_layernorm", m.hidden)
    layer |= _linear("self_attention.query_key_value", 3 * m.hidden, m.hidden)
    layer |= _linear("self_attention.dense", m.hidden, m.hidden)
    layer |= _linear("mlp.dense_h_to_4h", 4 * m.hidden, m.hidden)
    layer |= _linear("mlp.dense_4h_to_h", m.hidden, 4 * m.hidden)
    return embedding | _norm("transformer.word_embeddings_layernorm", m.hidden), layer, _norm("transformer.ln_f", m.hidden)


def _gpt2(config: Mapping[str, Any], m: Sizes) -> Parts:
    embedding = {"transformer.wte.weight": (m.vocab, m.hidden), "transformer.wpe.weight": (m.positions, m.hidden)}
    layer = _norm("ln_1", m.hidden) | _norm("ln_2", m.hidden)
    for name, inputs, outputs in (
        ("attn.c_attn", m.hidden, 3 * m.hidden),
        ("attn.c_proj", m.hidden, m.hidden),
        ("mlp.c_fc", m.hidden, m.ffn),
        ("mlp.c_proj", m.ffn, m.hidden),
    ):
        layer |= {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}  # HF has inputs first
    return embedding, layer, _norm("transformer.ln_f", m.hidden)


def _ttt(config: Mapping[str, Any], m: Sizes) -> Parts:
    learner, tokens = learner_of(config)
    block, dim = "seq_modeling_block", m.hidden // m.heads
    width = 4 * dim if learner == "mlp" else dim
    own: Shapes = {"ttt_norm_weight": (m.heads, dim), "ttt_norm_bias": (m.heads, dim), "learnable_token_idx": (tokens,)}
    own |= {"learnable_ttt_lr_weight": (m.heads, 1, m.hidden), "learnable_ttt_lr_bias": (m.heads, 1)}
    own |= {"W1": (m.heads, dim, width), "b1": (m.heads, 1, width)}
    own |= {"W2": (m.heads, width, dim), "b2": (m.heads, 1, dim)} if learner == "mlp" else {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        own |= _linear(name, m.hidden, m.hidden, False)
    own |= _norm("post_norm", m.hidden)
    layer = {"seq_norm.weight": (m.hidden,), "ffn_norm.weight": (m.hidden,)} | _gated(m, False)
    layer |= {f"{block}.{name}": shape for name, shape in own.items()}
    return {"model.embed_tokens.weight": (m.vocab, m.hidden)}, layer, {"model.norm.weight": (m.hidden,)}


def _gated(m: Sizes, bias: bool) -> Shapes:
    gate, up = (_linear(f"mlp.{name}_proj", m.ffn, m.hidden, bias) for name in ("gate", "up"))
    return gate | up | _linear("mlp.down_proj", m.hidden, m.ffn, bias)


def _linear(name: str, outputs: int, inputs: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def config_json(config: Mapping[str, Any], dtype: str) -> str:
    """The config.json that transformers opens saved weights with: the model's own, with its class and the type of its numbers."""
    name = CLASSES.get(config["model_type"])
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "dtype")}
    made = ({"architectures": [name]} if name else {}) | {"torch_dtype": dtype}
    return json.dumps(kept | made, indent=2) + "\n"


def key_of(name: str, found: Mapping[str, Stored]) -> str:
    """What a file calls a weight of this name; nothing where it has none."""
    return next((key for key in (name, name.removeprefix(TRUNK)) if key in found), "")


def check(config: Mapping[str, Any], label: str, given: Path) -> None:
    """Refuse files that do not hold the weights of this model, each once, in its shape and a type that is read; or hold others."""
    found, want = contents(given), shapes(config)
    missing = [name for name in want if not key_of(name, found)]
    for name, shape in want.items():
        key = key_of(name, found)
        if not key:
            first = next(iter(found), "nothing")
            told = f"{len(missing)} of {len(want)} are missing, and it begins with {first}"
            raise Unfit(f"{given}: no {name} in it, which {label} has ({told})")
        one = found[key]
        if one.shape != shape:
            raise Unfit(f"{one.path}: {key} is {shown(one.shape)}, and {label}'s is {shown(shape)}")
        if one.dtype not in READ:
            raise Unfit(f"{one.path}: {key} is of type {one.dtype}, and the trainer reads {', '.join(READ)}")
    known = {*want, HEAD} | {name.removeprefix(TRUNK) for name in want}  # a tied head may be stored once more
    for name, one in found.items():
        if name not in known and not name.endswith(NO_WEIGHTS):
            raise Unfit(f"{one.path}: holds {name} too, which {label} has not: these are weights of another model")
