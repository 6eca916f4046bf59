"""Weight formats: the bytes of a model's weights in each, tensor by tensor, and the bytes that one token reads."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from meshwise.catalogue.files import squeeze
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.find import find_preset, from_ollama, from_words
from meshwise.models.gguf.quantiser import Chooser, size_of
from meshwise.models.model import Model
from meshwise.models.quantization import FILE_TYPES
from meshwise.models.tensors import EMBEDDING_LAYER, Slot, architecture, file_order, slots


@dataclass(frozen=True, kw_only=True)
class Format:
    """How weights are stored. Each `group` of inputs in a row has one scale and zero point."""

    name: str
    words: str
    gguf: bool = False
    bits: int = 16
    group: int = 0  # inputs that share a scale; 0: no groups
    group_bits: int = 0  # bits of a group's scale and zero point
    row_bytes: int = 0  # bytes of scales per row
    column_bytes: int = 0  # bytes per input for GPTQ's g_idx: the group that an input belongs to
    rest_bits: int = 16  # bits per weight of tensors that are not quantised: embedding, head, norms, router, biases
    experts_first: bool = False  # if a model has experts, only they are quantised
    aliases: tuple[str, ...] = ()

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines that can run it."""
        if self.gguf:
            return ("llama.cpp", "ollama")
        return ("vllm", "llama.cpp", "ollama") if self.name in SAME_IN_GGUF else ("vllm",)


GGUF_OF_FLOAT = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
"""Formats without quantisation, and the GGUF type that is the same except for norms in F32."""

SAME_IN_GGUF = {**GGUF_OF_FLOAT, "mxfp4": "MXFP4_MOE"}
"""Formats that GGUF files hold as they are, and their GGUF types; gpt-oss is published in mxfp4, and its GGUF files keep those blocks."""

FLOAT_TYPES = frozenset({*GGUF_OF_FLOAT, *GGUF_OF_FLOAT.values(), "16-bit", "32-bit"})  # tensor types without quantisation

UNIFORM_FORMATS = (
    Format(name="fp32", words="32-bit floats", bits=32, rest_bits=32, aliases=("float32", "f32")),
    Format(name="bf16", words="16-bit floats", aliases=("bfloat16",)),
    Format(name="fp16", words="16-bit floats", aliases=("float16", "half")),
    Format(name="fp8", words="8-bit floats, a scale per row", bits=8, row_bytes=4, aliases=("fp8-e4m3", "w8a8-fp8")),
    Format(name="int8", words="8-bit integers, a scale per row", bits=8, row_bytes=4, aliases=("w8a8", "w8a8-int8")),
    Format(name="awq", words="4-bit integers, groups of 128 with a 16-bit scale and a 4-bit zero point (AWQ)", bits=4, group=128,
           group_bits=20, aliases=("int4", "int4-awq", "awq-int4", "w4a16")),
    Format(name="gptq", bits=4, group=128, group_bits=20, column_bytes=4, aliases=("int4-gptq", "gptq-int4"),
           words="4-bit integers, groups of 128 with a 16-bit scale and a 4-bit zero point, an index per input (GPTQ)"),
    Format(name="mlx-8bit", words="8-bit integers, groups of 64 with a 16-bit scale and offset (MLX)", bits=8, group=64,
           group_bits=32),
    Format(name="mlx-4bit", words="4-bit integers, groups of 64 with a 16-bit scale and offset (MLX)", bits=4, group=64,
           group_bits=32),
    Format(name="int4-g32", words="4-bit integers, groups of 32 with a 16-bit scale (compressed-tensors)", bits=4, group=32,
           group_bits=16, experts_first=True),
    Format(name="nvfp4", words="4-bit floats, an 8-bit scale per 16", bits=4, group=16, group_bits=8, aliases=("fp4",)),
    Format(name="mxfp4", words="4-bit floats, an 8-bit exponent per 32", bits=4, group=32, group_bits=8, experts_first=True),
)  # fmt: skip
GGUF = tuple(Format(name=name, words="llama.cpp's own choice of types per tensor", gguf=True) for name in FILE_TYPES)
FORMATS = {fmt.name: fmt for fmt in (*UNIFORM_FORMATS, *GGUF)}


def format_names() -> dict[str, str]:
    """Return the format of each name and alias: "bf16" is plain, llama.cpp has "gguf-bf16"; "q4_k" means Q4_K_M as for llama-quantize."""
    names = {f"gguf-{fmt.name.lower()}": fmt.name for fmt in GGUF}
    names |= {fmt.name.lower(): fmt.name for fmt in GGUF} | {"q3_k": "Q3_K_M", "q4_k": "Q4_K_M", "q5_k": "Q5_K_M"}
    return names | {name: fmt.name for fmt in UNIFORM_FORMATS for name in (fmt.name, *fmt.aliases)}


