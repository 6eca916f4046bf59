"""Layouts: how a model is cut over devices, one row per layout."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Layouts

AXES = tuple(f.name for f in fields(Layouts))
WORDS = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}

values = st.fixed_dictionaries(
    {
        axis: st.integers(0, len(WORDS[axis]) - 1) if axis in WORDS else st.integers(0, 3 if axis in ("zero", "sp") else 4096)
        for axis in AXES
    }
)


def test_an_omitted_axis_has_its_default() -> None:
    row = Layouts.of(tp=8).row(0)
    assert row.pop("tp") == 8
    assert {row.pop(axis) for axis in ("dp_replicate", "dp_shard", "pp", "cp", "ep", "etp", "mbs", "vpp")} == {1}
    assert row == {"zero": 0, "recompute": "none", "sp": 0, "schedule": "1f1b", "offload": "none"}


def test_a_scalar_is_repeated_to_the_length_of_the_arrays() -> None:
    layouts = Layouts.of(tp=np.array([1, 2, 4]), pp=3)
    assert len(layouts) == 3
    assert layouts.pp.tolist() == [3, 3, 3]


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        Layouts.of(tp=np.array([1, 2]), pp=np.array([1, 2, 3]))


def test_expert_parallelism_adds_no_devices() -> None:
    """ep is laid over the data and context ranks (torchtitan): 2 x 4 x 8 x 3 x 5 = 960 devices."""
    layouts = Layouts.of(dp_replicate=2, dp_shard=4, tp=8, pp=3, cp=5, ep=4)
    assert (layouts.dp.item(), layouts.devices.item()) == (8, 960)


@settings(max_examples=40)
@given(st.lists(values, min_size=1, max_size=5))
def test_a_layout_in_words_reads_back_as_itself(table: list[dict[str, int]]) -> None:
    layouts = Layouts.of(**{axis: np.array([row[axis] for row in table]) for axis in AXES})
    for i, row in enumerate(table):
        words = layouts.row(i)
        assert {axis: WORDS[axis].index(str(word)) if axis in WORDS else word for axis, word in words.items()} == row
        assert Layouts.from_row(words).row(0) == words
        assert layouts.take(np.array([i])).row(0) == words


@settings(max_examples=40)
@given(st.lists(values, min_size=1, max_size=5))
def test_formulas_see_the_same_numbers_as_floats(table: list[dict[str, int]]) -> None:
    layouts = Layouts.of(**{axis: np.array([row[axis] for row in table]) for axis in AXES})
    floats = layouts.as_floats()
    for axis in AXES:
        assert getattr(floats, axis).dtype == np.float64
        assert getattr(floats, axis).tolist() == getattr(layouts, axis).tolist()
