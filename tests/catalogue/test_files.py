"""Data files: the user's override the built-in ones, names are matched and suggested, and a bad file is reported in one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue import files
from meshwise.errors import UserError
from support.command import one_line


def unreadable(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        files.table_of(path)
    message = one_line(caught.value)
    assert path.name in message
    return message


def test_a_users_file_comes_before_the_built_in_one(home: Path) -> None:
    users_file = home / "chips" / "h100-sxm.toml"
    users_file.write_text("")
    found = files.files("chips", ".toml")
    assert found["h100-sxm"] == users_file
    assert found["a40"] == files.BUILT_IN / "chips" / "a40.toml"


@pytest.mark.parametrize("spelling", ["H100_SXM", "h100_sxm", "H100 SXM"])
def test_a_users_file_hides_the_built_in_one_however_it_is_spelled(home: Path, spelling: str) -> None:
    (home / "chips" / f"{spelling}.toml").write_text("")
    same = [name for name in files.files("chips", ".toml") if files.squeeze(name) == "h100sxm"]
    assert same == [spelling]


def test_files_of_another_kind_are_left_alone(home: Path) -> None:
    (home / "chips" / "notes.txt").write_text("buy more")
    assert not any("notes" in name for name in files.files("chips", ".toml"))


def test_names_come_sorted() -> None:
    names = list(files.files("chips", ".toml"))
    assert names == sorted(names)


def test_without_a_user_folder_the_built_in_data_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path / "missing"))
    assert "h100-sxm" in files.files("chips", ".toml")


def test_the_default_folder_is_below_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MESHWISE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.user_folder() == tmp_path / ".config" / "meshwise"


def test_an_impossible_folder_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWISE_HOME", "a" * 300)  # a file name has at most 255 bytes
    with pytest.raises(UserError, match="cannot read 'aaa"):
        files.files("chips", ".toml")


@pytest.mark.parametrize("spelling", ["RTX 4060 Ti-16GB", "rtx4060ti-16gb", "RTX_4060_TI_16GB", "rtx4060ti16gb"])
def test_case_and_punctuation_of_a_name_do_not_count(spelling: str) -> None:
    assert files.squeeze(spelling) == "rtx4060ti16gb"


@pytest.mark.parametrize(("one", "other"), [("OPT 1.3B", "OPT 13B"), ("a10:0", "a100"), ("显卡", "芯片")])
def test_names_that_mean_different_things_stay_apart(one: str, other: str) -> None:
    assert files.squeeze(one) != files.squeeze(other)


@given(st.text())
def test_squeezing_a_name_twice_changes_nothing(name: str) -> None:
    once = files.squeeze(name)
    assert files.squeeze(once) == once


def test_names_of_every_catalogue_are_listed_without_reading_a_file(home: Path) -> None:
    for kind in ("chips", "clusters", "models"):
        (home / kind / ("mine.json" if kind == "models" else "mine.toml")).write_text("not a table")
    assert {"mine", "h100-sxm"} <= set(files.names("chips"))
    assert {"mine", "jean-zay"} <= set(files.names("clusters"))
    assert {"mine", "mistral-7b-v0.3"} <= set(files.names("models"))


NAMES = ["llama-3-70b", "llama-3.1-70b", "llama-3.1-8b", "llama-4-maverick", "gemma-3-4b", "gpt2", "gpt2-xl", "Qwen3 8B"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", NAMES),
        ("llama-3.1", ["llama-3.1-70b", "llama-3.1-8b"]),
        ("LLAMA 70b", ["llama-3-70b", "llama-3.1-70b"]),
        ("70b llama", ["llama-3-70b", "llama-3.1-70b"]),
        ("llama_3", ["llama-3-70b", "llama-3.1-70b", "llama-3.1-8b"]),
        ("qwen-3", ["Qwen3 8B"]),
        ("gpt-2", ["gpt2"]),  # exactly one of them
        ("gpt", ["gpt2", "gpt2-xl"]),
        ("banana", []),
    ],
)
def test_words_match_the_names_that_contain_all_of_them(words: str, found: list[str]) -> None:
    assert files.matching(words, NAMES) == found


def test_words_may_be_in_different_aliases_of_a_name() -> None:
    aliases = {"gpt2": ("OpenAI", "GPT-2 small"), "gpt2-xl": ("OpenAI",)}
    assert files.matching("openai small", NAMES, aliases) == ["gpt2"]
    assert files.matching("open-ai", NAMES, aliases) == ["gpt2", "gpt2-xl"]


@given(st.text(max_size=20), st.lists(st.text(max_size=10)))
def test_only_given_names_match_or_are_similar(words: str, names: list[str]) -> None:
    assert set(files.matching(words, names)) <= set(names)
    assert set(files.similar(words, names)) <= set(names)


@pytest.mark.parametrize(
    ("given_name", "found"),
    [
        ("lama-3-70b", ["llama-3-70b"]),
        ("llama-3-71b", ["llama-3-70b"]),
        ("llama-3.1", ["llama-3.1-8b", "llama-3.1-70b"]),  # incomplete: all that contain it, the closest first
        ("gtp2", ["gpt2"]),
        ("llama-4-behemoth", ["llama-4-maverick"]),  # half equal, and the same leading word
        ("glm-4.5-air", []),  # half equal to llama-4-maverick by its letters, but of another family
        ("kimi-k2", []),
        ("g", []),
        ("", []),
    ],
)
def test_a_similar_name_is_close_or_of_the_same_family(given_name: str, found: list[str]) -> None:
    assert files.similar(given_name, NAMES) == found


def test_of_equally_close_names_the_one_with_the_same_letters_or_the_same_start_is_first() -> None:
    assert files.similar("rtx3900", ["rtx3070", "rtx3090"]) == ["rtx3090"]
    assert files.similar("b100", ["a100", "b200", "h100"]) == ["b200"]


def test_a_table_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbfname = 'caf\xc3\xa9'")
    assert files.table_of(path) == {"name": "café"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name = ", "not valid TOML"),
        (b"name = 'a'\nname = 'b'", "not valid TOML"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = " + b"[" * 50_000, "not valid TOML"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "not a text file"),
        (b"a = '" + b"a" * (16 * 2**20) + b"'", "larger than 16 MiB"),
    ],
    ids=["unfinished", "twice", "endless number", "endless nesting", "binary", "huge"],
)
def test_a_file_that_is_not_toml_is_reported_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    assert words in unreadable(path)


def test_a_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.mkdir()
    assert "it is a folder" in unreadable(path)


@pytest.mark.parametrize("name", ["missing.toml", "a" * 5000 + ".toml", "nul\x00.toml"])
def test_a_file_that_is_not_there_is_reported_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"^cannot read '") as caught:
        files.table_of(tmp_path / name)
    assert len(one_line(caught.value)) < 300


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_one_line_of_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    try:
        assert isinstance(files.table_of(path), dict)
    except UserError as error:
        one_line(error)
