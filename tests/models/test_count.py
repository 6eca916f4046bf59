"""The counts of a model as plain data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.models.count import count, default_seq, flat, hyperparameters
from meshwise.models.find import find_model
from meshwise.models.model import Model, build
from support.every import check_every
from support.presets import PRESETS, preset
from support.small_configs import SMALL, small

LLAMA_3_70B = 70_553_706_496
models = st.sampled_from(sorted(SMALL)).map(lambda model_type: build(small(model_type), model_type, ""))
scalars = st.none() | st.booleans() | st.integers() | st.text()
tables = st.recursive(
    st.dictionaries(st.text(), scalars),
    lambda inner: st.dictionaries(st.text(), inner | scalars | st.lists(scalars)),
    max_leaves=8,
)


def test_bytes_follow_from_the_parameters() -> None:
    """Mixed precision keeps a float32 master copy and two float32 moments: 12 bytes (ZeRO, arXiv:1910.02054, section 3.1)."""
    tally = count(find_model("llama-3-70b"), seq=4096, tokens=15e12)
    n = LLAMA_3_70B
    assert tally["weight_bytes"] == {"fp32": 4 * n, "bf16": 2 * n, "fp8": n, "int4": n / 2}
    assert tally["training_bytes"] == {"gradients_bf16": 2 * n, "gradients_fp32": 4 * n, "adamw": 12 * n}


def test_llama_3_70b_has_a_kv_cache_of_320_kib_per_token() -> None:
    """2 x 8 KV heads x 128 x 80 layers x 2 bytes."""
    cache = count(find_model("llama-3-70b"), seq=8192, tokens=1)["cache"]
    assert (cache["kv_bytes_per_token"], cache["kv_bytes"], cache["state_bytes"]) == (327_680, 8192 * 327_680, 0)


@given(models, st.integers(1, 2**20), st.floats(0, 1e18))
def test_flops_add_up_over_parts_and_tokens(model: Model, seq: int, tokens: float) -> None:
    flops = count(model, seq=seq, tokens=tokens)["training_flops"]
    assert flops["per_token"] == pytest.approx(flops["per_token_matmul"] + flops["per_token_attention"], rel=1e-12)
    assert flops["total"] == pytest.approx(tokens * flops["per_token"], rel=1e-12)
    assert flops["total_6n"] == pytest.approx(6 * model.active_params * tokens, rel=1e-12)
    assert (flops["seq"], flops["tokens"]) == (seq, tokens)


@pytest.mark.parametrize(
    ("name", "seq"), [("llama-3.1-8b", 4096), ("gpt2", 1024), ("ttt-linear-125m", 2048), ("mamba2-130m", 4096)]
)
def test_the_sequence_is_4096_unless_the_model_was_made_for_less(name: str, seq: int) -> None:
    assert default_seq(find_model(name)) == seq


def test_hyperparameters_are_all_there_and_none_is_empty() -> None:
    def check(name: str) -> None:
        found = hyperparameters(preset(name))
        assert all(found.values())
        assert {"layers", "d_model", "vocabulary"} <= found.keys()
        assert ("KV heads" in found) == (preset(name).decoder.heads > 0)

    check_every(check, ((name,) for name in PRESETS))


def test_a_table_is_flattened_to_one_row() -> None:
    table = {"a": 1, "b": {"c": {"d": 2.5}, "e": None}, "f": ["x", {"t": "y", "u": 3}], "g": []}
    assert flat(table) == {"a": 1, "b.c.d": 2.5, "f": "x; y, 3", "g": ""}


@given(tables)
def test_a_row_holds_no_tables_lists_or_gaps(table: dict[str, object]) -> None:
    assert all(value is not None and not isinstance(value, dict | list) for value in flat(table).values())


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", "5.13"), ("gpt-oss-20b", "3.61"), ("deepseek-v3", "36.6")])
def test_active_parameters_leave_the_input_embedding_out_as_vendors_do(name: str, billions: str) -> None:
    """OpenAI states 5.1 and 3.6 billion; DeepSeek's 37 billion include the embedding, which is 0.93 billion."""
    tally = count(find_model(name), seq=1, tokens=1)["parameters"]
    assert f"{tally['active'] / 1e9:.{3 - len(billions.partition('.')[0])}f}" == billions
    assert tally["active"] < tally["active_with_embedding"] < tally["total"]


def test_a_dense_model_uses_all_its_parameters() -> None:
    tally = count(find_model("llama-3-8b"), seq=1, tokens=1)["parameters"]
    assert tally["active"] == tally["active_with_embedding"] == tally["total"]
