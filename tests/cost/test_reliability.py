"""Ranges of the numbers that say how often devices fail."""

import math
from typing import Any

import pytest

from meshwise.cost.work import LLAMA3_MTBF_SECONDS, Reliability
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every


def test_the_default_is_the_rate_that_llama_3_published() -> None:
    """419 unexpected interruptions in 54 days on 16,384 H100: one in 50,677 device-hours (arXiv:2407.21783, 3.3.4)."""
    assert Reliability().mtbf == LLAMA3_MTBF_SECONDS == pytest.approx(50_677 * 3600, rel=1e-5)


def test_a_number_out_of_range_is_refused_in_one_line() -> None:
    def check(wrong: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError) as refused:
            Reliability(**wrong)
        assert words in one_line(refused.value)

    check_every(
        check,
        [
            ({"mtbf": 0}, "mtbf 0 is out of range: expected 1 s to"),
            ({"mtbf": math.nan}, "mtbf nan is out of range"),
            ({"checkpoint_bandwidth": 0.0}, "checkpoint bandwidth 0 is out of range: expected 1 B/s to"),
            ({"checkpoint_every": 0.0}, "checkpoint every 0 is out of range: expected 1 ms to"),
            ({"restart": -1.0}, "restart -1 is out of range: expected 0 to"),
            ({"repair": 1e300}, "is out of range: expected 0 to 11574 d"),
            ({"spares": -1}, "spares -1 is out of range: expected 0 to 100,000"),
            ({"spares": 1.5}, "spares 1.5 is not a whole number of nodes"),
            ({"straggler": 2.0}, "straggler 200% is out of range: expected 0 to 99%"),
        ],
    )
