"""Ollama tags: read 'llama3.3:70b' or 'qwen2.5:7b-instruct-q4_K_M' as a preset and a weight format.

A tag is a name in Ollama's library, a colon, and words separated by '-': a size, variants, a quantization. There is no table of
models: a preset fits if its name begins with the library's name, and the size in its name or its parameter count is the tag's.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from meshwise import units
from meshwise.catalogue.files import squeeze
from meshwise.models.quantization import FILE_TYPES

SIZE_TOLERANCE = 0.07
"""Relative difference between a tag's rounded size and the parameters of its model: phi4:14b has 14.7 billion."""
_COUNT = re.compile(r"\d+(\.\d+)?[bm]")
_SIZE = re.compile(r"\d+(\.\d+)?[bm]|\d+x\d+b")
_VERSION = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class Tag:
    """The parts of an Ollama tag, in lower case."""

    name: str
    words: tuple[str, ...]  # size and variants: '7b', 'instruct', 'v0.3'
    format: str  # a weight format, such as 'q4_k_m'; empty where the tag names none

    @property
    def sized(self) -> bool:
        """Whether it states a size, such as '70b' or '8x7b'."""
        return any(map(_SIZE.fullmatch, self.words))

    @property
    def parameters(self) -> float:
        """The size in parameters; 0 where it states none, or as '8x7b'."""
        return next((units.parse(word, "count") for word in self.words if _COUNT.fullmatch(word)), 0.0)


@cache
def quantizations() -> dict[str, str]:
    """Return the words of a tag that name a weight format. Gemma's quantization-aware files ('qat') are in Q4_0."""
    return {squeeze(name): name.lower() for name in (*FILE_TYPES, "fp16", "fp32")} | {"qat": "q4_0"}


def parse(text: str) -> Tag | None:
    """Split a tag into its parts; None where `text` has no colon, or is a path or a hub id."""
    name, colon, rest = text.strip().lower().partition(":")
    if not (name and colon and rest) or re.search(r"[/\\:]", name + rest):
        return None
    words, known = rest.split("-"), quantizations()
    formats = [known[squeeze(word)] for word in words if squeeze(word) in known]
    return Tag(name, tuple(word for word in words if squeeze(word) not in known), formats[0] if formats else "")


def fitting(tag: Tag, presets: Iterable[str], parameters: Callable[[str], float]) -> list[str]:
    """Return the presets that fit a tag best: several where it is ambiguous, none where no preset is that model."""
    scores: dict[str, tuple[int, int]] = {}
    for preset in presets:
        rest = _words_after(tag.name, preset)
        if rest is None:
            continue
        sizes = [word for word in rest if _SIZE.fullmatch(word)]
        if sizes or not tag.sized:  # 'phi3:mini' states no size, but all of the other words of phi-3-mini
            fits = all(word in tag.words for word in sizes or rest or [""])
        else:
            fits = tag.parameters > 0 and abs(parameters(preset) / tag.parameters - 1) < SIZE_TOLERANCE
        if fits:
            shared = sum(word in tag.words for word in rest)
            scores[preset] = (shared, shared - len(rest))
    return [preset for preset, score in scores.items() if score == max(scores.values())]


def _words_after(name: str, preset: str) -> list[str] | None:
    """Return the words of a preset's name after `name`; None if it does not begin with it, or if it is another version. 'llama-3.3-70b'
    begins with 'llama3.3'. It also begins with 'llama', but is followed by a version, so it is another model."""
    words = preset.lower().split("-")
    for length in range(1, len(words) + 1):
        if squeeze("-".join(words[:length])) == squeeze(name):
            rest = words[length:]
            return None if rest and _VERSION.fullmatch(rest[0]) else rest
    return None
