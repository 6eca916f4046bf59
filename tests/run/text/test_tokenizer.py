"""Tokenizers: text is decoded from its tokens, ends are marked, and other files are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from meshwise.errors import UserError
from meshwise.run.text.tokenizer import BYTE_TOKENIZER, Tokenizer, encoder, find, learn
from support.command import one_line

WORDS = [("the river turns and the river shines", True), ("the old river waits for the baker", True)]
LEARNED = learn(find("bpe:300"), WORDS)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


def saved(folder: Path, **beside: Any) -> Path:
    """A learned tokenizer as HF saves it, with what a model's folder holds beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(LEARNED.source)
    for name, values in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_bytes_are_the_text_with_a_zero_after_each_document(texts: list[str]) -> None:
    tokens = encoder(BYTE_TOKENIZER)([(text, True) for text in texts])
    assert bytes(tokens.tolist()).decode().split("\0")[:-1] == texts


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_a_learned_encoding_loses_nothing_and_marks_the_ends(texts: list[str]) -> None:
    tokens = encoder(LEARNED)([(text, True) for text in texts]).tolist()
    assert tokens.count(0) == len(texts)  # 0 is <|endoftext|>, which no text of ours holds
    assert Library.from_str(LEARNED.source).decode(tokens, skip_special_tokens=False).split("<|endoftext|>")[:-1] == texts


def test_a_learned_encoding_is_shorter_than_bytes_and_no_larger_than_asked() -> None:
    # 256 bytes, the end, and what 300 leaves: 43 merges, fewer where the text has no more pairs
    assert 257 < LEARNED.size <= 300
    assert len(encoder(LEARNED)(WORDS)) < len(encoder(BYTE_TOKENIZER)(WORDS)) / 2
    assert learn(find("bpe:300"), WORDS).source == LEARNED.source  # the same each time


def test_a_piece_that_does_not_end_a_document_has_no_mark() -> None:
    assert encoder(BYTE_TOKENIZER)([("a", False), ("b", True)]).tolist() == [97, 98, 0]
    assert encoder(LEARNED)([("the", False), ("", True)]).tolist()[-1] == 0


def test_a_folder_s_tokenizer_is_read_with_the_end_that_the_folder_names(tmp_path: Path) -> None:
    plain = find(str(saved(tmp_path / "plain")))
    assert (plain.name, plain.size, plain.end) == ("plain", LEARNED.size, 0)
    assert find(str(tmp_path / "plain" / "tokenizer.json")) == plain
    letter = Library.from_str(LEARNED.source).token_to_id("a")
    for eos in ("a", {"content": "a"}):
        assert find(str(saved(tmp_path / "named", tokenizer_config={"eos_token": eos}))).end == letter


def test_truncation_settings_are_ignored_and_gaps_in_token_ids_count(tmp_path: Path) -> None:
    library = Library.from_str(LEARNED.source)
    library.enable_truncation(2)
    library.enable_padding(length=50)
    library.add_special_tokens([AddedToken("<extra>")])
    path = tmp_path / "tokenizer.json"
    values = json.loads(library.to_str())
    values["added_tokens"][-1]["id"] = 900
    path.write_text(json.dumps(values))
    found = find(str(path))
    assert found.size == max(Library.from_file(str(path)).get_vocab().values()) + 1
    assert encoder(found)(WORDS).tolist() == encoder(LEARNED)(WORDS).tolist()


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{}")
    for given_, words in {
        "bpe:100": "bpe:N learns N tokens, from 257 to 1048576",
        "bpe:many": "bpe:N learns N tokens",
        "bpe:²": "bpe:N learns N tokens",
        "gpt5": "no such file or folder; expected bytes, bpe:N, HF's tokenizer.json or its folder",
        str(tmp_path / "empty"): "the folder has no tokenizer.json",
        str(tmp_path / "broken.json"): "not HF's tokenizer.json",
    }.items():
        with pytest.raises(UserError) as error:
            find(given_)
        assert words in one_line(error.value), given_


def test_the_key_differs_by_tokenizer_and_end_token() -> None:
    keys = {
        BYTE_TOKENIZER.key,
        LEARNED.key,
        find("bpe:300").key,
        find("bpe:301").key,
        Tokenizer("x", 300, None, LEARNED.source).key,
    }
    assert len(keys) == 5
