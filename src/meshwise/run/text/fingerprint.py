"""Fingerprint: by what a text is known again, wherever its files lie now and whenever they were copied there."""

import hashlib
from pathlib import Path

from meshwise.errors import UserError
from meshwise.run.text.corpus import Corpus

PART = 1 << 16
"""Bytes that are looked at in the beginning, the middle and the end of a file: all of it would take as long as training on it."""


def fingerprint(corpus: Corpus) -> str:
    """Of all that decides its tokens: the tokenizer, and the size and parts of every file in turn. Names and times may change."""
    found = hashlib.sha256(f"{corpus.tokenizer.key if corpus.tokenizer else ''}:{corpus.key}:{len(corpus.files)}".encode())
    for path in corpus.files:
        found.update(_parts(path))
    return found.hexdigest()[:32]


def _parts(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            parts = [file.read(PART) for at in (0, size // 2, max(0, size - PART)) if file.seek(at) == at]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    return b"%d:" % size + b"".join(parts)
