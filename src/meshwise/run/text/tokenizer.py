"""Tokenizers: bytes, HF's tokenizer.json, and a byte-pair encoding that is learned from the text."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwise.errors import UserError, quoted

if TYPE_CHECKING:
    import numpy as np

BYTES = 256
END = "<|endoftext|>"
ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""What well-known tokenizers call the end of a document, looked for where no file says."""
LEARNED_FROM = 1 << 26
"""Letters at most that a byte-pair encoding is learned from."""
Encode = Callable[[list[tuple[str, bool]]], "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Tokenizer:
    words: str
    """What to call it."""
    size: int
    """The vocabulary that it needs."""
    end: int | None
    """The token after each document."""
    source: str = ""
    """HF's tokenizer.json; none for bytes, and for an encoding that is still to be learned."""

    @property
    def learned(self) -> bool:
        """Whether it is (still) to be learned from the text."""
        return self.words.startswith("bpe:") and not self.source

    @property
    def key(self) -> str:
        """What tells it from others."""
        return hashlib.sha256(f"{self.source or self.words}:{self.end}".encode()).hexdigest()


PLAIN = Tokenizer("bytes", BYTES, 0)
"""One token per byte; byte 0, which text does not hold, ends a document."""


def find(given: str) -> Tokenizer:
    """The tokenizer that a word, file or folder means."""
    if given in ("", "bytes"):
        return PLAIN
    if given.startswith("bpe:"):
        size = given.removeprefix("bpe:")
        if not (size.isascii() and size.isdigit() and BYTES < int(size) <= 1 << 20):
            raise UserError(f"--tokenizer {quoted(given)}: bpe:N learns N tokens, of {BYTES + 1} to {1 << 20}, such as bpe:4096")
        return Tokenizer(f"bpe:{int(size)}", int(size), 0)
    path = Path(given)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        why = "the folder holds no tokenizer.json" if path.is_dir() else "no such file or folder"
        raise UserError(f"--tokenizer {quoted(given)}: {why}; it is bytes, bpe:N, a tokenizer.json of HF's or its folder")
    return _from_file(file)


def _from_file(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    try:
        source = file.read_text(encoding="utf-8")
        vocabulary = Library.from_str(source).get_vocab(with_added_tokens=True)
    except OSError as error:
        raise UserError(f"--tokenizer {file}: cannot be read ({error.strerror})") from None
    except Exception as error:  # the library raises Exception itself
        raise UserError(f"--tokenizer {file}: not HF's tokenizer.json ({str(error).splitlines()[0][:80]})") from None
    name = file.parent.resolve().name if file.name == "tokenizer.json" else file.stem
    size = max(vocabulary.values(), default=-1) + 1
    if not size:
        raise UserError(f"--tokenizer {file}: it has no tokens")
    return Tokenizer(name, size, _end(file.parent, vocabulary), source)


def _end(folder: Path, vocabulary: dict[str, int]) -> int | None:
    """The end of a document: what tokenizer_config.json beside it says, or a well-known name."""
    try:
        named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        named = None
    named = cast(dict[str, Any], named).get("content") if isinstance(named, dict) else named
    return next((vocabulary[name] for name in (named, *ENDS) if isinstance(name, str) and name in vocabulary), None)


def learn(wanted: Tokenizer, pieces: Iterable[tuple[str, bool]]) -> Tokenizer:
    """A byte-level byte-pair encoding (arXiv:1508.07909) of the first pieces of a text, with at most as many tokens as wanted."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = cast(Any, pre_tokenizers.ByteLevel).alphabet()
    trainer = cast(Any, trainers.BpeTrainer)(
        vocab_size=wanted.size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(_first(pieces, LEARNED_FROM), trainer)
    return replace(wanted, source=library.to_str(), size=library.get_vocab_size())


def _first(pieces: Iterable[tuple[str, bool]], letters: int) -> Iterator[str]:
    for text, _ in pieces:
        yield text
        letters -= len(text)
        if letters <= 0:
            return


def encoder(tokenizer: Tokenizer) -> Encode:
    """Pieces as one run of tokens, with an end after each document."""
    return _as_library(tokenizer) if tokenizer.source else _as_bytes


def _as_bytes(pieces: list[tuple[str, bool]]) -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.frombuffer(b"".join(text.encode() + b"\0" * last for text, last in pieces), np.uint8)


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> bytes:
    """What tokens say; those beyond the bytes, where a token is one, say nothing."""
    if not tokenizer.source:
        return bytes(token for token in tokens if token < BYTES)
    from tokenizers import Tokenizer as Library

    return Library.from_str(tokenizer.source).decode(tokens, skip_special_tokens=False).encode()


def _as_library(tokenizer: Tokenizer) -> Encode:
    import numpy as np
    from tokenizers import Tokenizer as Library

    library = Library.from_str(tokenizer.source)
    # a file may hold what was set for a search engine
    library.no_truncation()
    library.no_padding()
    ends = [] if tokenizer.end is None else [tokenizer.end]

    def encode(pieces: list[tuple[str, bool]]) -> "np.ndarray[Any, Any]":
        found = library.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False)
        tokens: list[int] = []
        for one, (_, last) in zip(found, pieces, strict=True):
            tokens += one.ids
            tokens += ends * last
        return np.array(tokens, np.uint32)

    return encode
