"""The weights a model must have, by HF's names and in HF's shapes, and whether given files hold them. No torch."""

import json
from pathlib import Path

from meshwise.workers.trainer.hf.safetensors import TensorEntry, WeightsError, contents, format_shape
from meshwise.workers.trainer.models.registry import Config, family_of
from meshwise.workers.trainer.models.tensors import HEAD, Shapes

READABLE = ("F64", "F32", "F16", "BF16")
"""Types that the trainer reads, by the names of the format."""
OPTIONAL_PREFIX = "transformer."
"""Some files of BLOOM and GPT-2 leave this prefix out of their tensor names."""


def shapes(config: Config) -> Shapes:
    """Return every weight that a file of this model must have; a head that is tied to the embedding has no weight of its own."""
    family = family_of(config)
    sizes = family.sizes(config)
    head: Shapes = {} if sizes.tied else {HEAD: (sizes.vocab, sizes.hidden)}
    return family.tensors(config, sizes).shapes(sizes.layers) | head


def config_json(config: Config, dtype: str) -> str:
    """Return the config.json with which transformers opens saved weights: the model's own plus its class and dtype."""
    name = family_of(config).transformers_class
    kept = {key: value for key, value in config.items() if key not in ("_name_or_path", "dtype")}
    made = ({"architectures": [name]} if name else {}) | {"torch_dtype": dtype}
    return json.dumps(kept | made, indent=2) + "\n"


def stored_name(name: str, found: "dict[str, TensorEntry]") -> str:
    """Return the name under which a file holds this weight; empty if it does not."""
    return next((key for key in (name, name.removeprefix(OPTIONAL_PREFIX)) if key in found), "")


def check(config: Config, label: str, given: Path) -> None:
    """Refuse files that lack a weight of this model, hold one in another shape or an unreadable type, or hold weights of another model."""
    found, want = contents(given), shapes(config)
    missing = [name for name in want if not stored_name(name, found)]
    for name, shape in want.items():
        key = stored_name(name, found)
        if not key:
            first = next(iter(found), "nothing")
            detail = f"{len(missing)} of {len(want)} are missing; its first tensor is {first}"
            raise WeightsError(f"{given}: lacks {name} of {label} ({detail})")
        one = found[key]
        if one.shape != shape:
            raise WeightsError(f"{one.path}: {key} is {format_shape(one.shape)}, but {label} needs {format_shape(shape)}")
        if one.dtype not in READABLE:
            raise WeightsError(f"{one.path}: {key} has type {one.dtype}; the trainer reads {', '.join(READABLE)}")
    known = {*want, HEAD} | {name.removeprefix(OPTIONAL_PREFIX) for name in want}  # a tied head may be stored as well
    buffers = family_of(config).buffers
    for name, one in found.items():
        if name not in known and not name.endswith(buffers):
            raise WeightsError(f"{one.path}: holds {name}, which {label} does not have; these weights belong to another model")
