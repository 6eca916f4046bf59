"""A fine-tuning method is written as one word with its rank and targets, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cost.finetune import ALL_LINEAR, FULL, MAX_RANK, Finetune, parse
from meshwise.errors import UserError

MODULE = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,11}", fullmatch=True)
ADAPTERS = st.builds(
    Finetune,
    st.sampled_from(["lora", "dora", "qlora"]),
    st.integers(1, MAX_RANK),
    st.lists(MODULE, min_size=1, max_size=4, unique=True).map(tuple) | st.just((ALL_LINEAR,)),
)
FROZEN = st.builds(lambda layers: Finetune("freeze", frozen_layers=layers), st.integers(0, 999))


def test_lora_without_targets_adapts_every_linear_layer() -> None:
    assert parse("lora:16") == Finetune("lora", 16, ("all-linear",))
    assert parse("qlora:64:q_proj,v_proj") == Finetune("qlora", 64, ("q_proj", "v_proj"))
    assert parse("full") == FULL
    assert parse(" DoRA:8:attention ").targets == ("attention",)
    assert parse("freeze:0").frozen_layers == 0


@given(ADAPTERS | FROZEN | st.just(FULL))
def test_reading_what_was_written_returns_the_same(finetune: Finetune) -> None:
    assert parse(finetune.write()) == finetune


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lroa:16", "did you mean 'lora'"),
        ("lora:", "lacks a number after the colon"),
        ("freeze", "lacks a number after the colon"),
        ("lora:0", "rank 0"),
        ("lora:-4", "'-4' is not a whole number"),
        ("lora:16:", "names of modules"),
        ("lora:16:q proj", "names of modules"),
        ("freeze:all", "'all' is not a whole number"),
        ("full:3", "has no options"),
        ("", "unknown fine-tuning method"),
        ("dpo", "DPO: --objective"),
    ],
)
def test_bad_methods_are_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text)
    assert words in str(error.value)
    assert "lora:16" in str(error.value), "the error shows a valid method"


@pytest.mark.parametrize("method", ["lora", "dora", "qlora"])
def test_adapters_without_a_rank_have_the_usual_one(method: str) -> None:
    assert parse(method).write() == f"{method}:16"
