"""Read a GGUF header as the keys of a config.json and the exact list of tensors. The weights themselves are not read."""

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from meshwise.catalogue.files import similar
from meshwise.errors import UserError, did_you_mean, quoted
from meshwise.models.architecture import Architecture, Metadata, rename
from meshwise.models.config import MAX_SIZE
from meshwise.models.guess import nearest
from meshwise.models.model import Model, Tensor, build, families

KEYS = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"), "block_count": ("num_hidden_layers", "n_layer", "n_layers"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"), "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",), "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "context_length": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"), "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
}  # fmt: skip
"""Metadata that several architectures share, and HF's names for it. A family adds its own in `Architecture.config`."""

MAX_HEADER_BYTES = 1 << 27  # bytes of a header, at most: a vocabulary of 256,000 tokens and its merges take 15 MB
_ROPE_TABLES = re.compile(r"rope_(freqs|factors_\w+)\.weight")


def read(path: Path) -> Model:
    """Read the model of a .gguf file, together with the file's other parts where it is split."""
    fields, tensors = _parse(path)
    for part in _other_parts(path, fields):
        more, others = _parse(part)
        # The metadata is in the first part and the embedding in any of them, whichever part was named.
        fields = more | fields | {"shapes": more["shapes"] | fields["shapes"]}
        tensors += others
    # Tables of rotary frequencies are stored as tensors, but are computed, not learnt.
    stored = tuple(tensor for tensor in tensors if not _ROPE_TABLES.fullmatch(tensor.name))
    unknown = _unknown(fields, stored, path)
    if unknown is not None:
        return unknown
    architecture, metadata = _architecture(fields, path.name)
    config = _config(architecture, metadata, fields["shapes"], path.name)
    model = replace(build(config, path.name, str(path)), tensors=stored)
    elements = sum(tensor.elements for tensor in stored)
    if elements == model.params:
        return model
    note = f"the file stores {elements:,} elements, its metadata describes {model.params:,} parameters"
    return replace(model, notes=(*model.notes, note))


def _unknown(fields: Mapping[str, Any], stored: tuple[Tensor, ...], path: Path) -> Model | None:
    """Return the model of a file whose architecture nobody has described, planned as the nearest one; None for those that are."""
    name = fields.get("general.architecture")
    if not isinstance(name, str) or name in readable() or "token_embd.weight" not in fields["shapes"]:
        return None
    metadata = {key.removeprefix(f"{name}."): value for key, value in fields.items() if key.startswith(f"{name}.")}
    config = _config(Architecture(name=name, model_types=(name,)), metadata, fields["shapes"], path.name)
    model = nearest(config, [tensor.elements for tensor in stored], path.name, str(path))
    return model and replace(model, tensors=stored)


def readable() -> dict[str, list[Architecture]]:
    """Return the architectures whose files can be read, by name. Where families share a name, those with `requires` come first."""
    by_name: dict[str, list[Architecture]] = {}
    for family in families().values():
        for architecture in getattr(family, "gguf", ()):
            if architecture.readable:
                by_name.setdefault(architecture.name, []).append(architecture)
    return {name: sorted(sharing, key=lambda architecture: not architecture.requires) for name, sharing in by_name.items()}


def _architecture(fields: Mapping[str, Any], where: str) -> tuple[Architecture, Metadata]:
    """Return the architecture of a header, and the metadata under its prefix."""
    name, known = fields.get("general.architecture"), readable()
    metadata = {key.removeprefix(f"{name}."): value for key, value in fields.items() if key.startswith(f"{name}.")}
    for architecture in known.get(name, ()) if isinstance(name, str) else ():
        if not architecture.requires or metadata.get(architecture.requires):
            return architecture, metadata
    hint = did_you_mean(similar(str(name), known)) or f"; supported: {', '.join(known)}"
    raise UserError(f"{where}: unsupported GGUF architecture {quoted(name)}{hint}")