def find_format(name: str) -> Format:
    """Return the format with that name; case and punctuation do not count."""
    fmt = _known_format(name)
    if fmt is None:
        names = format_names()
        hint = nearest(name, names, names.get) or f"; known: {', '.join(FORMATS)}"
        raise UserError(f"unknown quantization {quoted(name)}{hint}")
    return fmt


def _known_format(name: str) -> Format | None:
    def plain(name: str) -> str:
        return squeeze(name).replace(":", "")

    return next((FORMATS[format_name] for known, format_name in format_names().items() if plain(known) == plain(name)), None)


def split_model_name(text: str) -> tuple[str, Format | None]:
    """Split 'llama-3.3-70b:q4_k_m' into a model and a format. An Ollama tag such as 'llama3.3:70b' becomes a preset and its format. Text
    without a colon, or with a path after it, is only a model."""
    model, colon, name = text.rpartition(":")
    if not colon or "/" in name or "\\" in name:
        return text, _format_in_name(text)
    if not model or not name:
        raise UserError(f"{quoted(text)} is not MODEL:QUANTIZATION, such as llama-3.3-70b:q4_k_m")
    fmt = _known_format(name)
    if fmt is None and (tagged := from_ollama(text)) is not None:
        return tagged[0], find_format(tagged[1]) if tagged[1] else None
    return model, fmt or find_format(name)


def _format_in_name(text: str) -> Format | None:
    """Return the format that a repository or file name states ('Qwen3-8B-AWQ'), unless it is a file that is here or a preset's name."""
    if os.path.exists(text) or find_preset(text) is not None:
        return None
    worded = from_words(text)
    return find_format(worded[1]) if worded is not None and worded[1] else None


def as_gguf(fmt: Format) -> Format:
    """Return the GGUF type with which llama.cpp runs this format; refuse a format without one."""
    if fmt.gguf:
        return fmt
    if fmt.name not in SAME_IN_GGUF:
        near = {4: "Q4_K_M", 8: "Q8_0"}[fmt.bits]
        raise UserError(f"llama.cpp does not run {fmt.name}; it runs GGUF types, and {near} is the nearest")
    return FORMATS[SAME_IN_GGUF[fmt.name]]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor with its type and size."""

    slot: Slot
    type: str
    bytes: int

    @property
    def name(self) -> str:
        """llama.cpp's name of the tensor."""
        return self.slot.name

    @property
    def layer(self) -> int:
        """Layer number; EMBEDDING_LAYER for the embedding, the number of layers for the head."""
        return self.slot.layer

    @property
    def read(self) -> float:
        """Bytes that the device reads for a single token."""
        return self.bytes * self.slot.share


@dataclass(frozen=True)
class Weights:
    """All tensors of a model in one format."""

    format: str
    layers: int
    tensors: tuple[Weight, ...]

    @cached_property
    def bytes(self) -> int:
        """Size of the file: a head that is tied to the embedding counts once."""
        return sum(weight.bytes for weight in self.tensors if weight.slot.stored)

    @cached_property
    def elements(self) -> int:
        return sum(weight.slot.elements for weight in self.tensors if weight.slot.stored)

    @property
    def bits_per_weight(self) -> float:
        return self.bytes * 8 / self.elements

    @cached_property
    def by_layer(self) -> tuple[tuple[Weight, ...], ...]:
        """Tensors of each layer; those of the head come last."""
        layers: list[list[Weight]] = [[] for _ in range(self.layers + 1)]
        for weight in self.tensors:
            if weight.layer != EMBEDDING_LAYER:
                layers[weight.layer].append(weight)
        return tuple(tuple(layer) for layer in layers)

    @cached_property
    def embedding(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in self.tensors if weight.layer == EMBEDDING_LAYER)

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes in the file of the embedding, the layers, the head, and all norms."""
        sizes: dict[str, int] = {"embedding": 0, "layers": 0, "head": 0, "norms": 0}
        for weight in self.tensors:
            if not weight.slot.stored:
                continue
            place = "embedding" if weight.layer == EMBEDDING_LAYER else "head" if weight.layer == self.layers else "layers"
            sizes["norms" if "norm" in weight.name else place] += weight.bytes
        return sizes

    @cached_property
    def narrow(self) -> float:
        """Fraction of the bytes read for a token that are in types of fewer than 16 bits."""
        quantised = sum(weight.read for weight in self.tensors if weight.type not in FLOAT_TYPES)
        return quantised / sum(weight.read for weight in self.tensors)

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer; the last entry is the head, even if it is tied."""
        return tuple(total(layer) for layer in self.by_layer)


