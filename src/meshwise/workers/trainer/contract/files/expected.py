"""The weights a model must have, by HF's names and in HF's shapes, and whether given files hold them. No torch."""

import json
from pathlib import Path

from meshwise.workers.trainer.contract.files.safetensors import TensorEntry, WeightsError, contents, format_shape
from meshwise.workers.trainer.contract.models.registry import Config, description_of, families, family_of, stored_of
from meshwise.workers.trainer.contract.models.tensors import HEAD, Shapes

READABLE = ("F64", "F32", "F16", "BF16")  # types that the trainer reads, by the names of the format
FACT_WORDS = {
    "heads": "attention heads",
    "kv_heads": "KV heads",
    "head_dim": "features per head",
    "activation": "as the activation",
}
"""Facts of a model that its weights were trained with and that their shapes need not show, in words."""
OPTIONAL_PREFIX = "transformer."  # some files of BLOOM and GPT-2 leave this prefix out of their tensor names


def shapes(config: Config) -> Shapes:
    """Return every weight that a file of this model must have; a head that is tied to the embedding has no weight of its own."""
    return {name: stored.shape for name, stored in stored_of(config).items()}


def config_json(config: Config, dtype: str) -> str:
    """Return the config.json with which transformers opens saved weights: the model's own plus its class and dtype."""
    name = family_of(config).transformers_class
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "dtype")}
    added = ({"architectures": [name]} if name else {}) | {"torch_dtype": dtype}
    return json.dumps(kept | added, indent=2) + "\n"


def stored_name(name: str, stored: "dict[str, TensorEntry]") -> str:
    """Return the name under which a file holds this weight; empty if it does not."""
    return next((key for key in (name, name.removeprefix(OPTIONAL_PREFIX)) if key in stored), "")


def check(config: Config, label: str, given: Path) -> None:
    """Refuse files that lack a weight of this model, hold one in another shape or an unreadable type, or hold weights of another model."""
    stored, needed = contents(given), shapes(config)
    missing = [name for name in needed if not stored_name(name, stored)]
    for name, shape in needed.items():
        key = stored_name(name, stored)
        if not key:
            first = next(iter(stored), "nothing")
            detail = f"{len(missing)} of {len(needed)} are missing; its first tensor is {first}"
            raise WeightsError(f"{given}: lacks {name} of {label} ({detail})")
        entry = stored[key]
        if entry.shape != shape:
            raise WeightsError(f"{entry.path}: {key} is {format_shape(entry.shape)}, but {label} needs {format_shape(shape)}")
        if entry.dtype not in READABLE:
            raise WeightsError(f"{entry.path}: {key} has type {entry.dtype}; the trainer reads {', '.join(READABLE)}")
    known = {*needed, HEAD} | {name.removeprefix(OPTIONAL_PREFIX) for name in needed}  # a tied head may be stored as well
    buffers = family_of(config).buffers
    for name, entry in stored.items():
        if name not in known and not name.endswith(buffers):
            raise WeightsError(f"{entry.path}: holds {name}, which {label} does not have; these weights belong to another model")
    _check_config(config, label, given if given.is_dir() else given.parent)


def _check_config(config: Config, label: str, folder: Path) -> None:
    """Refuse weights of the same shapes whose config.json, if there is one beside them, states another model."""
    try:
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        theirs = description_of(stated) if stated["model_type"] in families() else None
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        ArithmeticError,
        AttributeError,
    ):  # none, or one of another program: the shapes fit
        return
    ours = description_of(config)
    for name, words in FACT_WORDS.items() if theirs else ():
        has, needs = getattr(theirs, name), getattr(ours, name)
        if has != needs:
            raise WeightsError(
                f"{folder / 'config.json'} has {has} {words}, but {label} has {needs}; these weights belong to another model"
            )
