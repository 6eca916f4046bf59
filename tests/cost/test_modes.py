"""Modes of slow runs: what they count, which one explains a run, and how they raise an interval."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.modes import Counted, Mode, Stages
from meshwise.cost.modes import Sizes, explaining, runs_of, seconds_in, time_of, upper_end

FLOOR = Mode(effect="at least", per="layer and tensor rank", stages="several", seconds=4e-3, spread=0.1, share=0.95, rows=90.0)
EXTRA = Mode(effect="adds", per="micro-batch", stages="two", seconds=0.5, spread=0.05, share=0.2, rows=20.0)
MODES = (FLOOR, EXTRA)


def sizes(pp: float, *, batch: float = 64.0, tp: float = 4.0, mbs: float = 1.0) -> Sizes:
    """32 layers, one data rank."""
    return Sizes.of(*(np.array([value]) for value in (32.0, batch, 1.0, mbs, pp, tp)))


@pytest.mark.parametrize(
    ("per", "stages", "pp", "count"),
    [
        ("step", "any", 4, 1),
        ("step", "one", 4, 0),
        ("micro-batch", "several", 4, 64),
        ("micro-batch", "two", 4, 0),
        ("micro-batch", "more than two", 4, 64),
        ("micro-batch", "more than two", 2, 0),
        ("layer and tensor rank", "one", 1, 64 * 32 * 4),
        ("layer and tensor rank", "several", 4, (64 + 3) * 8 * 4),
    ],
)
def test_counts_of_a_layout(per: Counted, stages: Stages, pp: int, count: int) -> None:
    assert sizes(pp).counts(per, stages)[0] == count


def test_a_micro_batch_that_is_not_stated_counts_nothing() -> None:
    assert sizes(2, mbs=0).counts("micro-batch", "any")[0] == 0
    assert sizes(2, mbs=0).counts("layer and tensor rank", "any")[0] == 0


@given(st.floats(0.1, 1e3), st.integers(1, 16), st.integers(1, 512))
def test_no_mode_makes_a_step_faster(normal: float, pp: int, batch: int) -> None:
    for mode in MODES:
        assert seconds_in(mode, np.array([normal]), sizes(pp, batch=batch))[0] >= normal


def test_a_run_is_explained_by_the_mode_it_is_in_alone_or_on_top_of_a_least_time() -> None:
    inside = sizes(2)  # 64 micro-batches: 32 s longer; 65 turns of 16 layers and 4 ranks: at least 16.6 s
    for seconds, mode in ((16.0, FLOOR), (37.0, EXTRA), (48.6, EXTRA)):
        found = explaining(MODES, seconds, 5.0, inside)
        assert found is not None
        assert found[0] == mode
        assert found[1] == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize(("seconds", "pp"), [(5.0, 2), (8.0, 2), (25.0, 2), (100.0, 2), (37.0, 1), (37.0, 4)])
def test_a_run_that_no_mode_fits_is_not_explained(seconds: float, pp: int) -> None:
    assert explaining(MODES, seconds, 5.0, sizes(pp)) is None


def test_a_mode_that_hardly_shows_explains_nothing() -> None:
    assert explaining(MODES, 132.0, 100.0, sizes(2)) is None


def test_only_a_mode_that_most_runs_are_in_raises_an_interval() -> None:
    normal, high = np.array([5.0]), np.array([6.0])
    assert upper_end([EXTRA], high, normal, sizes(2))[0] == 6.0
    raised = upper_end(MODES, high, normal, sizes(2))[0]
    assert raised == pytest.approx(16.64 * np.exp(1.6449 * 0.1), rel=1e-3)
    assert upper_end(MODES, high, normal, sizes(1))[0] == 6.0
    assert upper_end([replace(FLOOR, share=0.4)], high, normal, sizes(2))[0] == 6.0


def test_words() -> None:
    assert runs_of(EXTRA) == "runs with two stages"
    assert runs_of(replace(EXTRA, stages="one")) == "runs with one stage"
    assert runs_of(replace(EXTRA, stages="any")) == "runs"
    assert time_of(EXTRA) == "500 ms longer for each micro-batch"
    assert time_of(FLOOR) == "at least 4 ms for each micro-batch, layer and tensor rank"
