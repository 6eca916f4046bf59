"""Configs with a language model within: text_config, thinker_config, ... beside the towers for pictures and sound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwise.errors import UserError
from meshwise.models.config import Config, as_list
from meshwise.models.families.description import Types, describe

KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Tables of a language model, where the outer type is not described."""
MAX_NESTING = 4

_BY_KEYS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"kv_lora_rank", "n_routed_experts"}), "deepseek_v3"),
    (frozenset({"linear_num_value_heads", "num_experts"}), "qwen3_next"),
    (frozenset({"num_experts", "moe_intermediate_size"}), "qwen3_moe"),
    (frozenset({"num_local_experts", "num_experts_per_tok"}), "mixtral"),
    (frozenset({"n_embd", "n_head"}), "gpt2"),
    (frozenset({"hidden_size", "num_attention_heads", "intermediate_size"}), "llama"),
)
"""The type that a table without a model_type is read as: the first whose keys it has."""


@dataclass(frozen=True)
class Language:
    """The config of a language model, with what was beside it."""

    config: Config
    notes: tuple[str, ...] = ()
    beside: tuple[tuple[str, object], ...] = ()  # tables beside the language model, by key: towers for pictures and sound


def language_model(config: Config, known: Callable[[str], bool]) -> Language:
    """Return the language model of a config: itself, or the one within. `known` says whether a family reads a type."""
    notes: tuple[str, ...] = ()
    beside: tuple[tuple[str, object], ...] = ()
    for _ in range(MAX_NESTING):
        inner = _inner(config)
        if inner is None:
            return Language(config, notes, beside)
        beside += tuple(
            (str(key), value)
            for key, value in sorted(config.values.items(), key=lambda item: str(item[0]))
            if str(key).endswith("_config") and value is not inner.values and value is not None and key not in _OTHERS
        )
        note = () if beside else (f"{inner.where.rpartition(': ')[2]} is counted",) if inner.nested else ()
        outer, config = config, inner
        config, guess = _typed(outer, config, known)
        config = Config(dict(config.values) | _tied(outer, config), config.where, nested=True)
        notes += (*guess, *note)
    raise UserError(f"{config.where}: language models within one another to a depth of {MAX_NESTING}")


_OTHERS = ("quantization_config", "generation_config", "compression_config")  # tables that describe no part of the model


def _description(config: Config) -> Any:
    kind = config.values.get("model_type")
    return describe(kind) if isinstance(kind, str) and kind in Types() else None


def _inner(config: Config) -> Config | None:
    """Return the table of the language model within; the config itself, under the type within, where an old file has no such table."""
    description = _description(config)
    if description and description.refusal:
        return None  # the reader of families says why
    text = description.words.get("text") if description else None
    keys = (description.words.get("text_key", "text_config"), *KEYS) if description else KEYS
    for key in dict.fromkeys(keys):
        table = config.table(key)
        if table is not None:
            return table
    if text is None:
        return None
    if not any(key in config.values for key in ("hidden_size", "d_model", "n_embd")):
        raise UserError(f"{config.where}: the key '{keys[0]}' is missing; expected the table of the language model")
    return Config(dict(config.values) | {"model_type": text}, config.where)


def _typed(outer: Config, inner: Config, known: Callable[[str], bool]) -> tuple[Config, tuple[str, ...]]:
    """Return the table with a model_type: its own, the one that belongs to the outer type, or the one that its keys suggest."""
    stated = inner.values.get("model_type")
    if isinstance(stated, str) and known(stated):
        return inner, ()
    description = _description(outer)
    text = description.words.get("text") if description else None
    if text is not None:
        return Config(dict(inner.values) | {"model_type": text}, inner.where, nested=True), ()
    if isinstance(stated, str):
        return inner, ()
    classes = {str(name).lower() for name in as_list(inner.values.get("architectures"))}
    named = next((kind for kind in Types() if f"{kind.replace('_', '').replace('-', '')}forcausallm" in classes), None)
    guess = named or next((kind for keys, kind in _BY_KEYS if keys <= inner.values.keys()), None)
    if guess is None:
        return inner, ()
    note = f"{inner.where} states no model_type: by its {'class' if named else 'keys'} it is read as {guess}"
    return Config(dict(inner.values) | {"model_type": guess}, inner.where, nested=True), (note,)


def _tied(outer: Config, inner: Config) -> dict[str, object]:
    """Return whether the head is tied to the embedding, where the outer config decides that as in transformers."""
    description = _description(outer)
    rule = description.words.get("ties", "outer") if description else "outer"
    default = description.tables["defaults"].get("tie_word_embeddings") if description else None
    stated = outer.values.get("tie_word_embeddings")
    outermost = stated if isinstance(stated, bool) else default
    if rule == "never":
        return {"tie_word_embeddings": False}
    if (rule == "outer" and outermost is not None) or (rule == "either" and outermost):
        return {"tie_word_embeddings": outermost}
    return {}
