"""Identify a text, or weights, by their content, whatever the names, places and times of their files."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from meshwise.errors import UserError

if TYPE_CHECKING:
    from meshwise.run.text.corpus import Checked

PART_BYTES = 1 << 16
"""Bytes that are read at the start, middle and end of a file: reading all of it could take as long as training on it."""


def fingerprint(corpus: "Checked") -> str:
    """Hash the tokenizer, and the size and parts of every file in order. Names and times of the files may change."""
    digest = hashlib.sha256(f"{corpus.tokenizer.key if corpus.tokenizer else ''}:{corpus.key}:{len(corpus.files)}".encode())
    for path in corpus.files:
        digest.update(_parts(path))
    return digest.hexdigest()[:32]


def weights_fingerprint(given: Path) -> str:
    """Hash the size and parts of the safetensors of a file or folder; each begins with the names and shapes of its tensors."""
    digest = hashlib.sha256()
    for path in sorted(given.glob("*.safetensors")) if given.is_dir() else [given]:
        digest.update(_parts(path))
    return digest.hexdigest()[:32]


def _parts(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            parts = [file.read(PART_BYTES) for at in (0, size // 2, max(0, size - PART_BYTES)) if file.seek(at) == at]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return b"%d:" % size + b"".join(parts)
