"""Answers of a step have the stated mean, and the longest is among them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.plan.rl.lengths import Answers
from meshwise.plan.rl.rollout import _scheduled


@given(mean=st.integers(1, 5000), ratio=st.floats(1, 12), number=st.integers(2, 600))
@settings(max_examples=60, deadline=None)
def test_drawn_lengths_have_the_mean_and_end_with_the_longest(mean: int, ratio: float, number: int) -> None:
    answers = Answers(number, float(mean), mean * ratio)
    drawn = answers.drawn(number)
    assert len(drawn) == number
    assert drawn[-1] == max(drawn) == answers.longest
    if mean * number - answers.longest > 2 * number:  # others have room to make up for it
        assert sum(drawn) / number == pytest.approx(mean, rel=0.25)


def test_the_spread_of_a_published_log_is_found() -> None:
    """verl's gsm8k: 320 answers of 268 tokens, the longest 749: ln(749 / 268) = 2.95 s - s^2 / 2, so that s is 0.37."""
    answers = Answers(320, 268.0, 749.0)
    assert answers.deviation == pytest.approx(0.37, abs=0.02)
    assert answers.longest_of(4) > answers.longest_of(2) > answers.mean


@given(lengths=st.lists(st.floats(1, 1000), min_size=1, max_size=40), slots=st.integers(1, 12), more=st.floats(0, 500))
@settings(max_examples=60, deadline=None)
def test_a_longer_answer_never_ends_a_rollout_earlier(lengths: list[float], slots: int, more: float) -> None:
    def last(values: list[float]) -> float:
        return max(end for _, end in _scheduled(values, slots))

    assert last([*lengths[:-1], lengths[-1] + more]) >= last(lengths)
    assert last(lengths) >= max(lengths)
