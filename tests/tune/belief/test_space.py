"""Candidates: layouts of a question, several questions together, and anything with axes."""

import numpy as np
import pytest

from meshwise.errors import UserError
from meshwise.plan.train.search import search
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.belief.space import Space
from support.tune_spaces import question, ran, seconds_with, space


def test_the_space_holds_the_layout_that_the_planner_finds():
    found = search(question(), top=1)
    assert space().seconds[space().best] <= found.cost.step[0] * (1 + 1e-9), "the planner also counts the chance of not fitting"
    assert found.layouts.row(0) in [
        space().layout(int(row)) for row in np.flatnonzero(np.isclose(space().seconds, found.cost.step[0]))
    ]


def test_slopes_predict_what_a_moved_coefficient_does():
    widths = 0.05
    moved = np.log(seconds_with(2, {"matmul": -widths}) / space().seconds)
    slope = space().slopes["matmul"]
    assert np.corrcoef(moved, -slope)[0, 1] > 0.99
    assert np.all(slope <= 1e-9)  # a larger share of the peak never costs time


def test_bounds_are_kept_and_an_empty_space_is_refused():
    bounded = Space.search(question(), {"pp": (1, 1)})
    assert bounded.layouts is not None
    assert set(bounded.layouts.pp.tolist()) == {1}
    with pytest.raises(UserError, match="nothing to try"):
        Space.search(question(), {"tp": (1, 1), "pp": (1, 1), "zero": (0, 0), "mbs": (16, 16)})


def test_several_questions_are_one_space_with_their_options_as_axes():
    small = space().take(np.arange(5)).layouts
    assert small is not None
    parts = [Space.of_layouts(question(), small, {"compile": word}) for word in ("no", "yes")]
    joined = Space.joined(parts)
    assert len(joined) == 10
    assert joined.options(7) == {"compile": "yes"}
    assert joined.words(7).endswith("compile yes")
    assert joined.axes["compile"].text(2) == "no"
    assert joined.layout(7) == joined.layout(2)
    fast = Posterior.of(joined, [ran(0, 2.0), ran(5, 1.0)]).mean
    assert np.mean(fast[6:]) < np.mean(fast[1:5])  # what compiling saved once, it saves elsewhere


def test_a_space_of_words_and_numbers_learns_along_its_axes():
    batch, cache = np.repeat([8, 16, 32, 64], 2), ["on", "off"] * 4
    names = [f"{b} {c}" for b, c in zip(batch, cache, strict=True)]
    table = Space.of_table({"batch": batch.tolist(), "cache": cache}, np.ones(8), np.ones(8), 2.0, names)
    seen = [Observation(row, 1.0 if cache[row] == "on" else 1.2) for row in (0, 1, 6)]
    mean = Posterior.of(table, seen).mean
    assert table.words(3) == "16 off"
    assert mean[3] > mean[2]
