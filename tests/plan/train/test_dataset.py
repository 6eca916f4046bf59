"""The lengths of rows decide how many tokens a run computes, packed or padded."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.work import OBJECTIVES
from meshwise.errors import UserError
from meshwise.plan.train.dataset import CHARS_PER_TOKEN, TEMPLATE_TOKENS, Dataset, read

SFT, DPO = OBJECTIVES["sft"], OBJECTIVES["dpo"]
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


def of(*lengths: int) -> Dataset:
    return Dataset("", len(lengths), np.array(lengths), counted=True)


def written(folder: Path, *rows: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_sequences_that_fill_each_other_are_packed_without_waste() -> None:
    assert of(60, 40, 70, 30).packed(100) == (2, 1.0)
    assert of(60, 60, 60).packed(100) == (3, 0.6)


def test_padding_fills_up_to_the_longest_of_those_together() -> None:
    """Two of (1, 3) with replacement: the longest is 1 in a quarter of the cases."""
    assert of(1, 3).padded(100, 2) == pytest.approx((2.5, 0.8))
    assert of(7, 7, 7).padded(100, 4) == pytest.approx((7, 1))


@given(LENGTHS, st.integers(50, 400))
@settings(max_examples=100, deadline=None)
def test_packing_loses_no_token_and_no_bin_overflows(lengths: list[int], seq: int) -> None:
    data = of(*lengths)
    bins, real = data.packed(seq)
    total = int(data.cut(seq).sum())
    assert bins >= np.ceil(total / seq)
    assert bins <= 2 * np.ceil(total / seq)  # any two bins together are more than one full
    assert 0 < real <= 1
    assert real == pytest.approx(total / (bins * seq))


@given(LENGTHS, st.integers(1, 16))
@settings(max_examples=100, deadline=None)
def test_the_more_sequences_are_padded_together_the_more_is_padding(lengths: list[int], together: int) -> None:
    data = of(*lengths)
    assert data.padded(400, together + 1)[1] <= data.padded(400, together)[1] + 1e-12


def test_rows_are_counted_by_their_tokens_or_else_by_their_characters(tmp_path: Path) -> None:
    assert read(written(tmp_path, {"tokens": 12}, {"input_ids": [1, 2, 3]}), SFT).lengths.tolist() == [12, 3]
    talk = {"messages": [{"role": "user", "content": "a" * 40}, {"role": "assistant", "content": "b" * 400}]}
    found = read(written(tmp_path, talk), SFT)
    assert found.lengths.tolist() == [440 / CHARS_PER_TOKEN + 2 * TEMPLATE_TOKENS]
    assert not found.counted


def test_answers_are_told_by_their_role_in_every_format(tmp_path: Path) -> None:
    talks = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]},
    ]
    assert read(written(tmp_path, *talks), SFT).rows == len(talks)
    assert read(written(tmp_path, {"prompt": "a"}), OBJECTIVES["grpo"]).rows == 1  # its answers are generated


def test_rows_longer_than_the_sequence_are_counted() -> None:
    assert of(10, 20, 30).longer_than(20) == 1


def test_a_pair_is_two_sequences_that_share_their_prompt(tmp_path: Path) -> None:
    row = {"prompt": "p" * 400, "chosen": "c" * 40, "rejected": "r" * 80}
    assert read(written(tmp_path, row), DPO).lengths.tolist() == [110 + 2 * TEMPLATE_TOKENS, 120 + 2 * TEMPLATE_TOKENS]


@pytest.mark.parametrize(
    ("rows", "objective", "words"),
    [
        ([{"promt": "x"}], SFT, "rows.jsonl:1: no answers for sft in columns promt"),
        ([{"text": "x"}], DPO, r"expected chosen\+rejected"),
        ([[1, 2]], SFT, "is not a row; expected a JSON object"),
        ([{"tokens": -3}], SFT, "expected a number above 0"),
        ([{"messages": [{"role": "user", "content": "hi"}]}], SFT, "rows.jsonl:1: messages has no answer to train on"),
        ([{"conversations": [{"from": "human", "value": "hi"}]}], SFT, "conversations has no answer to train on"),
        ([{"prompt": "hi", "completion": " "}], SFT, "completion has no answer to train on"),
        ([], SFT, "it has no rows"),
    ],
)
def test_rows_without_answers_are_refused_in_one_line(tmp_path: Path, rows: list[object], objective: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(written(tmp_path, *rows), objective)  # type: ignore[arg-type]


def test_a_file_that_is_no_jsonl_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{not json}\n")
    with pytest.raises(UserError, match="not JSONL"):
        read(str(path), SFT)
