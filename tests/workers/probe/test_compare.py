"""Neighbours compared: what is slow is found, what is noise is not."""

from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.probe import compare
from meshwise.workers.probe.pairs import rounds

noise = st.lists(st.floats(0.93, 1.07), min_size=2, max_size=12)


@given(noise)
def test_neighbours_within_a_few_percent_are_never_slow_on_gpus(rates: list[float]) -> None:
    assert compare.slow(dict(enumerate(rates)), compare.limit("host link", "cuda"), {}) == {}


@given(noise, st.floats(0.05, 0.6))
def test_one_rate_far_below_its_neighbours_is_suspected_and_slow_when_it_is_so_again(rates: list[float], share: float) -> None:
    known = {**dict(enumerate(rates)), "bad": share * min(rates)}
    below = compare.limit("memory", "cuda")
    assert compare.suspects(known, below, 1) == ["bad"]
    assert "bad" in compare.slow(known, below, {"bad": share})
    assert "bad" not in compare.slow(known, below, {"bad": 1.0}), "it was well when it was measured again"


def test_of_two_the_better_one_is_usual() -> None:
    assert compare.shares({"a": 1.0, "b": 4.0}) == {"a": 0.25, "b": 1.0}


@given(st.integers(2, 20))
def test_everybody_meets_everybody_once_and_nobody_twice_in_a_round(players: int) -> None:
    met = list(rounds(range(players)))
    for pairs in met:
        ends = [end for pair in pairs for end in pair]
        assert len(ends) == len(set(ends))
    assert len({frozenset(pair) for pairs in met for pair in pairs}) == sum(map(len, met)) == players * (players - 1) // 2
