"""A config.json is untrusted: every key is checked, and an error is one line with the key's name."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.models.config import MAX_LAYERS, MAX_SIZE, Config, as_list
from support.command import one_line

HOSTILE = [-1, 2**24 + 1, 10**100, True, 1.0, 1e400, "32", "", [], [1], {}, {"n": 1}, "x\n" * 100]


def config(**values: object) -> Config:
    return Config(values, "config.json")


def refused(ask: Callable[[], object], key: str) -> str:
    with pytest.raises(UserError) as caught:
        ask()
    message = one_line(caught.value)
    assert message.startswith("config.json: ")
    assert f"'{key}'" in message
    return message


def test_a_whole_number_is_read_under_the_first_synonym_present() -> None:
    assert config(n_layer=12).whole("num_hidden_layers", "n_layer") == 12
    assert config(num_hidden_layers=24, n_layer=12).whole("num_hidden_layers", "n_layer") == 24
    assert config(num_hidden_layers=None, n_layer=12).whole("num_hidden_layers", "n_layer") == 12


def test_a_default_replaces_an_absent_or_null_key_only() -> None:
    assert config().whole("window", default=7) == 7
    assert config(window=None).whole("window", default=7) == 7
    assert config(window=0).whole("window", default=7, least=0) == 0


@pytest.mark.parametrize("value", [*HOSTILE, 0])
def test_a_hostile_size_is_refused_by_name(value: object) -> None:
    message = refused(lambda: config(hidden_size=value).whole("hidden_size"), "hidden_size")
    assert f"expected a whole number from 1 to {MAX_SIZE}" in message


def test_the_key_that_was_wrong_is_named_not_its_synonym() -> None:
    refused(lambda: config(n_layer="12").whole("num_hidden_layers", "n_layer"), "n_layer")


def test_a_missing_key_is_named_with_the_nearest_one_present() -> None:
    message = refused(lambda: config(hiden_size=64).whole("hidden_size"), "hidden_size")
    assert "is missing; did you mean 'hiden_size'?" in message


def test_more_layers_than_any_model_has_are_refused() -> None:
    assert config(n=MAX_LAYERS).layers("n") == MAX_LAYERS
    refused(lambda: config(n=MAX_LAYERS + 1).layers("n"), "n")


@pytest.mark.parametrize("value", [0, 1, "true", 1.0, [], {}])
def test_a_flag_must_be_true_or_false(value: object) -> None:
    refused(lambda: config(bias=value).flag("bias", True), "bias")


def test_a_flag_is_read_or_defaults() -> None:
    assert config(bias=False).flag("bias", True) is False
    assert config(bias=None).flag("bias", True) is True
    assert config().flag("bias", True) is True


@pytest.mark.parametrize("value", ["mpl", "", 1, True, [], ["mlp"], {}])
def test_a_choice_outside_the_list_is_refused(value: object) -> None:
    message = refused(lambda: config(kind=value).choice("kind", ("linear", "mlp"), "linear"), "kind")
    assert "expected one of linear, mlp" in message


def test_a_choice_is_read_or_defaults() -> None:
    assert config(kind="mlp").choice("kind", ("linear", "mlp"), "linear") == "mlp"
    assert config(kind=None).choice("kind", ("linear", "mlp"), "linear") == "linear"
    assert config().choice("kind", ("linear", "mlp"), "linear") == "linear"


@pytest.mark.parametrize(
    "value", [["full"], ["full"] * 3, ["full", "half"], ["full", 1], ["full", []], [], "full", {"full": 2}, 3, True]
)
def test_a_list_of_layer_kinds_has_one_known_word_per_layer(value: object) -> None:
    message = refused(lambda: config(layer_types=value).words("layer_types", 2, ("full", "window")), "layer_types")
    assert "expected 2 entries, each one of full, window" in message


def test_layer_kinds_are_read_or_absent() -> None:
    assert config(kinds=["full", "window"]).words("kinds", 2, ("full", "window")) == ("full", "window")
    assert config().words("kinds", 2, ("full", "window")) is None


@pytest.mark.parametrize("value", [[-1], [2], [0, "1"], [True], [0.0], [[]], "01", {"0": 1}, 1, True, [10**100]])
def test_a_list_of_layers_stays_within_the_model(value: object) -> None:
    message = refused(lambda: config(dense=value).indices("dense", 2), "dense")
    assert "expected a list of layers, each below 2" in message


def test_layer_numbers_are_read_or_absent() -> None:
    assert config(dense=[1, 0, 1]).indices("dense", 2) == {0, 1}
    assert config(dense=[]).indices("dense", 2) == frozenset()
    assert config().indices("dense", 2) is None


@pytest.mark.parametrize("value", [1, True, "text", [], [{}]])
def test_a_table_within_is_a_table(value: object) -> None:
    assert "expected a table" in refused(lambda: config(text_config=value).table("text_config"), "text_config")


def test_an_error_in_a_table_within_says_which_table() -> None:
    inner = config(text_config={"n": -1}).table("text_config")
    assert inner is not None
    assert refused(lambda: inner.whole("n"), "n").startswith("config.json: text_config: 'n' is -1")
    assert config().table("text_config") is None


@pytest.mark.parametrize("value", [None, 3, ["llama"], {}])
def test_a_config_without_a_model_type_says_which_keys_it_has(value: object) -> None:
    message = refused(lambda: config(model_type=value, hidden_size=1).model_type, "model_type")
    assert message.endswith("keys found: hidden_size, model_type")


def test_only_the_first_keys_are_listed() -> None:
    assert (
        Config({f"k{i:02}": 0 for i in range(15)}, "c").keys_found() == ", ".join(f"k{i:02}" for i in range(12)) + " and 3 more"
    )
    assert config().keys_found() == "none"
    assert len(Config({"k" * 10_000: 0}, "c").keys_found()) < 200


def test_a_number_that_is_not_a_multiple_is_refused_with_both_numbers() -> None:
    config().require_multiple(64, 8, "hidden_size must be a multiple of heads")
    with pytest.raises(UserError, match="hidden_size must be a multiple of heads: 65 is not a multiple of 8"):
        config().require_multiple(65, 8, "hidden_size must be a multiple of heads")


def test_only_a_list_counts_as_a_list() -> None:
    assert as_list([1, "a"]) == [1, "a"]
    assert as_list("ab") == as_list(None) == as_list({"a": 1}) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ASKS: list[Callable[[Config], object]] = [
    lambda c: c.whole("k"),
    lambda c: c.whole("k", default=3, least=0),
    lambda c: c.flag("k", False),
    lambda c: c.choice("k", ("a", "b"), "a"),
    lambda c: c.words("k", 2, ("a", "b")),
    lambda c: c.indices("k", 2),
    lambda c: c.table("k"),
    lambda c: c.model_type,
    lambda c: c.keys_found(),
]


@given(st.sampled_from(ASKS), st.dictionaries(st.just("k") | st.text(max_size=3), JSON, max_size=3))
def test_any_json_is_an_answer_or_one_line_of_error(ask: Callable[[Config], object], values: dict[str, object]) -> None:
    try:
        ask(Config(values, "config.json"))
    except UserError as error:
        message = one_line(error)
        assert message.startswith("config.json: ")
