"""Error messages: one line, with the given text and the nearest valid choice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError, did_you_mean, nearest, one_of, quoted


def nested(depth: int) -> list[object]:
    outer: list[object] = []
    for _ in range(depth):
        outer = [outer]
    return outer


def test_bad_input_exits_with_two() -> None:
    assert UserError("no").exit_code == 2  # docs: 0 it fits, 1 it does not, 2 bad input


@given(st.text())
def test_a_message_is_one_line_whatever_a_file_put_into_it(text: str) -> None:
    message = str(UserError(f"chips/{text}.toml: no"))
    assert message.isprintable()
    assert len(message.splitlines()) == 1


def test_a_printable_message_is_unchanged() -> None:
    assert str(UserError("unknown chip 'h100x' – µ")) == "unknown chip 'h100x' – µ"


@given(st.text() | st.integers() | st.lists(st.text()), st.integers(min_value=10, max_value=80))
def test_a_quotation_is_never_longer_than_asked(value: object, longest: int) -> None:
    assert len(quoted(value, longest)) <= longest


def test_a_short_value_is_quoted_whole_and_a_long_one_shows_its_start() -> None:
    assert quoted("80gb") == "'80gb'"
    assert quoted("a" * 100, 20) == "'" + "a" * 15 + "...'"


def test_a_value_python_itself_cannot_print_is_still_quoted() -> None:
    assert quoted(16**5000) == "<int>"  # past Python's limit of 4300 digits
    assert quoted(nested(100_000)) == "<list>"


@pytest.mark.parametrize(
    ("given_name", "words"),
    [
        ("h100-smx", "; did you mean 'h100-sxm'?"),
        ("H100-SXN", "; did you mean 'h100-sxm'?"),
        ("RTX-4090", "; did you mean 'RTX4090'?"),
        ("zzzz", ""),
        ("banana", ""),
        ("", ""),
    ],
)
def test_the_nearest_name_is_offered_and_a_far_one_is_not(given_name: str, words: str) -> None:
    assert nearest(given_name, ["a100", "h100-sxm", "RTX4090"]) == words


def test_an_alias_is_offered_under_its_canonical_name() -> None:
    keys = {"trillium": "tpu-v6e", "h100": "h100-sxm"}
    assert nearest("trilium", keys, keys.get) == "; did you mean 'tpu-v6e'?"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ""),
        (["a"], "; did you mean 'a'?"),
        (["a", "b"], "; did you mean 'a' or 'b'?"),
        (["a", "b", "c", "d"], "; did you mean 'a', 'b', 'c' or 'd'?"),
        (["a", "b", "c", "d", "e"], "; did you mean 'a', 'b', 'c' or 2 more?"),
    ],
)
def test_several_names_are_offered_and_many_are_counted(names: list[str], words: str) -> None:
    assert did_you_mean(names) == words


def test_a_value_of_an_option_is_returned_or_refused_with_the_valid_ones() -> None:
    assert one_of("--device", "cpu", ("cpu", "cuda")) == "cpu"
    with pytest.raises(UserError, match=r"--device 'cdua': expected one of cpu, cuda; did you mean 'cuda'\?"):
        one_of("--device", "cdua", ("cpu", "cuda"))