def total(weights: Iterable[Weight]) -> int:
    """Return the bytes of these tensors."""
    return sum(weight.bytes for weight in weights)


def read(weights: Iterable[Weight], tokens: float = 1) -> float:
    """Return the bytes read in a step of `tokens` tokens: tables by row, experts if a token is routed to them, the rest once. With a of e
    experts active, a step of b tokens reaches e (1 - (1 - a/e)^b) experts if routing is even."""
    size = 0.0
    for weight in weights:
        share = weight.slot.share
        size += weight.bytes * (share if tokens == 1 else 1 - (1 - share) ** tokens)
    return size


def weights(model: Model, fmt: Format | None = None, *, imatrix: bool = False, by_file: bool = False) -> Weights:
    """Return every tensor of `model` in a format. Without a format: as the .gguf file stores it, or in bf16. `imatrix`: quantised with an
    importance matrix, as most published IQ files are; it changes five file types by a percent or two. `by_file`: quantised before the end
    of 2024, when layers were counted in file order; the total is the same."""
    if model.tensors:
        if fmt is not None:
            raise UserError(f"{model.name} is quantised already; leave out ':{fmt.name}'")
        return _from_file(model)
    fmt = fmt or FORMATS["bf16"]
    tensors = slots(model, fmt.gguf)
    if fmt.gguf:
        order = file_order(tensors) if by_file else tensors
        chosen = _chooser(model, fmt.name, tensors, imatrix).types(order)
        types = {slot.name: kind for slot, kind in zip(order, chosen, strict=True)}
        typed = [Weight(slot, types[slot.name], size_of(types[slot.name], slot.elements)) for slot in tensors]
    else:
        sparse = fmt.experts_first and any(slot.expert for slot in tensors)
        typed = [_uniform(slot, fmt, slot.product and (slot.expert or not sparse)) for slot in tensors]
    return Weights(fmt.name, len(model.layers), tuple(_tied(typed)))


def _chooser(model: Model, file_type: str, tensors: Iterable[Slot], imatrix: bool) -> Chooser:
    """Return llama.cpp's rules for this model and file type."""
    d = model.decoder
    experts = max((slot.copies for slot in tensors if slot.expert), default=0)
    arch = architecture(model).name
    kept = model.quantization == "mxfp4"
    return Chooser(file_type, arch, d.layers, max(d.heads, 1), max(d.kv_heads, 1), experts, imatrix, kept)


def _uniform(slot: Slot, fmt: Format, quantised: bool) -> Weight:
    """Return a tensor in a format other than GGUF: its weights, scales and zero points."""
    if not quantised:
        return Weight(slot, f"{fmt.rest_bits}-bit", slot.elements * fmt.rest_bits // 8)
    groups = ceil(slot.columns / fmt.group) if fmt.group else 0
    bits = slot.rows * (slot.columns * fmt.bits + groups * fmt.group_bits)
    return Weight(slot, fmt.name, slot.copies * (ceil(bits / 8) + slot.rows * fmt.row_bytes + slot.columns * fmt.column_bytes))


def _tied(weights: list[Weight]) -> list[Weight]:
    """Give a head that is not stored the type and bytes of the embedding, to which it is tied."""
    (table,) = (weight for weight in weights if weight.name == "token_embd.weight")
    return [weight if weight.slot.stored else Weight(weight.slot, table.type, table.bytes) for weight in weights]


def _from_file(model: Model) -> Weights:
    """Return the tensors of a .gguf file; their bytes are exact, whatever rules the quantiser used."""
    known = {slot.name: slot for slot in slots(model, True)}
    layers = len(model.layers)
    weights: list[Weight] = []
    for tensor in model.tensors:
        slot = known.get(tensor.name) or Slot(tensor.name, 1, tensor.elements, layer=_layer(tensor.name, layers))
        weights.append(Weight(slot, tensor.type, tensor.bytes))
    stored = {tensor.name for tensor in model.tensors}
    if "output.weight" not in stored and "output.weight" in known:
        weights.append(Weight(known["output.weight"], "", 0))
    return Weights("as stored", layers, tuple(_tied(weights)))


def _layer(name: str, layers: int) -> int:
    """Return the layer in a tensor's name; a tensor without one belongs to the embedding or to the head."""
    number = name.removeprefix("blk.").partition(".")[0]
    if name.startswith("blk.") and number.isdecimal():
        return min(int(number), layers - 1)
    return layers if name.startswith("output") else EMBEDDING_LAYER
