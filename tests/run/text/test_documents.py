"""Documents: whole, in order, from every kind of file; other content is refused with its place."""

import gzip
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.run.text import documents
from meshwise.run.text.documents import files, pieces
from support.command import one_line

TEXTS = ["Ada waits.\n\nBoris turns.", "naïve 東京 🙂", "x" * 100]
SUFFIXES = (".txt", ".jsonl", ".parquet")


def joined(path: Path, key: str = "text") -> list[str]:
    """Documents put together again from their pieces."""
    found, text = [], ""
    for part, last in pieces(path, key):
        text += part
        if last:
            found.append(text)
            text = ""
    assert text == ""
    return found


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()


def table(path: Path, **columns: list[object]) -> None:
    parquet.write_table(pa.table(columns), path)  # pyright: ignore[reportUnknownMemberType]


def test_every_kind_of_file_gives_its_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(TEXTS) + b"\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(TEXTS)))
    table(tmp_path / "c.parquet", text=[*TEXTS, None, ""], n=[1, 2, 3, 4, 5])
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        assert joined(tmp_path / name) == TEXTS, name
    for name, packed in (("d.txt", bytes), ("e.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(packed(TEXTS[1].encode()))
        assert joined(tmp_path / name) == [TEXTS[1]]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(1, 9))
def test_a_text_file_comes_whole_however_small_its_pieces(text: str, size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "READ_BYTES", size)
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        assert joined(path) == [text]


def test_another_key_is_read_when_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "one"}\n')
    table(tmp_path / "a.parquet", content=["one"])
    assert joined(tmp_path / "a.jsonl", "content") == joined(tmp_path / "a.parquet", "content") == ["one"]


SPOILT: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "another key": ("a.jsonl", lambda p: p.write_text('{"content": "x", "n": 1}\n'), "name the key with --text-key (found: content)"),
    "a number": ("a.jsonl", lambda p: p.write_bytes(lines(TEXTS) + b'{"text": 5}\n'), "line 4: no text under 'text'"),
    "no JSON": ("a.jsonl", lambda p: p.write_bytes(lines(TEXTS) + b"hello\n"), "line 4: not a JSON object"),
    "a list": ("a.jsonl", lambda p: p.write_text("[1]\n"), "line 1: not a JSON object"),
    "no UTF-8": ("a.txt", lambda p: p.write_bytes(b"abc\xff"), "is not UTF-8: invalid byte at 3"),
    "a letter cut off": ("a.txt", lambda p: p.write_bytes("abc東".encode()[:-1]), "is not UTF-8: invalid byte at 3"),
    "another column": ("a.parquet", lambda p: table(p, content=["x"], n=[1]), "no text column 'text'; name it with --text-key (found: c"),
    "no parquet": ("a.parquet", lambda p: p.write_bytes(b"hello"), "is not a readable parquet file"),
    "a .gz cut off": ("a.txt.gz", lambda p: p.write_bytes(gzip.compress(bytes(1000))[:-9]), "cannot read "),
    "no .gz": ("a.txt.gz", lambda p: p.write_bytes(b"hello"), "cannot read "),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_content_that_is_not_text_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    file, spoil, words = SPOILT[name]
    spoil(tmp_path / file)
    with pytest.raises(UserError) as error:
        list(pieces(tmp_path / file, "text"))
    assert words in one_line(error.value)


def test_half_a_pair_of_utf_16_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert joined(tmp_path / "a.jsonl") == ["a?b"]


def test_parquet_without_pyarrow_is_refused_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs pyarrow, which is not installed: pip install 'pyarrow>="):
        list(pieces(tmp_path / "a.parquet", "text"))


def test_a_folder_means_its_shards_in_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden/d.txt", "_SUCCESS", "README"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in files(str(tmp_path), SUFFIXES)] == ["a.txt", "b.txt", "c.txt"]
    assert [path.name for path in files(f"{tmp_path}/*.txt", SUFFIXES)] == ["a.txt", "b.txt"]


def test_paths_that_match_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").touch()
    (tmp_path / "image.png").touch()
    (tmp_path / "empty").mkdir()
    for path, words in {
        "korpus.txt": "no such file, folder or pattern; did you mean 'corpus.txt'?",
        "*.jsonl": "no such file, folder or pattern",
        "image.png": "'.png' is not one of .txt, .jsonl, .parquet",
        "empty": "the folder has no .txt, .jsonl, .parquet files",
    }.items():
        with pytest.raises(UserError) as error:
            files(str(tmp_path / path), SUFFIXES)
        assert words in one_line(error.value)
