"""Batches that divide evenly over the devices: which are near, and what they gain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise import api
from meshwise.cost.train.question import Question
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import batches, lookup


def question(on: str, batch: int, framework: str = "fsdp") -> Question:
    return lookup.question(TrainAsk("llama-3-8b", on=on, batch=batch, framework=framework))


@given(devices=st.integers(1, 64), batch=st.integers(1, 5000))
def test_near_batches_divide_and_one_that_divides_has_none(devices: int, batch: int) -> None:
    near = batches.nearest(question(f"1x{devices}xh100-sxm", batch))
    assert all(0.75 * batch <= other <= 1.34 * batch and other != batch for other in near)
    if batch % devices == 0:
        assert near == []
    elif batch >= 4 * devices:
        assert near
        assert all(other % devices == 0 for other in near)


def test_seven_cards_with_a_batch_of_64_are_told_of_63_and_70() -> None:
    assert batches.nearest(question("7xh100-sxm", 64)) == [63, 70]
    with pytest.raises(UserError, match=r"--batch 63: [\d.]+k tokens/s, dp7 .*; --batch 70: "):
        api.plan("llama-3-8b", on="7xh100-sxm", batch=64, framework="fsdp")
    text = str(api.plan("llama-3-8b", on="7xh100-sxm", batch=64).explain())
    assert "With --batch 63: 6.6 times the tokens/s, dp7" in text


def test_160_nodes_with_a_batch_of_2048_are_told_of_2560() -> None:
    assert batches.nearest(question("160x8xh100-sxm", 2048, "megatron")) == [2560]
