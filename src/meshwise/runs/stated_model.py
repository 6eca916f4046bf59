"""The model of a launch file: a preset that it names, or one built from the sizes that it states. Nothing is downloaded."""

import re

from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.model import Model, build
from meshwise.runs.facts import Facts

NEEDED = ("hidden", "layers", "heads", "vocab")
"""Sizes without which no model can be built."""
SUFFIXES = re.compile(r"[-_](instruct|chat|hf|base|it|pt|v0\.\d|2[45]\d\d)$", re.IGNORECASE)


def model_of(facts: Facts, named: str = "") -> tuple[Model | None, str]:
    """Return the model, or None with the reason. `named`: what the user says it is, which may be anything that `plan` takes."""
    if named:
        return find.find_model(named), ""
    name = facts.value("model")
    preset = preset_of(str(name)) if name else ""
    if preset:
        return find.find_model(preset), ""
    missing = [size for size in NEEDED if not facts.whole(size)]
    if len(missing) < len(NEEDED) and missing:
        unknown = [f"{size} ({one.note})" if (one := facts.get(size)) and one.note else size for size in missing]
        return (
            None,
            f"its {' and '.join(unknown)} {'is' if len(missing) == 1 else 'are'} not known: --set {missing[0]}=..., or --model",
        )
    if missing:
        return (
            None,
            f"{name} is no preset: --model names one, or a config.json" if name else "no model is stated: --model names it",
        )
    try:
        return build(config_of(facts), label(facts), "a launch file"), ""
    except UserError as error:
        return None, str(error)


def preset_of(name: str) -> str:
    """Return the preset that a hub id, a path or a plain name means; '' where none does."""
    last = name.rstrip("/").rpartition("/")[2]
    for text in (name, last, SUFFIXES.sub("", last), SUFFIXES.sub("", SUFFIXES.sub("", last)), last.removeprefix("Meta-")):
        if text and text.count("/") < 2 and find.find_preset(text):
            return find.find_preset(text).stem  # pyright: ignore[reportOptionalMemberAccess]
    return ""


def label(facts: Facts) -> str:
    """Return a name for a model of these sizes."""
    return f"h{facts.whole('hidden')}-l{facts.whole('layers')}-a{facts.whole('heads')}"


def config_of(facts: Facts) -> dict[str, object]:
    """Return the keys of a config.json with the sizes that a file states, of the family that has such layers."""
    hidden, layers, heads, vocab = (facts.whole(size) for size in NEEDED)
    kv_heads, ffn = facts.whole("kv_heads") or heads, facts.whole("ffn") or 4 * hidden
    plain: dict[str, object] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": facts.whole("head_dim") or hidden // max(1, heads),
        "intermediate_size": ffn,
        "vocab_size": padded(vocab, facts),
        "tie_word_embeddings": bool(facts.value("tied")),
    }
    if facts.whole("experts"):
        return _mixture(facts, plain)
    if facts.value("position_kind") == "alibi":
        return {
            "model_type": "bloom",
            "hidden_size": hidden,
            "n_layer": layers,
            "n_head": heads,
            "vocab_size": plain["vocab_size"],
        }
    if facts.value("gated"):
        return plain | {"model_type": "llama"}
    if facts.value("position_kind") == "learned" and kv_heads == heads:
        sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": ffn, "vocab_size": plain["vocab_size"]}
        positions = facts.whole("positions") or facts.whole("seq") or 1024
        return sizes | {"model_type": "gpt2", "n_positions": positions, "tie_word_embeddings": plain["tie_word_embeddings"]}
    return plain | {"model_type": "starcoder2", "use_bias": bool(facts.value("biased"))}


def padded(vocab: int, facts: Facts) -> int:
    """Return the vocabulary as Megatron pads it, to a multiple of 128 x tp, where a tokenizer states it unpadded."""
    stated = facts.get("vocab")
    if stated is None or stated.how != "derived":
        return vocab
    multiple = 128 * facts.whole("tp", 1)
    return -(-vocab // multiple) * multiple


def _mixture(facts: Facts, plain: dict[str, object]) -> dict[str, object]:
    width, shared = facts.whole("expert_ffn") or facts.whole("ffn"), facts.whole("shared_ffn")
    experts: dict[str, object] = {
        "num_experts": facts.whole("experts"),
        "num_local_experts": facts.whole("experts"),
        "num_experts_per_tok": facts.whole("top_k", 2),
    }
    if shared:
        sizes = {"moe_intermediate_size": width, "shared_expert_intermediate_size": shared}
        return plain | experts | {"model_type": "qwen2_moe"} | sizes
    return plain | experts | {"model_type": "mixtral", "intermediate_size": width}
