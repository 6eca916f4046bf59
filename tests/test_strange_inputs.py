"""Inputs that once ended with a traceback are refused in one line."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.models.families.expression import parse
from meshwise.run.text.tokenizer import encoded
from meshwise.run.train.launch import buildable
from support.tiny_runs import LLAMA


def test_an_empty_sequence_length_is_refused() -> None:
    with pytest.raises(UserError, match="--seq '' is no sequence length"):
        api.plan("llama-debug", on="8xh100-sxm", batch="64", seq="")


def test_a_plan_without_a_key_that_pages_and_exports_show_is_refused(tmp_path: Path) -> None:
    plans: list[Any] = [api.plan("llama-debug", on="8xh100-sxm", batch="64x512"), api.serve("llama-debug", on="1xh100-sxm")]
    for plan in plans:
        for name, keys in plan.stated.items():
            for key in keys:
                table = plan.to_json()
                del table[name][key]
                (tmp_path / "plan.json").write_text(json.dumps(table))
                with pytest.raises(UserError, match=f"{name} has no {key}"):
                    api.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "text", ["[0] * 99999999999", "99999999999 * [0]", "(1, 2) * n", "'a' * n", "[[0] * 1000] * 1000 * 1000"]
)
def test_an_expression_builds_no_large_list(text: str) -> None:
    with pytest.raises(UserError, match="100,000 items"):
        parse(text).value({"n": 10**12})
    assert parse("[0, 1] * n + [2 * n]").value({"n": 3}) == [0, 1, 0, 1, 0, 1, 6]


@pytest.mark.parametrize(
    "changed",
    [
        {"num_hidden_layers": 2**31}, {"model_type": "bloom", "n_layer": 2**31, "hidden_size": 64, "n_head": 4, "vocab_size": 256},
        {"rope_parameters": []}, {"rope_parameters": {"": [1]}}, {"rope_parameters": {"full_attention": [1, 2]}},
    ],
)  # fmt: skip
def test_a_config_with_strange_values_is_built_or_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changed))
    with contextlib.suppress(UserError):
        buildable(str(tmp_path / "config.json"))


def test_a_tokenizer_without_a_token_for_a_text_is_refused() -> None:
    def call() -> None:
        raise Exception("WordPiece error: Missing [UNK] token from the vocabulary")

    with pytest.raises(UserError, match="the tokenizer cannot encode the text: WordPiece error"):
        encoded(call)
