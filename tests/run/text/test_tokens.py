"""Token files: meshwise's are read as written, those of other programs are read too, and a broken one is refused."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.run.text.tokens import HEADER, MAGIC, Writer, read
from meshwise.workers.trainer.contract.settings import TokenFile
from support.command import one_line

DIGEST = bytes(range(32))


def held(file: TokenFile) -> list[int]:
    return np.memmap(file.path, f"<u{file.width}", "r", file.offset, (file.count,)).tolist() if file.count else []


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=30), max_size=5), st.booleans())
def test_tokens_are_read_as_they_were_written(parts: list[list[int]], small: bool) -> None:
    import tempfile

    size = 1 << 16 if small else 2**32 - 1
    parts = [[token % size for token in part] for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tokens")
        with Writer(path, size, 7, DIGEST) as writer:
            for part in parts:
                writer.add(np.array(part, np.uint32))
            assert not path.exists()  # not before it is whole
        found = read(path)
        assert held(found.file) == [token for part in parts for token in part]
        assert (found.file.width, found.size, found.digest) == (2 if small else 4, size, DIGEST)


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with Writer(tmp_path / "a.tokens", 10, None, DIGEST) as writer:
            writer.add(np.array([1, 2]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_in_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    def write() -> None:
        with Writer(tmp_path / "a.tokens", 10, None, DIGEST):
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*a\.tokens: No space left on device"):
        write()
    assert list(tmp_path.iterdir()) == []


def ours(path: Path, width: int = 2, vocabulary: int = 300, count: int = 4, body: bytes = bytes(8)) -> None:
    path.write_bytes(HEADER.pack(MAGIC, width, vocabulary, count, -1, DIGEST) + body)


def test_a_truncated_or_corrupt_file_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    ours(path)
    assert read(path).file.count == 4
    faults = {
        "4 tokens need 72 bytes, but it has 70": lambda: ours(path, body=bytes(6)),
        "3 bytes per token": lambda: ours(path, width=3),
        "a vocabulary of 70000": lambda: ours(path, vocabulary=70_000),
        "its header is incomplete": lambda: path.write_bytes(MAGIC + bytes(20)),
        "does not start with MESHTOK1": lambda: path.write_bytes(b"hello"),
    }
    for words, spoil in faults.items():
        spoil()
        with pytest.raises(UserError) as error:
            read(path)
        assert words in one_line(error.value)


def test_nanogpt_s_files_are_two_bytes_a_token_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(struct.pack("<5H", 5, 50256, 7, 8, 9))
    found = read(path)
    assert held(found.file) == [5, 50256, 7, 8, 9]
    assert found.size == 50257
    path.write_bytes(bytes(5))
    with pytest.raises(UserError, match="5 bytes are not a multiple of 2 bytes per token"):
        read(path)


def test_tokens_of_four_bytes_are_known_by_name_and_suspected_without_it(tmp_path: Path) -> None:
    tokens = [i * 7 % 1000 + 1 for i in range(100)]
    plain, named = tmp_path / "train.bin", tmp_path / "train.uint32.bin"
    for path in (plain, named):
        path.write_bytes(struct.pack("<100I", *tokens))
    assert held(read(named).file) == tokens
    with pytest.raises(UserError, match=r"looks like tokens of 4 bytes.*\.uint32\.bin"):
        read(plain)


@pytest.mark.parametrize(("magic", "kind"), [(20240520, "H"), (20240801, "I")])
def test_llm_c_s_files_are_known_by_their_first_number(tmp_path: Path, magic: int, kind: str) -> None:
    path = tmp_path / "val.bin"
    path.write_bytes(struct.pack("<256i", magic, 1, 3, *[0] * 253) + struct.pack(f"<3{kind}", 5, 6, 50000))
    found = read(path)
    assert (held(found.file), found.size) == ([5, 6, 50000], 50001)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="is corrupt: 3 tokens need"):
        read(path)


@pytest.mark.parametrize(("code", "kind"), [(8, "H"), (4, "i")])
def test_the_token_width_of_megatron_files_is_read_from_their_index(tmp_path: Path, code: int, kind: str) -> None:
    (tmp_path / "c_text_document.bin").write_bytes(struct.pack(f"<4{kind}", 9, 8, 7, 6))
    index = tmp_path / "c_text_document.idx"
    index.write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 1, 2))
    assert held(read(tmp_path / "c_text_document.bin").file) == [9, 8, 7, 6]
    index.write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 5, 1, 2))
    with pytest.raises(UserError, match="not a Megatron index for tokens of 2 or 4 bytes"):
        read(tmp_path / "c_text_document.bin")
