"""Token files: the format of meshwise, and those of nanoGPT, llm.c and Megatron.

The format of meshwise is a header of 64 bytes and little-endian tokens. The header: magic, bytes per token (2 or 4), vocabulary size,
number of tokens, the end-of-document token (-1: none), and a digest of the text and tokenizer. Files with the second magic have tokens of
4 bytes whose highest bit hides them from the loss.
"""

import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from meshwise.errors import UserError
from meshwise.workers.trainer.contract.settings import TokenFile

if TYPE_CHECKING:
    import numpy as np

MAGIC, HIDING = b"MESHTOK1", b"MESHTOK2"
HEADER = struct.Struct("<8sIIQq32s")
SUFFIXES = (".tokens", ".bin")
LLM_C = {20240520: 2, 20240801: 4}
"""First number of llm.c's files -> bytes per token: GPT-2's and Llama 3's (its dev/data/data_common.py, from memory)."""
LLM_C_HEADER_BYTES = 1024
MEGATRON = b"MMIDIDX\0\0"
MEGATRON_WIDTHS = {4: 4, 8: 2}  # megatron's codes for int32 and uint16 -> bytes per token (its indexed_dataset.py, from memory)
CHUNK_TOKENS = 1 << 24


@dataclass(frozen=True)
class TokenFileInfo:
    """A token file, and the smallest vocabulary size that covers its tokens."""

    file: TokenFile
    size: int
    digest: bytes = b""
    end: int = -1  # the token that ends a document; -1 if the file does not state it
    hides: bool = False  # whether tokens may be hidden from the loss


def width_of(size: int) -> int:
    """Return the bytes per token for a vocabulary size."""
    return 2 if size <= 1 << 16 else 4


def read(path: Path) -> TokenFileInfo:
    """Read the header of a token file; where it states no vocabulary size, look for the largest token."""
    try:
        with path.open("rb") as opened:
            head = opened.read(HEADER.size)
        size = path.stat().st_size
        if head.startswith((MAGIC, HIDING)):
            return _read_meshwise(path, head, size)
        if path.suffix == ".tokens":
            raise UserError(f"{path} is not a token file: it does not start with {MAGIC.decode()}")
        return _read_other(path, head, size)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _read_meshwise(path: Path, head: bytes, size: int) -> TokenFileInfo:
    if len(head) < HEADER.size:
        raise UserError(f"{path} is corrupt: its header is incomplete")
    magic, width, vocabulary, count, end, digest = HEADER.unpack(head)
    if width not in ((4,) if magic == HIDING else (2, 4)) or not 0 < vocabulary <= 1 << 8 * width:
        raise UserError(f"{path} is corrupt: {width} bytes per token and a vocabulary of {vocabulary}")
    _check_size(path, count, width, HEADER.size, size)
    return TokenFileInfo(TokenFile(str(path.absolute()), HEADER.size, count, width), vocabulary, digest, end, magic == HIDING)


def _check_size(path: Path, count: int, width: int, offset: int, size: int) -> None:
    if size != offset + count * width:
        raise UserError(f"{path} is corrupt: {count} tokens need {offset + count * width} bytes, but it has {size}")


def _read_other(path: Path, head: bytes, size: int) -> TokenFileInfo:
    first = int.from_bytes(head[:4], "little")
    if first in LLM_C:
        offset, width, count = LLM_C_HEADER_BYTES, LLM_C[first], int.from_bytes(head[8:12], "little")
        _check_size(path, count, width, offset, size)
    else:
        index = path.with_suffix(".idx")
        width = _megatron_width(index) if index.is_file() else 4 if path.stem.endswith((".uint32", ".u32", "_uint32")) else 2
        offset, count = 0, size // width
        if size % width:
            raise UserError(f"{path} is corrupt: {size} bytes are not a multiple of {width} bytes per token")
    file = TokenFile(str(path.absolute()), offset, count, width)
    return TokenFileInfo(file, _largest_token(file) + 1)


def _megatron_width(index: Path) -> int:
    with index.open("rb") as opened:
        head = opened.read(len(MEGATRON) + 9)
    code = head[-1] if len(head) == len(MEGATRON) + 9 else 0
    if not head.startswith(MEGATRON) or code not in MEGATRON_WIDTHS:
        raise UserError(f"{index} is not a Megatron index for tokens of 2 or 4 bytes")
    return MEGATRON_WIDTHS[code]


def _largest_token(file: TokenFile) -> int:
    import numpy as np

    if not file.count:
        return 0
    tokens = np.memmap(file.path, f"<u{file.width}", "r", file.offset, (file.count,))
    if file.width == 2 and file.count >= 64 and not tokens[1:8192:2].any():
        raise UserError(
            f"{file.path} looks like tokens of 4 bytes, because every second pair of bytes is zero: rename it to *.uint32.bin"
        )
    return max(int(tokens[first : first + CHUNK_TOKENS].max()) for first in range(0, file.count, CHUNK_TOKENS))


class Writer:
    """Writes a token file completely or not at all."""

    def __init__(self, path: Path, size: int, end: int | None, digest: bytes, hides: bool = False) -> None:
        self.path, self.size, self.end, self.digest, self.hides = path, size, end, digest, hides
        self.width, self.count = 4 if hides else width_of(size), 0

    def __enter__(self) -> "Writer":
        try:
            handle, self.temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".", suffix=".part")
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None
        self.file = open(handle, "wb")
        self.file.write(bytes(HEADER.size))
        return self

    def add(self, tokens: "np.ndarray[Any, Any]") -> None:
        self.file.write(tokens.astype(f"<u{self.width}").tobytes())
        self.count += len(tokens)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self.file.seek(0)
                end = -1 if self.end is None else self.end
                self.file.write(HEADER.pack(HIDING if self.hides else MAGIC, self.width, self.size, self.count, end, self.digest))
            self.file.close()
            if kind is None:
                os.chmod(self.temporary, 0o644)  # mkstemp makes it readable by its owner only
                os.replace(self.temporary, self.path)
        except OSError as write_error:
            error = write_error
        finally:
            Path(self.temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk, before or now
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None
