"""The choice of the next runs."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.tune.belief.choice import gain_left, gains, next_runs
from meshwise.tune.belief.observation import Failure, Observation
from meshwise.tune.belief.posterior import Posterior
from support.tune_spaces import ran, space

FAILURES = st.sampled_from(["oom", "crash", "hang", "timeout"])
ROWS = st.integers(0, len(space()) - 1)


@settings(max_examples=20, deadline=None)
@given(runs=st.lists(st.tuples(ROWS, st.floats(0.8, 3.0)), max_size=4), failed=st.lists(st.tuples(ROWS, FAILURES), max_size=3))
def test_the_same_runs_lead_to_the_same_choice_and_none_is_tried_twice(
    runs: list[tuple[int, float]], failed: list[tuple[int, Failure]]
):
    seen = [ran(row, factor * float(space().seconds[row])) for row, factor in runs]
    seen += [Observation(row, failure=failure) for row, failure in failed]
    first = next_runs(space(), Posterior.of(space(), seen), seen, count=3)
    again = next_runs(space(), Posterior.of(space(), seen), seen, count=3)
    assert first == again
    assert len({pick.row for pick in first}) == 3
    assert not {pick.row for pick in first} & {observation.candidate for observation in seen}


def test_the_first_run_is_a_layout_within_one_percent_of_the_fastest_that_is_likely_to_run():
    posterior = Posterior.of(space(), [])
    row = next_runs(space(), posterior, [])[0].row
    gain = gains(posterior)
    assert gain[row] >= 0.99 * gain.max()
    assert posterior.runs[row] > 0.5


@settings(max_examples=10, deadline=None)
@given(faster=st.floats(1.5, 20.0), larger=st.floats(1.3, 8.0), some=st.integers(1, 200))
def test_fast_layouts_that_cannot_fit_do_not_distract_the_first_run(faster: float, larger: float, some: int):
    hopeless = np.arange(len(space())) < some
    seconds = np.where(hopeless, space().seconds.min() / faster, space().seconds)
    memory = np.where(hopeless, larger * space().capacity, space().memory)
    crowded = replace(space(), seconds=seconds, memory=memory)
    rest = space().take(~hopeless)
    row = next_runs(crowded, Posterior.of(crowded, []), [])[0].row
    assert row - some == next_runs(rest, Posterior.of(rest, []), [])[0].row


def test_rows_that_run_now_are_not_chosen_again():
    posterior = Posterior.of(space(), [])
    first = next_runs(space(), posterior, [], count=2)
    other = next_runs(space(), posterior, [], count=2, taken=[pick.row for pick in first])
    assert not {pick.row for pick in first} & {pick.row for pick in other}


def test_the_gain_falls_as_the_best_time_falls():
    row = space().best
    seconds = float(space().seconds[row])
    slow, fast = (gain_left(Posterior.of(space(), [ran(row, factor * seconds), ran(row + 1, seconds)])) for factor in (1.0, 0.8))
    assert fast < slow


def test_nothing_is_left_to_choose_when_every_candidate_was_tried():
    small = space().take(np.arange(3))
    seen = [Observation(row, seconds=float(small.seconds[row])) for row in range(3)]
    posterior = Posterior.of(small, seen)
    assert next_runs(small, posterior, seen) == []
    assert gain_left(posterior) == 0.0


def test_the_fastest_run_so_far_is_the_best():
    seen = [ran(5, 3.0), ran(9, 2.0), Observation(11, failure="crash")]
    assert Posterior.of(space(), seen).best() == 9
