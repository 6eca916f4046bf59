"""Tokenizers: bytes, HF's tokenizer.json, and a byte-pair encoding learned from the text."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError, quoted

if TYPE_CHECKING:
    import numpy as np

BYTE_TOKENS = 256
MAX_TOKENIZER_BYTES = 1 << 28  # bytes of a tokenizer.json, at most
END = "<|endoftext|>"
ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""Names of the end-of-document token in well-known tokenizers, tried where no file names it."""
MAX_LEARNED_CHARS = 1 << 26  # most characters that a byte-pair encoding is learned from
Encode = Callable[[list[tuple[str, bool]]], "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer by name, before the library loads it."""

    name: str  # its name in messages
    size: int  # its vocabulary size
    end: int | None  # the token after each document
    source: str = ""  # HF's tokenizer.json; '' for bytes, and for an encoding that is not learned yet

    @property
    def unlearned(self) -> bool:
        """Whether it must be learned from the text first."""
        return self.name.startswith("bpe:") and not self.source

    @property
    def key(self) -> str:
        """A hash that identifies it."""
        return hashlib.sha256(f"{self.source or self.name}:{self.end}".encode()).hexdigest()


BYTE_TOKENIZER = Tokenizer("bytes", BYTE_TOKENS, 0)  # one token per byte; byte 0, which does not occur in text, ends a document


def find(given: str) -> Tokenizer:
    """Return the tokenizer that a name, file or folder stands for."""
    if given in ("", "bytes"):
        return BYTE_TOKENIZER
    if given.startswith("bpe:"):
        size = given.removeprefix("bpe:")
        if not (size.isascii() and size.isdigit() and BYTE_TOKENS < int(size) <= 1 << 20):
            raise UserError(
                f"--tokenizer {quoted(given)}: bpe:N learns N tokens, from {BYTE_TOKENS + 1} to {1 << 20}, such as bpe:4096"
            )
        return Tokenizer(f"bpe:{int(size)}", int(size), 0)
    path = Path(given)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        why = "the folder has no tokenizer.json" if path.is_dir() else "no such file or folder"
        raise UserError(f"--tokenizer {quoted(given)}: {why}; expected bytes, bpe:N, HF's tokenizer.json or its folder")
    return _from_file(file)


def _from_file(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    try:
        source = files.text_of(file, MAX_TOKENIZER_BYTES)
        vocabulary = Library.from_str(source).get_vocab(with_added_tokens=True)
    except UserError as error:
        raise UserError(f"--tokenizer: {error}") from None
    except Exception as error:  # the library raises Exception itself
        raise UserError(f"--tokenizer {file}: not HF's tokenizer.json ({str(error).splitlines()[0][:80]})") from None
    name = file.parent.resolve().name if file.name == "tokenizer.json" else file.stem
    size = max(vocabulary.values(), default=-1) + 1
    if not size:
        raise UserError(f"--tokenizer {file}: it is empty")
    return Tokenizer(name, size, _end(file.parent, vocabulary), source)


def _end(folder: Path, vocabulary: dict[str, int]) -> int | None:
    """Return the end-of-document token: as tokenizer_config.json in the same folder names it, or one with a well-known name."""
    try:
        named = json.loads(files.text_of(folder / "tokenizer_config.json")).get("eos_token")
    except (UserError, ValueError, AttributeError, RecursionError):
        named = None
    named = cast(dict[str, Any], named).get("content") if isinstance(named, dict) else named
    return next((vocabulary[name] for name in (named, *ENDS) if isinstance(name, str) and name in vocabulary), None)


def learn(tokenizer: Tokenizer, pieces: Iterable[tuple[str, bool]]) -> Tokenizer:
    """Learn a byte-level byte-pair encoding (arXiv:1508.07909) with at most `tokenizer.size` tokens from the start of a text."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = cast(Any, pre_tokenizers.ByteLevel).alphabet()
    trainer = cast(Any, trainers.BpeTrainer)(
        vocab_size=tokenizer.size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(_first(pieces, MAX_LEARNED_CHARS), trainer)
    return replace(tokenizer, source=library.to_str(), size=library.get_vocab_size())


def _first(pieces: Iterable[tuple[str, bool]], characters: int) -> Iterator[str]:
    for text, _ in pieces:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def encoder(tokenizer: Tokenizer) -> Encode:
    """Return a function that encodes pieces as one array of tokens, with an end token after each document."""
    return _as_library(tokenizer) if tokenizer.source else _as_bytes


def _as_bytes(pieces: list[tuple[str, bool]]) -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.frombuffer(b"".join(text.encode() + b"\0" * last for text, last in pieces), np.uint8)


def decode(tokenizer: Tokenizer, tokens: list[int]) -> bytes:
    """Decode tokens into text. Where tokens are bytes, ids above 255 are dropped."""
    if not tokenizer.source:
        return bytes(token for token in tokens if token < BYTE_TOKENS)
    from tokenizers import Tokenizer as Library

    return Library.from_str(tokenizer.source).decode(tokens, skip_special_tokens=False).encode()


def _as_library(tokenizer: Tokenizer) -> Encode:
    import numpy as np
    from tokenizers import Tokenizer as Library

    library = Library.from_str(tokenizer.source)
    # a file may contain truncation and padding that were set for embeddings
    library.no_truncation()
    library.no_padding()
    ends = [] if tokenizer.end is None else [tokenizer.end]

    def encode(pieces: list[tuple[str, bool]]) -> "np.ndarray[Any, Any]":
        encodings = encoded(lambda: library.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False))
        tokens: list[int] = []
        for encoding, (_, last) in zip(encodings, pieces, strict=True):
            tokens += encoding.ids
            tokens += ends * last
        return np.array(tokens, np.uint32)

    return encode


def encoded(call: Callable[[], Any]) -> Any:
    """Return what the library encodes; it raises a plain Exception for a text that its tokenizer.json has no token for."""
    try:
        return call()
    except Exception as error:
        raise UserError(f"the tokenizer cannot encode the text: {error}") from None
