"""The registry of model families: the facts that each one declares, and the lookup by `model_type`. No torch: the launcher reads it too.

Every sub-folder is a family. Its `family.py` defines `FAMILY` and imports no torch. Its other modules need torch and are imported
when they are used:

    model.py      build(config, span, shard, recompute), the layers of a span
    sharding.py   styles(span), how tensor parallelism cuts each module; not in a recurrent family
    predictor.py  predictor(model, batch), which keeps state between tokens; only in a recurrent family
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from meshwise.workers.trainer.models.tensors import Tensors

PACKAGE = __name__.rpartition(".")[0]
Config = Mapping[str, Any]
"""The keys of HF's config.json."""


@dataclass(frozen=True)
class Sizes:
    """The dimensions that layout rules, models and reports read from a config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    positions: int = 0
    """Learned positions, the longest sequence the model accepts; 0 if positions are computed."""


def no_problem(config: Config) -> str:
    return ""


def no_dropout(config: Config) -> float:
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model architecture of the trainer."""

    model_types: tuple[str, ...]
    """Values of `model_type` in config.json."""
    sizes: Callable[[Config], Sizes]
    tensors: Callable[[Config, Sizes], Tensors]
    """Names and shapes of the weights as HF stores them."""
    embedding: str
    """Name of the token embedding, which a tied head shares."""
    recurrent: bool = False
    """Whether layers process tokens in order and keep a state: no tp, no cp and no selective recompute."""
    unsupported: Callable[[Config], str] = no_problem
    """Why this config cannot be built; empty if it can."""
    ignored_dropout: Callable[[Config], float] = no_dropout
    """Dropout that the config asks for and the trainer leaves out."""
    transformers_class: str = ""
    """Class in transformers that opens saved weights; empty if it has none."""
    buffers: tuple[str, ...] = ()
    """Name endings of stored tensors that are not weights: tables that the model computes."""


@cache
def _families_by_folder() -> dict[str, Family]:
    folders = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg)
    return {folder: import_module(f"{PACKAGE}.{folder}.family").FAMILY for folder in folders}


@cache
def families() -> dict[str, Family]:
    """Return all families by model_type, in the order of their folders' names."""
    return {name: family for family in _families_by_folder().values() for name in family.model_types}


def family_of(config: Config) -> Family:
    return families()[config["model_type"]]


def import_part(config: Config, part: str) -> Any:
    """Import `model`, `sharding` or `predictor` from the folder of this config's family. They need torch."""
    folder = next(name for name, family in _families_by_folder().items() if config["model_type"] in family.model_types)
    return import_module(f"{PACKAGE}.{folder}.{part}")


def sizes_of(config: Config) -> Sizes:
    return family_of(config).sizes(config)


def tied_embedding(config: Config) -> str:
    """Return the name of the embedding that the head shares; empty if the head has its own weights."""
    return family_of(config).embedding if sizes_of(config).tied else ""


def unsupported(config: Config) -> str:
    """Return why the trainer cannot build this model; empty if it can."""
    kind = config.get("model_type")
    if kind is None:
        return f"it has no model_type; the trainer supports {', '.join(families())}"
    if not isinstance(kind, str) or kind not in families():
        return f"model_type {str(kind)[:60]!r} is not supported; the trainer supports {', '.join(families())}"
    if problem := next(
        filter(None, (*(_not_whole(config, key) for key in WHOLE), *(_not_real(config, key) for key in REAL))), ""
    ):
        return problem
    if any(float(config.get(key) or 0) for key in ("attention_dropout", "hidden_dropout")):
        return "the trainer does not support dropout"
    return family_of(config).unsupported(config)


WHOLE = (
    "hidden_size", "n_embed", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "num_key_value_heads",
    "intermediate_size", "n_inner", "vocab_size", "n_positions", "head_dim", "mini_batch_size",
)  # fmt: skip
"""Keys that families read as whole numbers."""
REAL = (
    "attention_dropout", "hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "rope_theta", "rms_norm_eps", "layer_norm_epsilon",
    "initializer_range", "ttt_base_lr",
)  # fmt: skip
"""Keys that families read as numbers."""
LARGEST = 2**40


def _not_whole(config: Config, key: str) -> str:
    value = config.get(key)
    fits = value is None or (type(value) is int and 0 <= value < LARGEST)
    return "" if fits else f"{key} is {_shown(value)}; expected a whole number"


def _not_real(config: Config, key: str) -> str:
    return "" if config.get(key) is None or is_real(config[key]) else f"{key} is {_shown(config[key])}; expected a number"


def is_real(value: object) -> bool:
    """Return whether a value of a config.json is a number that float32 holds: neither NaN nor one of 400 digits."""
    return type(value) in (int, float) and 0 <= abs(cast(float, value)) < 1e30


def _shown(value: object) -> str:
    return repr(value if not isinstance(value, int) or abs(value) < LARGEST else "a huge number")[:60]


def first_of(config: Config, *keys: str, default: int = 0) -> int:
    """Return the value of the first of these keys that the config sets, as an integer."""
    return next((int(config[key]) for key in keys if config.get(key) is not None), default)
