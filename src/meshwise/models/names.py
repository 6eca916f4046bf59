"""Names as people write them: hub ids of other publishers, repository folders, and GGUF file names, read as a preset and a weight format.

'unsloth/GLM-4.6-GGUF', 'Qwen3-8B-Instruct-AWQ' and 'GLM-4.6-UD-Q4_K_XL-00001-of-00005.gguf' are presets with words after their name.
Words that name a weight format or a variant with the same sizes are dropped from the end until a known name is left.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshwise.catalogue.files import squeeze
from meshwise.models.quantization import FILE_TYPES

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_GGUF_TYPE = re.compile(r"(?:ud[-_])?(iq\d|q\d|tq\d)(_\w+)?$|(?:ud[-_])?(mxfp4)(_moe)?$", re.IGNORECASE)
_FILE_TYPE_OF_XL = {"Q2_K": "Q2_K", "Q3_K": "Q3_K_L", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q6_K": "Q6_K", "Q8_K": "Q8_0"}
"""The file type nearest to an '_XL' of Unsloth and others, which keep some tensors in wider types."""

FORMATS = {
    "fp8": "fp8", "fp8dynamic": "fp8", "fp8block": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "awq": "awq",
    "awqint4": "awq", "awq4bit": "awq", "gptq": "gptq", "gptqint4": "gptq", "gptqint8": "int8", "w4a16": "awq",
    "quantizedw4a16": "awq", "int4": "awq", "int4mixedar": "awq", "int8": "int8", "w8a8": "int8", "quantizedw8a8": "int8",
    "bf16": "bf16", "fp16": "fp16", "f16": "fp16", "fp32": "fp32",
}  # fmt: skip
"""Words at the end of a repository's name, squeezed, and the weight format that they name."""

_VARIANTS = frozenset((
    "instruct", "it", "chat", "hf", "base", "pt", "thinking", "reasoning", "preview", "latest", "turbo", "dpo", "sft", "rl",
    "gguf", "mlx", "exl2", "exl3", "onnx", "ov", "i1", "imatrix", "qat", "unsloth", "bnb", "safetensors", "abliterated",
    "3bit", "4bit", "6bit", "8bit", "dynamic", "static", "pertensor", "marlin",
))  # fmt: skip
"""Words at the end of a name that do not change the sizes of a model."""
_DATE = re.compile(r"(20)?2[3-9][01]\d(\d\d)?|v\d+(\.\d+)?")
"""A release in a name, which does not change its sizes: 2507 is July 2025."""
_PREFIXES = ("meta-", "google_", "google-", "nvidia_", "nvidia-", "mistralai_", "qwen_", "microsoft_", "deepseek-ai_", "zai-org_")


@dataclass(frozen=True)
class Name:
    """A name with the words after it dropped."""

    known: str  # the key of `find` in the table of known names
    format: str  # a weight format, such as 'Q4_K_M' or 'fp8'; empty where the name states none
    rounded: bool = False  # whether the format is only the nearest one that is planned (an '_XL' file)


def read(text: str, known: Mapping[str, object]) -> Name | None:
    """Return the known name that `text` begins with; None where it is none's. `known` has squeezed names as keys."""
    bare = re.sub(r"\([^)]*\)", " ", text).strip()  # 'DeepSeekV3 (w/o MTP)'
    stem = re.split(r"[/\\]", bare)[-1]
    if stem.lower().endswith(".gguf"):
        stem = stem[:-5]
    return _read(_PART.sub("", stem), frozenset(known))


@cache
def _read(stem: str, known: frozenset[str]) -> Name | None:
    lowered = stem.lower()
    starts = [lowered, *(lowered.removeprefix(prefix) for prefix in _PREFIXES if lowered.startswith(prefix))]
    for start in starts:
        found = _dropped(start, known)
        if found is not None:
            return found
    return None


def _dropped(rest: str, known: frozenset[str]) -> Name | None:
    """Drop words from the end until a known name is left."""
    fmt, rounded = "", False
    while rest:
        if squeeze(rest) in known:
            return Name(squeeze(rest), fmt, rounded)
        head, word = _last(rest)
        if not head:
            return None
        gguf = gguf_type(word)
        if gguf is not None:
            fmt, rounded = (gguf[0], gguf[1]) if not fmt else (fmt, rounded)
        elif squeeze(word) in FORMATS:
            # the method says more than the width: 'GPTQ-Int4' is gptq
            fmt = FORMATS[squeeze(word)] if not fmt or (word == "gptq" and fmt == FORMATS["int4"]) else fmt
        elif squeeze(word) not in _VARIANTS and word != "ud" and not _DATE.fullmatch(word):
            return None
        rest = head
    return None


def _last(text: str) -> tuple[str, str]:
    """Split the last word off. The underscores of a GGUF type belong to it: 'glm-4.6-ud-q4_k_xl' ends in 'q4_k_xl'."""
    match = re.search(r"[-_.](?:ud[-_])?((?:iq|q|tq)\d\w*|mxfp4(?:_moe)?)$", text)
    if match:
        return text[: match.start()], match[1]
    match = re.search(r"[-_ ](v\d+(?:\.\d+)?)$", text) or re.search(r"[-_. ]([^-_. ]+)$", text)
    return (text[: match.start()], match[1]) if match else ("", text)


def gguf_type(word: str) -> tuple[str, bool] | None:
    """Return llama.cpp's file type that a word of a file name states, and whether it is only the nearest one; None for other words."""
    if not _GGUF_TYPE.fullmatch(word):
        return None
    plain = word.upper().removeprefix("UD-").removeprefix("UD_")
    if plain in FILE_TYPES:
        return plain, False
    if plain == "MXFP4":
        return "MXFP4_MOE", False
    stem = plain.removesuffix("_XL").removesuffix("_L").removesuffix("_P")
    nearest = _FILE_TYPE_OF_XL.get(stem) or (stem if stem in FILE_TYPES else None)
    return (nearest, True) if nearest else None
