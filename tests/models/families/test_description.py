"""Architecture files: a type is a file of data, and a third party's file in the user's folder is one too."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.models.families.assembly import BUILDERS
from meshwise.models.families.description import Types, describe
from meshwise.models.families.expression import FUNCTIONS, parse
from meshwise.models.families.rows import CONSTRUCTORS
from meshwise.models.model import build
from support.command import one_line
from support.small_configs import small


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The architectures of the user's own folder."""
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path))
    (tmp_path / "architectures").mkdir()
    files.clear()
    yield tmp_path / "architectures"
    files.clear()


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        build(values, "config.json", "")
    return one_line(caught.value)


def test_a_file_in_the_users_folder_adds_a_type(folder: Path) -> None:
    text = 'like = "llama"\n[blocks.mlp]\nbase = "mlp()"\n"ffw.sign" = "vector(hidden) if signs else none"\n[defaults]\nsigns = true\n'
    (folder / "mine.toml").write_text(text)
    values = small("llama") | {"model_type": "mine"}
    plain = build(small("llama"), "", "").params
    assert build(values, "", "").params == plain + 4 * 48
    assert build(values | {"signs": False}, "", "").params == plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('like = "nowhere"', "architectures/nowhere.toml does not exist"),
        ('like = "other"', "architectures/other.toml is like itself"),
        ('like = "llama"\nfoo = 1', "unknown key 'foo'"),
        ('like = "llama"\n[let]\nhidden = "hidden_size.real"', "uses Attribute, which an architecture file may not"),
        ('like = "llama"\n[let]\nhidden = "(lambda: 1)()"', "which an architecture file may not"),
        ('like = "llama"\n[let]\nhidden = "1 +"', "is not an expression"),
        ('like = "llama"\n[let]\nmixer = "\'nothing\'"', "layer 0 is 'nothing'; expected one of attention, mlp"),
        ("like = ", "not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(folder: Path, text: str, words: str) -> None:
    (folder / "mine.toml").write_text(text)
    (folder / "other.toml").write_text('like = "mine"')
    assert words in refusal(small("llama") | {"model_type": "mine"})


@pytest.mark.parametrize("text", ["__import__('os')", "[x for x in y]", "a.b", "f'{a}'", "a := 1", "{1: 2}", "2 ** 99", "a[1:2]"])
def test_an_expression_is_arithmetic_and_nothing_else(text: str) -> None:
    with pytest.raises(UserError):
        parse(text, "x.toml").value({"a": 1})


def test_every_file_can_be_read_and_calls_only_known_functions() -> None:
    known, unknown, read = {*FUNCTIONS, *CONSTRUCTORS, *BUILDERS}, list[str](), 0
    for kind in Types():
        tables = describe(kind).tables
        rows = [row for table in ("let", "embedding", "head", "shown", "limits") for row in tables[table].values()]
        rows += [row for block in describe(kind).blocks.values() for row in block.values()]
        for row in (row for row in rows if isinstance(row, str)):
            parse(row, kind)
            calls = (node.func for node in ast.walk(ast.parse(row, mode="eval")) if isinstance(node, ast.Call))
            unknown += [f"{kind}: {row}" for call in calls if isinstance(call, ast.Name) and call.id not in known]
            read += 1
    assert read > 1000
    assert not unknown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_experts_per_tok": None}, "'num_experts_per_tok' is null; expected a whole number"),
        ({"moe_intermediate_size": 0}, "'moe_intermediate_size' is 0; expected a whole number from 1"),
        ({"hidden_size": None}, "'hidden_size' is null; expected a whole number from 1"),
        ({"num_experts": "8"}, "'num_experts' is '8'; expected a whole number"),
        ({"attention_bias": "no"}, "'attention_bias' is 'no'; expected true or false"),
        ({"layer_types": ["full_attention"]}, "expected 4 entries, each one of full_attention, sliding_attention"),
        ({"layer_types": ["full"] * 4}, "expected 4 entries, each one of full_attention, sliding_attention"),
        ({"mlp_only_layers": [9]}, "expected a list of layers, each below 4"),
    ],
)
def test_a_key_that_is_wrong_is_named_with_its_value(options: dict[str, Any], words: str) -> None:
    assert words in refusal(small("qwen3_moe") | options)


TIES = [
    # outer type, outer, inner, tied; as transformers 5.22 builds them
    ("llava", None, None, False),
    ("llava", None, True, True),
    ("llava_next", None, True, False),
    ("mistral3", None, False, True),
    ("mistral3", False, True, False),
    ("gemma3", False, True, False),
    ("llama4", True, False, False),
    ("llama4", False, True, True),
    ("mllama", True, True, False),
    ("unheard_of", True, False, True),
    ("unheard_of", None, True, True),
]


@pytest.mark.parametrize(("kind", "outer", "inner", "tied"), TIES)
def test_whose_tie_word_embeddings_decides_depends_on_the_outer_type(kind: str, outer: Any, inner: Any, tied: bool) -> None:
    text = {"llama4": "llama4_text", "gemma3": "gemma3_text"}.get(kind, "llama")
    values: dict[str, Any] = {"model_type": kind, "text_config": small(text)}
    if outer is not None:
        values["tie_word_embeddings"] = outer
    if inner is not None:
        values["text_config"]["tie_word_embeddings"] = inner
    assert build(values, "", "").decoder.tied == tied


def test_a_text_config_without_a_type_has_the_one_of_the_outer_type() -> None:
    text = {key: value for key, value in small("qwen3").items() if key != "model_type"}
    model = build({"model_type": "qwen3_vl", "text_config": text}, "", "")
    assert (model.model_type, model.notes) == ("qwen3_vl_text", ("text_config is counted",))


def test_a_text_config_without_any_type_is_read_by_its_class_or_its_keys() -> None:
    text = {key: value for key, value in small("llama").items() if key != "model_type"}
    model = build({"model_type": "unheard_of", "text_config": text}, "m", "")
    assert (model.model_type, model.notes[0]) == ("llama", "m: text_config states no model_type: by its keys it is read as llama")
    named = build({"model_type": "unheard_of", "text_config": text | {"architectures": ["Qwen2ForCausalLM"]}}, "m", "")
    assert named.model_type == "qwen2"


def test_a_text_config_may_omit_what_transformers_has_defaults_for() -> None:
    model = build({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 2}}, "", "")
    assert (model.decoder.hidden, model.decoder.vocab) == (2304, 262208)
    assert "' is missing" in refusal({"model_type": "gemma3_text", "num_hidden_layers": 2})


def test_an_old_file_has_the_keys_of_the_language_model_at_the_top() -> None:
    model = build(small("qwen2") | {"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}, "", "")
    assert (model.model_type, model.params) == ("qwen2_5_vl_text", build(small("qwen2"), "", "").params)
    assert "the key 'text_config' is missing" in refusal({"model_type": "gemma3"})
