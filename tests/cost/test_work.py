"""The task: texts of a batch, and bytes of optimizer state."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.work import OPTIMIZER_BYTES, Serve, Train, batch_tokens, parse_batch
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every


def test_a_batch_is_sequences_or_tokens() -> None:
    def check(text: str, seq: int, expected: tuple[int, int]) -> None:
        assert parse_batch(text, seq) == expected

    check_every(
        check,
        [
            ("2048", 4096, (2048, 4096)),
            ("2048x2048", 4096, (2048, 2048)),  # the length in the batch is the one that counts
            ("2048×2k", 4096, (2048, 2048)),
            ("4M", 4096, (1024, 4096)),  # 4 x 1024 x 1024 / 4096
            ("4M tokens", 4096, (1024, 4096)),
            ("16M", 8192, (2048, 8192)),
            ("4k", 4096, (1, 4096)),
            (" 1K x 4k ", 1, (1024, 4096)),
        ],
    )


@given(st.integers(1, 2**20), st.integers(1, 2**20))
def test_every_batch_can_be_written_as_sequences_x_length(sequences: int, seq: int) -> None:
    assert parse_batch(f"{sequences}x{seq}", 1) == parse_batch(str(sequences), seq) == (sequences, seq)


@given(st.integers(1, 64), st.integers(1, 2**20))
def test_tokens_are_whole_sequences_or_are_refused_with_the_nearest(millions: int, seq: int) -> None:
    tokens = millions * 2**20
    if tokens % seq == 0:
        assert parse_batch(f"{millions}M", seq) == (tokens // seq, seq)
        return
    with pytest.raises(UserError) as refused:
        parse_batch(f"{millions}M", seq)
    nearest = max(1, round(tokens / seq))
    assert f"{nearest} sequences are {nearest * seq:,} tokens" in one_line(refused.value)


def test_an_invalid_batch_is_refused_in_one_line() -> None:
    def check(text: str) -> None:
        with pytest.raises(UserError) as refused:
            parse_batch(text, 4096)
        assert one_line(refused.value)

    check_every(
        check,
        [
            ("0",),
            ("0x4096",),
            ("-4",),
            ("x4096",),
            ("4x",),
            ("1.5x4096",),
            ("4MB",),
            ("four",),
            ("",),
            ("nan",),
            ("9" * 5000,),
            ("4x4x4",),
        ],
    )


def test_tokens_of_a_batch() -> None:
    assert Train(batch=2048, seq=2048, framework=find_framework("megatron")).batch_tokens == 4_194_304


def test_bytes_an_optimizer_keeps_per_parameter() -> None:
    def check(optimizer: str, kept: float) -> None:
        assert OPTIMIZER_BYTES[optimizer] == kept

    check_every(
        check,
        [
            ("adamw", 4 + 4 + 4),  # master copy, momentum and variance in float32: K = 12 of ZeRO, arXiv:1910.02054, 3.1
            ("adamw-8bit", 4 + 1 + 1),  # arXiv:2110.02861: a byte for each moment
            ("adamw-bf16", 4 + 2 + 2),  # arXiv:2412.19437, 3.3
            ("muon", 4 + 4),  # one momentum
            ("sgd-momentum", 4 + 4),
            ("sgd", 4),
            ("adafactor", 4),  # factored moments are a row and a column, next to nothing per parameter
        ],
    )


def test_a_checkpoint_is_weights_and_optimizer_state_stored_once() -> None:
    """Llama 3 405B with AdamW: 2 bytes of weight, 4 of the master copy and 8 of moments for each of 405,853,388,800 parameters."""
    work = Train(batch=1, seq=1, framework=find_framework("megatron"))
    assert work.checkpoint_bytes(405_853_388_800) == 14 * 405_853_388_800


def test_batch_tokens_accepts_any_number_of_tokens() -> None:
    def check(text: str, tokens: float, seq: int) -> None:
        assert batch_tokens(text, 4096) == (tokens, seq)

    check_every(
        check,
        [
            ("4M", 4 * 2**20, 4096),
            ("4e6", 4e6, 4096),  # no whole number of sequences, which arithmetic does not need
            ("1024", 1024 * 4096, 4096),
            ("512x8192", 512 * 8192, 8192),
            ("512×8k", 512 * 8192, 8192),
        ],
    )


def test_an_invalid_batch_in_tokens_is_refused_in_one_line() -> None:
    def check(text: str) -> None:
        with pytest.raises(UserError) as refused:
            batch_tokens(text, 4096)
        one_line(refused.value)

    check_every(check, [("0",), ("0.5",), ("",), ("x",), ("x4096",), ("-4M",), ("1e99",), ("nan",), ("4Q",)])


def test_a_sequence_grows_from_its_prompt_to_its_end_while_it_generates() -> None:
    assert Serve(prompt=1000, output=500, context=2048).mean_context == 1250
    assert Serve(prompt=0, output=1, context=1).mean_context == 1


def test_an_impossible_serving_task_is_refused_in_one_line() -> None:
    def check(asked: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError) as refused:
            Serve(**asked, context=4096)
        assert words in one_line(refused.value)

    check_every(
        check,
        [
            ({"prompt": 0, "output": 0}, "nothing to serve: 0 prompt tokens, 0 output tokens, 1 concurrent requests"),
            ({"prompt": -1, "output": 5}, "nothing to serve"),
            ({"prompt": 8, "output": 8, "users": 0}, "0 concurrent requests; expected at least one token and one request"),
            (
                {"prompt": 4096, "output": 1},
                "a context of 4,096 does not hold a prompt of 4,096 and an output of 1; give at least 4,097",
            ),
        ],
    )
