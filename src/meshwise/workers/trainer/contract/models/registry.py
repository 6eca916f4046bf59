"""The registry of model families: the facts that each one declares, and the lookup by `model_type`. No torch: the launcher reads it too.

Every module of `families/` is a family and defines `FAMILY`. Most are built by `decoder/` from their description; the package that
builds the others has the same modules, which need torch and are imported when they are used:

    model.py      build(config, span, shard, recompute), the layers of a span
    sharding.py   styles(config, span), how tensor parallelism cuts each module; not in a recurrent family
    predictor.py  predictor(model, batch), which keeps state between tokens; only in a recurrent family
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from meshwise.workers.trainer.contract.models.description import EMBEDDING, Description
from meshwise.workers.trainer.contract.models.keys import problem_of
from meshwise.workers.trainer.contract.models.keys import unsupported as unsupported_description
from meshwise.workers.trainer.contract.models.tensors import Shapes, Storage, Stored, stored_tensors

PACKAGE = "meshwise.workers.trainer.models"
Config = Mapping[str, Any]  # the keys of HF's config.json


@dataclass(frozen=True)
class Sizes:
    """The dimensions that layout rules and reports read from a config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    positions: int = 0  # learned positions, the longest sequence the model accepts; 0 if positions are computed
    experts: int = 0  # routed experts of a layer; 0 if the model has none


def no_problem(config: Config) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model architecture of the trainer."""

    model_types: tuple[str, ...]  # values of `model_type` in config.json
    describe: Callable[[Config], Description]
    storage: Storage = field(default_factory=Storage)
    package: str = "decoder"  # the package that builds it
    stored: Callable[[Config], dict[str, Stored]] | None = None
    """The tensors of its files, if they do not follow from description and storage."""
    recurrent: bool = False  # whether layers process tokens in order and keep a state: no tp, no cp and no selective recompute
    unsupported: Callable[[Config], str] = no_problem  # why this config cannot be built; empty if it can
    dropout: tuple[str, ...] = ()  # keys of dropout that published configs set and the trainer leaves out, with a message
    transformers_class: str = ""  # class in transformers that opens saved weights; empty if it has none
    buffers: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Name endings of stored tensors that are not weights: tables that the model computes."""

    def ignored_dropout(self, config: Config) -> float:
        """Return the largest dropout that the config asks for and the trainer leaves out."""
        return max((float(config.get(key) or 0) for key in self.dropout), default=0.0)


@cache
def families() -> dict[str, Family]:
    """Return all families by model_type, in the order of their modules' names."""
    return {kind: family for family in map(_family, _modules()) for kind in family.model_types}


@cache
def find_family(kind: str) -> Family | None:
    """Return the family of a model_type; None if there is none. The module of that name comes first: it is most often the only import."""
    named_alike = sorted(_modules(), key=lambda name: name != kind)
    return next((family for family in map(_family, named_alike) if kind in family.model_types), None)


def _modules() -> list[str]:
    folder = import_module(f"{PACKAGE}.families").__path__
    return sorted(module.name for module in pkgutil.iter_modules(folder))


def _family(module: str) -> Family:
    return import_module(f"{PACKAGE}.families.{module}").FAMILY


def family_of(config: Config) -> Family:
    family = find_family(config["model_type"])
    if family is None:
        raise KeyError(config["model_type"])
    return family


def import_part(config: Config, part: str) -> Any:
    """Import `model`, `sharding` or `predictor` of the package that builds this config's family. They need torch."""
    return import_module(f"{PACKAGE}.{family_of(config).package}.{part}")


def description_of(config: Config) -> Description:
    return family_of(config).describe(config)


def sizes_of(config: Config) -> Sizes:
    d = description_of(config)
    experts = d.experts.count if d.experts else 0
    return Sizes(d.hidden, len(d.layers), d.heads, d.kv_heads, d.ffn, d.vocab, d.tied, d.positions, experts)


def stored_of(config: Config) -> dict[str, Stored]:
    """Return the tensors of HF's files of this model by name, with the parameters in each."""
    family = family_of(config)
    return family.stored(config) if family.stored else stored_tensors(family.describe(config), family.storage)


def parameters_of(config: Config) -> Shapes:
    """Return the parameters of a model by name, with their whole shapes."""
    found: Shapes = {}
    for stored in stored_of(config).values():
        for part in stored.parts:
            if part.parameter.endswith(".balance"):  # moved by the loads of experts, not by gradients
                continue
            rows = part.first + part.shape[0]  # first rows and indices rise
            found[part.parameter] = (rows, *part.shape[1:]) if part.index is None else (part.index + 1, rows, *part.shape[1:])
    return found


def tied_embedding(config: Config) -> str:
    """Return the name of the embedding that the head shares; empty if the head has its own weights."""
    return EMBEDDING if description_of(config).tied else ""


def unsupported(config: Config) -> str:
    """Return why the trainer cannot build this model; empty if it can."""
    kind = config.get("model_type")
    if kind is None:
        return f"it has no model_type; the trainer supports {', '.join(families())}"
    family = find_family(kind) if isinstance(kind, str) else None
    if family is None:
        return f"model_type {str(kind)[:60]!r} is not supported; the trainer supports {', '.join(families())}"
    if problem := next((found for key in config if (found := problem_of(key, config[key]))), ""):
        return problem
    if any(float(config.get(key) or 0) for key in ("attention_dropout", "hidden_dropout") if key not in family.dropout):
        return "the trainer does not support dropout"
    return family.unsupported(config) or unsupported_description(family.describe(config))
