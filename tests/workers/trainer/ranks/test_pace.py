"""A rank that is slower than the others is named with its phase."""

from meshwise.workers.trainer.ranks.pace import RECENT_STEPS, Recent, find_slow


def test_the_slow_rank_is_named_with_its_phase() -> None:
    usual = {"data": 0.01, "forward": 0.1, "backward": 0.2}
    paces = {0: usual, 1: usual, 2: usual | {"data": 0.2}, 3: usual | {"forward": 0.11}}
    assert find_slow(paces) == {(2, "data"): "data takes 0.2 s a step, 0.01 s on the others"}


def test_small_phases_and_single_ranks_are_no_stragglers() -> None:
    assert find_slow({0: {"data": 1.0}}) == {}
    assert find_slow({0: {"data": 0.001, "forward": 1.0}, 1: {"data": 0.01, "forward": 1.0}}) == {}


def test_a_rank_has_a_pace_once_enough_steps_were_seen() -> None:
    recent = Recent(("data",))
    for step in range(RECENT_STEPS):
        assert recent.mean() == {}
        recent.add({"data": float(step), "reduce": 9.0})
    assert recent.mean() == {"data": (RECENT_STEPS - 1) / 2}