def _parse(path: Path) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """Return the metadata and the tensors of one file."""
    if not os.path.isfile(path):
        raise UserError(f"cannot read {quoted(str(path), 200)}: no such file")
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return _Header(data).read()
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {error.strerror}") from None
    except struct.error:
        raise UserError(f"{path.name}: not a readable GGUF file: it ends before its header does") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{path.name}: not a readable GGUF file: {error}") from None


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class _Header:
    """A reader of everything before the weights, in file order (ggml's docs/gguf.md). The gguf package's reader makes several arrays of
    every token and merge: 14 s for the vocabulary of Llama 3 against 0.6 s here. It also does not terminate if a damaged file claims 2^40
    of them."""

    def __init__(self, data: mmap) -> None:
        self.data = data
        self.at = 0
        self.order = "<"

    def read(self) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        self.at = 4
        version = self.number("I")
        if version & 0xFFFF == 0:  # written with the other byte order
            self.order, self.at = ">", 4
            version = self.number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}; expected 2 or 3")
        tensors, fields = self.number("Q"), self.number("Q")
        values: dict[str, Any] = {}
        for _ in range(fields):
            name = self.text()
            values[name] = self.value(self.number("I"))
        infos = [self.tensor() for _ in range(tensors)]
        self.check(infos, values.get("general.alignment", 32))
        shapes = {tensor.name: shape for tensor, shape, _ in infos}
        return values | {"shapes": shapes}, tuple(tensor for tensor, _, _ in infos)

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(self.order + code, self.data, self.at)
        self.at += struct.calcsize(self.order + code)
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        if self.at > len(self.data):
            raise ValueError(f"it ends within a text of {size} bytes")
        return str(self.data[self.at - size : self.at], "utf-8")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise ValueError(f"it holds a value of the unknown kind {kind}")
        inner, count = self.number("I"), self.number("Q")
        if self.at > MAX_HEADER_BYTES:
            raise ValueError(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        if count > MAX_SIZE:
            raise ValueError(f"it claims an array of {count} values")
        return [self.value(inner) for _ in range(count)]

    def tensor(self) -> tuple[Tensor, list[int], int]:
        """Return a tensor, its shape with rows last, and its offset among the weights."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # 0.2 s of imports that only this method needs

        name = self.text()
        shape = [self.number("Q") for _ in range(self.number("I"))]
        kind = GGMLQuantizationType(self.number("I"))
        block, size = GGML_QUANT_SIZES[kind]
        if shape and shape[0] % block:
            raise ValueError(
                f"a row of the tensor {quoted(name)} has {shape[0]} elements, not a multiple of {kind.name}'s {block}"
            )
        elements = prod(shape)
        return Tensor(name, kind.name, elements, elements // block * size), shape, self.number("Q")

    def check(self, infos: list[tuple[Tensor, list[int], int]], alignment: object) -> None:
        """Refuse a file with two tensors of the same name, or one that ends before its weights do."""
        if len({tensor.name for tensor, _, _ in infos}) < len(infos):
            raise ValueError("two of its tensors have the same name")
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its alignment is {quoted(alignment)}; expected a whole number, such as 32")
        start = -(-self.at // alignment) * alignment
        end = max((start + offset + tensor.bytes for tensor, _, offset in infos), default=0)
        if end > len(self.data):
            raise ValueError(f"it has {len(self.data)} bytes, but its header describes {end}")


def _other_parts(path: Path, fields: Mapping[str, Any]) -> list[Path]:
    """Return the files that hold the other tensors of a split model, such as 'name-00002-of-00003.gguf'."""
    count = fields.get("split.count", 1)
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not isinstance(count, int) or count < 2:
        return []
    if match is None or int(match[3]) != count:
        raise UserError(
            f"{path.name}: one of {count} parts, but not named like name-00001-of-{count:05d}.gguf, so the others cannot be found"
        )
    return [path.with_name(f"{match[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1) if i != int(match[2])]


def _config(architecture: Architecture, metadata: Metadata, shapes: Mapping[str, list[int]], where: str) -> dict[str, object]:
    """Translate the metadata into HF's keys; biases and a tied head, which only the tensors show, come from the tensors."""
    shape = shapes.get("token_embd.weight")
    if not shape:
        raise UserError(f"{where}: it holds no token_embd.weight, so it is not a whole language model")
    bias = "blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes
    return (
        {"model_type": architecture.model_types[0], "vocab_size": shape[-1]}
        | rename(metadata, KEYS)
        | {"tie_word_embeddings": "output.weight" not in shapes}
        | {"attention_bias": bias, "bias": bias, "use_bias": bias, "mlp_bias": "blk.0.ffn_up.bias" in shapes}
        | architecture.config(metadata, shapes)
    )
