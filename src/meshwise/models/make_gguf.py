"""Write a GGUF file with random weights and the shapes of a real model, to measure speed and memory without a download."""

import os
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.formats import Format, Weight, Weights, as_gguf, weights
from meshwise.models.gguf.header import KEYS
from meshwise.models.model import Model, build, families
from meshwise.models.tensors import Slot, architecture

LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
ALIGNMENT = 32
BYTE_TOKENS = 256

FLOATS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"), "rope.freq_base": ("rope_theta",),
    "attn_logit_softcapping": ("attn_logit_softcapping",), "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",), "residual_scale": ("residual_multiplier",),
    "attention.scale": ("attention_multiplier",), "logit_scale": ("logits_scaling",),
}  # fmt: skip
"""Floating-point metadata, and HF's names for it."""
FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16"}


@dataclass(frozen=True)
class GgufFile:
    """The content of a GGUF file to write."""

    model: Model
    weights: Weights
    values: Mapping[str, Any]
    architecture: str


def prepare(name: str, fmt: Format, layers: int | None = None) -> GgufFile:
    """Return the shape and type of every tensor; refuse a model or type that cannot be written."""
    if name.lower().endswith(".gguf"):
        raise UserError(f"{quoted(name)} is a GGUF file already; give a preset, HF id or config.json")
    values, label, source = find.find_values(name)
    cut = _cut(values, layers) if layers is not None else values
    model = build(cut, label, source)
    if layers is not None and len(model.layers) != layers:
        raise UserError(f"--layers {layers}: {label} cannot be cut to {layers} layers; it keeps {len(model.layers)}")
    arch = architecture(model)
    if not arch.writable:
        writable = (known.name for family in families().values() for known in getattr(family, "gguf", ()) if known.writable)
        raise UserError(f"make-gguf does not write {label} ({arch.name}); it writes {', '.join(dict.fromkeys(writable))}")
    return GgufFile(model, weights(model, as_gguf(fmt)), _inner(cut), arch.name)


def _cut(values: dict[str, object], layers: int) -> dict[str, object]:
    """Return the config with fewer layers; lists with one entry per layer are shortened too."""
    if isinstance(values.get("text_config"), dict):
        return values | {"text_config": _cut(cast(dict[str, object], values["text_config"]), layers)}
    changed: dict[str, object] = {key: layers for key in LAYERS if key in values}
    if isinstance(values.get("layer_types"), list):
        changed["layer_types"] = cast(list[object], values["layer_types"])[:layers]
    return values | changed


def _inner(values: Mapping[str, object]) -> Mapping[str, Any]:
    """Return the keys of the language model: text_config where there is one."""
    inner = values.get("text_config")
    return cast(Mapping[str, Any], inner) if isinstance(inner, dict) else values


def write(content: GgufFile, path: Path, *, header_only: bool = False, seed: int = 0) -> int:
    """Write the file and return its length. `header_only`: as long as with weights, but sparse, so that it takes no disk space."""
    from meshwise.models.gguf.random import chunks, pool

    stored = [weight for weight in content.weights.tensors if weight.slot.stored]
    for kind in {weight.type for weight in stored}:
        pool(kind, seed)  # refuses a type that cannot be made, before the file is created
    if not header_only:
        _check_space(path, sum(weight.bytes for weight in stored))
    with _atomic(path) as temporary:
        file = _header(content, stored, temporary)
        for weight in stored:
            start = file.tell()
            if header_only:
                file.seek(weight.bytes, os.SEEK_CUR)
            else:
                # random gains of norms and biases would make the activations of a deep model diverge
                constant = weight.slot.name.endswith(".bias") or "norm" in weight.slot.name
                for piece in _constant(weight) if constant else chunks(weight.type, weight.bytes, seed):
                    file.write(piece)
            file.seek(-(file.tell() - start) % ALIGNMENT, os.SEEK_CUR)
        length = file.tell()
        file.truncate(length)
        file.close()
    return length


def _check_space(path: Path, size: float) -> None:
    """Refuse a file that is larger than the free space of its disk."""
    folder = path.absolute().parent
    free = shutil.disk_usage(folder).free if folder.is_dir() else size
    if size > free:
        need, have = (units.show(value, "bytes", binary=True, digits=3) for value in (size, free))
        raise UserError(f"{path} needs {need}, and {have} are free on its disk; --layers makes a smaller file")


