"""A corpus: tokenized once, again if anything changed, and refused before a run if it cannot be read."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from meshwise.errors import UserError
from meshwise.run import packages
from meshwise.run.text import corpus
from meshwise.run.text.corpus import Corpus, check_fits, find, tokenize
from meshwise.workers.trainer.contract.settings import TokenFile
from support.command import one_line

TEXTS = [f"Document {i}: the river turns, and the baker waits for Ada." for i in range(20)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for i in range(2):
        rows = [json.dumps({"text": text}) for text in TEXTS[10 * i : 10 * i + 10]]
        (folder / f"{i}.jsonl").write_text("\n".join(rows))
    (tmp_path / "out").mkdir()
    return folder


def seen(data: Path | str, tokenizer: str = "", key: str = "") -> Corpus:
    found = find(str(data), tokenizer, key, 0)
    assert found is not None
    return found


def made(data: Path | str, out: Path, tokenizer: str = "", seq: int = 16) -> tuple[TokenFile, list[str]]:
    told: list[str] = []
    (file,) = tokenize(seen(data, tokenizer), out, seq, told.append)
    return file, told


def text_of(file: TokenFile) -> str:
    return bytes(np.memmap(file.path, f"<u{file.width}", "r", file.offset, (file.count,)).astype(np.uint8)).decode()


def test_shards_become_one_token_file_with_every_document_in_order(shards: Path, tmp_path: Path) -> None:
    file, told = made(shards, tmp_path / "out")
    assert text_of(file).split("\0") == [*TEXTS, ""]
    assert Path(file.path).parent == shards / ".meshwise"
    assert told[-1] == f"{shards}, tokenizer bytes: {file.count:,} tokens, {(file.count - 1) // 16:,} sequences of 16"


def test_tokens_are_made_once_and_again_only_when_text_or_tokenizer_changed(shards: Path, tmp_path: Path) -> None:
    first, told = made(shards, tmp_path / "out")
    assert len(told) == 2  # reading, and what was read
    again, told = made(shards, tmp_path / "out")
    assert (again, len(told)) == (first, 1)
    assert made(shards, tmp_path / "elsewhere")[0] == first
    with (shards / "1.jsonl").open("a") as file:
        file.write('\n{"text": "one more"}')
    longer, _ = made(shards, tmp_path / "out")
    assert text_of(longer).endswith("one more\0")
    assert longer.path != first.path


def test_a_truncated_cached_file_is_written_again(shards: Path, tmp_path: Path) -> None:
    first, _ = made(shards, tmp_path / "out")
    whole = Path(first.path).read_bytes()
    Path(first.path).write_bytes(whole[:-3])
    assert made(shards, tmp_path / "out")[0] == first
    assert Path(first.path).read_bytes() == whole


def test_tokens_are_kept_in_the_run_folder_if_the_folder_of_the_text_is_read_only(shards: Path, tmp_path: Path) -> None:
    (shards / ".meshwise").touch()  # a file where the folder would be: also root cannot write there
    file, _ = made(shards, tmp_path / "out")
    assert Path(file.path).parent == tmp_path / "out" / "tokens"


def test_a_learned_tokenizer_is_cached_and_copied_into_every_run_folder(shards: Path, tmp_path: Path) -> None:
    first, told = made(shards, tmp_path / "out", "bpe:400")
    assert told[0].startswith("learning bpe:400")
    (tmp_path / "other").mkdir()
    again, told = made(shards, tmp_path / "other", "bpe:400")
    assert (again, len(told)) == (first, 1)
    learned = (tmp_path / "out" / "tokenizer.json").read_text()
    assert (tmp_path / "other" / "tokenizer.json").read_text() == learned
    # as a tokenizer of HF's it gives the same tokens
    same, _ = made(shards, tmp_path / "other", str(tmp_path / "out" / "tokenizer.json"))
    assert Path(same.path).read_bytes()[64:] == Path(first.path).read_bytes()[64:]
    assert same.count < made(shards, tmp_path / "out")[0].count / 2


def test_the_embedded_text_can_be_read_with_a_learned_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "EMBEDDED_BYTES", 20_000)
    first, _ = made("", tmp_path, "bpe:300")
    assert 3000 < first.count < 20_000
    assert Path(first.path).parent == tmp_path / "tokens"
    assert find("", "", "", 0) is None
    assert find("", "bytes", "", 0) is None


def test_texts_longer_than_one_batch_of_the_tokenizer_are_complete(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CHARS_AT_ONCE", 100)
    assert text_of(made(shards, tmp_path / "out")[0]).split("\0") == [*TEXTS, ""]


def test_token_files_are_read_where_they_are_without_a_tokenizer(shards: Path, tmp_path: Path) -> None:
    kept, _ = made(shards, tmp_path / "out")
    again = seen(kept.path)
    assert tokenize(again, tmp_path / "out", 16, lambda _: None) == (kept,)
    assert again.size == 256
    (tmp_path / "bins").mkdir()
    for i in range(2):
        (tmp_path / "bins" / f"{i}.bin").write_bytes(struct.pack("<40H", *range(i, 40 + i)))
    both = seen(tmp_path / "bins")
    assert both.size == 41
    assert [file.count for file in tokenize(both, tmp_path / "out", 16, lambda _: None)] == [40, 40]


def refusal(data: Path | str, tokenizer: str = "", key: str = "", vocabulary: int = 512, seq: int = 16, out: str = "") -> str:
    def start() -> None:
        found = seen(data, tokenizer, key)
        check_fits(found, "tiny", vocabulary, seq)
        tokenize(found, Path(out), seq, lambda _: None)

    with pytest.raises(UserError) as error:
        start()
    return one_line(error.value)


def test_refused_where_the_model_has_fewer_tokens(shards: Path, tmp_path: Path) -> None:
    told = "--tokenizer bpe:4096 has token ids up to 4095, but tiny has a vocabulary of 512: use a model with at least 4096, or"
    assert refusal(shards, "bpe:4096") == f"{told} --tokenizer bpe:512"
    assert "use a model with at least 256" in refusal(shards, vocabulary=100)
    (tmp_path / "a.bin").write_bytes(struct.pack("<40H", *range(600, 640)))
    assert refusal(tmp_path / "a.bin").endswith(
        "a.bin has token ids up to 639, but tiny has a vocabulary of 512: use a model with at least 640"
    )


def test_refused_where_there_are_fewer_tokens_than_a_sequence(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("eleven more")
    told = refusal(tmp_path / "a.txt", out=str(tmp_path))
    assert told.endswith("has 12 tokens, fewer than a sequence of 16 and the token after it: use a longer text, or --seq 11")
    (tmp_path / "a.bin").write_bytes(struct.pack("<12H", *range(12)))
    assert "has 12 tokens, fewer than a sequence of 16" in refusal(tmp_path / "a.bin")
    (tmp_path / "b.txt").write_text("")
    assert refusal(tmp_path / "b.txt").endswith("it is empty")
    (tmp_path / "c.jsonl").write_text("\n\n")
    assert "has 0 tokens" in refusal(tmp_path / "c.jsonl", out=str(tmp_path))


def test_refused_where_options_contradict_the_files(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shards / "a.bin").write_bytes(bytes(80))
    assert "it has both text and token files" in refusal(shards)
    assert "already holds tokens: drop --tokenizer" in refusal(shards / "a.bin", "bytes")
    (tmp_path / "a.txt").write_text("some text")
    assert "--text-key body only applies to .jsonl, .json" in refusal(tmp_path / "a.txt", key="body")
    assert "--text-key body only applies to .jsonl" in refusal("", key="body")
    assert "line 1: no text under 'body'" in refusal(shards / "0.jsonl", key="body")
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
    assert "needs tokenizers, which is not installed: pip install 'tokenizers>=" in refusal(tmp_path / "a.txt", "bpe:300")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("a.txt", "a.bin"):
        (tmp_path / name).write_text("text")
    monkeypatch.setattr(Path, "open", denied)  # root may read everything
    for name in ("a.txt", "a.bin"):
        assert refusal(tmp_path / name) == f"cannot read {tmp_path / name}: Permission denied"
