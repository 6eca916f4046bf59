"""Architecture: how llama.cpp stores a kind of model in GGUF files. Each family lists its own in `gguf`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwise.models.op import Op

Metadata = Mapping[str, Any]
"""The keys of a GGUF header that start with its architecture, without that prefix: 'block_count', 'attention.head_count'."""

TensorNames = Mapping[str, str | tuple[str, ...]]
"""llama.cpp's name for the weights of an Op, without the layer; several names where one Op stands for several small tensors."""


def rename(metadata: Metadata, names: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """Return the metadata listed in `names` that is present, under each of HF's names for it."""
    return {name: metadata[key] for key in names if metadata.get(key) is not None for name in names[key]}


def _no_keys(metadata: Metadata, shapes: Mapping[str, Sequence[int]]) -> dict[str, object]:
    return {}


def _unchanged(op: Op, ops: Sequence[Op]) -> list[Op]:
    return [op]


@dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """One value of `general.architecture`, as llama.cpp's converter writes it."""

    name: str
    model_types: tuple[str, ...]  # HF model types that are stored under this name. A file is read as the first of them.
    readable: bool = True  # whether a model can be built from the metadata of a file
    requires: str = ""
    """Metadata key that distinguishes it from another family's architecture of the same name: Mixtral is 'llama' with experts."""
    config: Callable[[Metadata, Mapping[str, Sequence[int]]], dict[str, object]] = _no_keys
    """Returns the keys of config.json that follow from this architecture's own metadata and from the shapes of the tensors."""
    fused_qkv: bool = False  # queries, keys and values are one tensor
    fused_gate: bool = False  # the gate and the up projection are one tensor
    fused_experts: bool = False  # the gate and the up projection of the experts are one tensor
    expert_name: str = ""  # its name where the model has experts, if that differs
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm", "norm_3", "norm_4")  # names of a layer's norms of hidden width, in order
    split: Callable[[Op, Sequence[Op]], list[Op]] = _unchanged
    """Returns the Ops that the converter splits an Op into; the second argument is the block that holds it."""
    names: TensorNames = field(default_factory=dict[str, str | tuple[str, ...]])
    """llama.cpp's names for the weights of Ops, where this architecture's differ from the usual ones."""
    writable: bool = False  # whether llama.cpp loaded a file by `make-gguf` and answered (xllamacpp 2026.10, two layers)