@contextmanager
def _atomic(path: Path) -> Generator[Path]:
    """Yield a temporary file that replaces `path` at the end, or is deleted if anything fails."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {quoted(str(path), 200)}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _constant(weight: Weight) -> Iterable[bytes]:
    """Return a gain of ones or a bias of zeros."""
    import numpy as np

    value = 0.0 if weight.slot.name.endswith(".bias") else 1.0
    return [np.full(weight.slot.elements, value, np.float32).tobytes()]


def _header(content: GgufFile, stored: list[Weight], path: Path) -> BinaryIO:
    """Write metadata, vocabulary and the list of tensors; return the file, positioned at the first tensor."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

    writer = GGUFWriter(path, content.architecture)
    writer.add_name(f"{content.model.name}, random weights by meshwise")
    kind = content.weights.format
    file_type = LlamaFileType[FILE_TYPES.get(kind, f"MOSTLY_{kind}")]
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    for key, value in _metadata(content).items():
        name = f"{content.architecture}.{key}"
        if isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    _vocabulary(writer, content)
    for weight in stored:
        kind = GGMLQuantizationType[weight.type]
        writer.add_tensor_info(weight.name, _shape(weight.slot), np.dtype(np.float32), weight.bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout
    file = cast(BinaryIO, writer.fout[0])
    file.seek(-file.tell() % ALIGNMENT, os.SEEK_CUR)
    return file


def _shape(slot: Slot) -> tuple[int, ...]:
    """Return the dimensions of a tensor, rows before columns."""
    whole = (slot.copies, slot.rows, slot.columns) if slot.copies > 1 else (slot.rows, slot.columns)
    return whole if slot.rows > 1 else whole[-1:]


def _metadata(content: GgufFile) -> dict[str, int | float]:
    """Translate the config's keys into llama.cpp's metadata; the few that a config may omit are computed."""
    d, values = content.model.decoder, content.values
    metadata: dict[str, int | float] = {}
    for key, names in KEYS.items():
        value = next((values[name] for name in names if isinstance(values.get(name), int)), None)
        if value is not None and not isinstance(value, bool):
            metadata[key] = int(value)
    for key, names in FLOATS.items():
        value = next((values[name] for name in names if isinstance(values.get(name), int | float)), None)
        if value is not None and abs(value) < 1e30:  # one of 400 digits is no float
            metadata[key] = float(value)
    head = int(values.get("head_dim") or d.hidden // max(1, d.heads))
    metadata |= {"block_count": d.layers, "attention.key_length": head, "attention.value_length": head}
    metadata |= {"rope.dimension_count": head, "vocab_size": d.vocab, "attention.head_count_kv": d.kv_heads}
    return metadata


def _vocabulary(writer: Any, content: GgufFile) -> None:
    """Write a vocabulary of the model's size: all bytes, so that any text can be encoded, and invented words for the rest."""
    size = content.model.decoder.vocab
    if size < BYTE_TOKENS + 2:
        raise UserError(f"a vocabulary of {size} is too small for {BYTE_TOKENS} bytes and two special tokens; use another model")
    marks = _marks(content.values, size)
    letters = [*_byte_letters(), *(_word(i) for i in range(size - BYTE_TOKENS))]
    tokens = [f"<|mark_{marks.index(i)}|>" if i in marks else letter for i, letter in enumerate(letters)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in marks else 1 for i in range(size)])
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(marks[0])
    writer.add_eos_token_id(marks[-1])


def _marks(values: Mapping[str, Any], size: int) -> list[int]:
    """Return the tokens for begin and end of text: the model's own if they are not among the bytes, else the last two."""
    marks: list[int] = []
    for key, usual in (("bos_token_id", size - 2), ("eos_token_id", size - 1)):
        value: Any = values.get(key)
        several = cast(list[Any], value) if isinstance(value, list) else [value]
        first = several[0] if several else None
        marks.append(first if isinstance(first, int) and BYTE_TOKENS <= first < size else usual)
    return marks


def _byte_letters() -> list[str]:
    """Return the letter for each byte in byte-level BPE (GPT-2's encoder: printable bytes stand for themselves)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (chr(256 + i) for i in range(BYTE_TOKENS))
    return [chr(byte) if byte in shown else next(hidden) for byte in range(BYTE_TOKENS)]


def _word(number: int) -> str:
    """Return an invented word with a leading space, a different one for each number."""
    letters = ""
    while True:
        number, last = divmod(number, 26)
        letters = chr(ord("a") + last) + letters
        if not number:
            return f"Ġ{letters.rjust(4, 'a')}"
