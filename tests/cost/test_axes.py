"""The axes of a layout: bounds as users write them, and the names of layouts."""

import pytest

from meshwise.cost import axes
from meshwise.cost.layout import Layouts
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every


def test_bounds_are_numbers_ranges_or_words() -> None:
    found = axes.parse("tp=8, pp=1..12,recompute=full,zero=0..1")
    assert found == {"tp": (8, 8), "pp": (1, 12), "recompute": (2, 2), "zero": (0, 1)}
    assert axes.parse("pp=0..4, tp = 2,tp=2,recompute=none..selective") == {"pp": (1, 4), "tp": (2, 2), "recompute": (0, 1)}
    assert axes.parse("") == {}


def test_invalid_bounds_are_refused_in_one_line() -> None:
    def check(text: str, words: str) -> None:
        with pytest.raises(UserError) as refused:
            axes.parse(text)
        assert words in one_line(refused.value)

    check_every(
        check,
        [
            ("tpp=8", "'tpp=8' is not axis=value; did you mean 'tp'"),
            ("tp", "'tp' is not axis=value"),
            ("tp=many", "'tp=many': tp is a whole number or a range such as 1..12"),
            ("recompute=some", "'recompute=some': recompute is none, selective, full"),
            ("pp=8..4", "'pp=8..4' is an empty range: pp starts at 1"),
            ("=8", "is not axis=value"),
            ("tp=8..", "tp is a whole number or a range such as 1..12"),
            ("tp=..8", "tp is a whole number or a range such as 1..12"),
            ("tp=-4", "'tp=-4' is an empty range"),
            ("tp=1e400", "tp is a whole number"),
            ("tp=" + "9" * 5000, "tp is a whole number"),
            ("tp=0", "'tp=0' is an empty range: tp starts at 1"),
            ("tp=2,tp=4", "tp is given twice with different values"),
            ("dp=9999999999", "'dp=9999999999': dp is a whole number"),
        ],
    )


def test_a_layout_is_named_by_the_axes_that_matter() -> None:
    bloom = Layouts.of(dp_shard=8, tp=4, pp=12, mbs=2, zero=1, recompute=2).row(0)
    assert axes.layout_name(bloom) == "dp8 tp4 pp12 mbs2 zero1 full recompute"
    assert axes.layout_name(bloom, short=True) == "dp8 tp4 pp12 mbs2 z1 full"
    mixed = Layouts.of(dp_replicate=2, dp_shard=4, vpp=2, pp=2, schedule=1, sp=1, offload=1).row(0)
    assert axes.layout_name(mixed) == "dp8 tp1 pp2 vpp2 mbs1 shard4 sp offload optimizer"


def test_every_axis_has_a_default_that_layouts_start_from() -> None:
    assert Layouts.of().row(0) == {axis.name: axis.values[axis.least] if axis.values else axis.least for axis in axes.AXES}
