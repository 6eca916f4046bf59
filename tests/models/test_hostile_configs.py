"""For any config.json, however damaged, a user soon gets finite counts or a one-line error."""

import json
import math
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.models.config import MAX_LAYERS, MAX_SIZE
from meshwise.models.count import count, default_seq, flat
from meshwise.models.families.description import Types, describe
from meshwise.models.find import find_model, presets, values_of
from meshwise.models.model import Model
from meshwise.ui.views import tables
from meshwise.ui.views.count import table
from support.command import one_line
from support.small_configs import SMALL, small

SOON = timedelta(seconds=30)
READ = sorted(
    {
        key
        for kind in Types()
        for tables in (describe(kind).tables["sizes"], describe(kind).tables["defaults"], *describe(kind).lists.values())
        for key in tables
    }
)
"""Every key that a described type reads."""

STARTS: list[dict[str, Any]] = [
    *(small(model_type) for model_type in SMALL),
    *(
        values_of(presets()[name])
        for name in (
            *("ttt-linear-125m", "ttt-mlp-1.3b", "llama-4-scout", "gemma-3-4b", "qwen3-next-80b-a3b", "gemma-3n-e4b", "glm-5.2"),
            *("deepseek-v4-flash", "kimi-linear-48b-a3b", "lfm2-8b-a1b", "gemma-4-26b-a4b", "minimax-text-01", "step-3.5-flash"),
            *("nemotron-nano-9b-v2", "hunyuan-a13b", "mimo-v2-flash", "granite-4-h-micro", "gpt-neo-1.3b", "kimi-k2-thinking"),
        )
    ),
    {"model_type": "gemma3", "vision_config": {}, "text_config": small("gemma3_text")},
]

wholes = st.integers() | st.sampled_from([-1, 0, 1, 2, MAX_LAYERS, MAX_SIZE, MAX_SIZE + 1, 2**63, 10**400, -(10**400)])
words = st.text(max_size=20) | st.sampled_from(["full_attention", "mamba", "auto", "mlp", "llama", "[/x]", "\x1b[2J", "a\nb"])
scalars = st.none() | st.booleans() | wholes | st.floats() | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(words, inner, max_size=4), max_leaves=10
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """Return a valid config with some keys replaced, dropped, or moved into a table."""
    config = dict(draw(st.sampled_from(STARTS)))
    for key in draw(
        st.lists(st.sampled_from([*config, "text_config", "meshwise"]) | st.sampled_from(READ) | words, min_size=1, max_size=4)
    ):
        if draw(st.integers(0, 4)) == 0:
            config.pop(key, None)
        else:
            config[key] = draw(values)
    return {"text_config": config} if draw(st.integers(0, 9)) == 0 else config


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "config.json"


def read(path: Path) -> Model | None:
    """Return the model, or None if it was refused in one line."""
    try:
        return find_model(str(path))
    except UserError as error:
        one_line(error)
        return None


def assert_counts_are_finite(model: Model) -> None:
    seq = default_seq(model)
    tally = count(model, seq=seq, tokens=1e18)
    numbers = [value for value in flat(tally).values() if isinstance(value, int | float)]
    assert all(math.isfinite(value) and value >= 0 for value in numbers)
    assert 0 < model.active_params <= model.params
    assert json.loads(tables.as_json(tally))["parameters"]["total"] == model.params


@settings(deadline=SOON)
@given(damaged())
def test_a_damaged_config_is_counted_or_refused(path: Path, config: dict[str, Any]) -> None:
    path.write_text(json.dumps(config))
    model = read(path)
    if model is not None:
        assert_counts_are_finite(model)
        console = tables.console()
        with console.capture() as shown:
            console.print(table([count(model, seq=1, tokens=1)]).whole())
        assert model.name in shown.get()


@settings(deadline=SOON)
@given(st.sampled_from(STARTS), st.data())
def test_a_truncated_config_is_refused(path: Path, config: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(config)
    path.write_text(text[: data.draw(st.integers(0, len(text) - 1))])
    assert read(path) is None


@settings(deadline=SOON)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read(path) is None


NESTED = [
    ("llama", "model_type"),
    ("llama", "hidden_size"),
    ("llama", "attention_bias"),
    ("llama", "text_config"),
    ("gemma2", "layer_types"),
    ("qwen3_moe", "mlp_only_layers"),
]


@settings(deadline=SOON)
@given(st.sampled_from(NESTED), st.integers(2, 5000), st.sampled_from([("[", "]"), ('{"a":', "}")]))
def test_deep_nesting_is_refused(path: Path, where: tuple[str, str], depth: int, brackets: tuple[str, str]) -> None:
    """At every depth: beyond the limit of Python's JSON reader, and below it, where quoting the value could fail."""
    model_type, key = where
    nested = brackets[0] * depth + "1" + brackets[1] * depth
    path.write_text(json.dumps(small(model_type) | {key: "here"}).replace('"here"', nested))
    assert read(path) is None


@pytest.mark.parametrize("key", ["layer_types", "hidden_size", "model_type"])
def test_a_long_list_is_refused_soon(path: Path, key: str) -> None:
    path.write_text(json.dumps(small("gemma2") | {key: ["full_attention"] * 800_000}))  # 15 MB, just below the limit of a file
    begin = perf_counter()
    assert read(path) is None
    assert perf_counter() - begin < SOON.total_seconds()
