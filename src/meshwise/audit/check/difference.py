"""The uncertainty of a difference: whether one layout is faster than another on the same machine with the same program."""

import math

from meshwise.cost.interval import COVERAGE_STDS

DIFFERENCE_STD = 0.071
"""Spread of log(predicted / measured) of one layout about the mean of the layouts of its question: root of the mean square over the
built-in tables, rows within twice the time of their group's best (tools/differences.py, 2026-11-18: 0.02 to 0.12 by table). What all
layouts of a machine share, its level, drops out of a difference. Servers are
judged by the same spread, which is not measured for them: tables of theirs have too few layouts of one question."""


def interval(gain: float) -> tuple[float, float]:
    """Return the two ends between which 90% of real gains should lie; `gain`: the ratio of predicted seconds, 1.2 for 20% faster."""
    width = math.exp(COVERAGE_STDS * math.sqrt(2) * DIFFERENCE_STD)
    return gain / width, gain * width


def is_faster(gain: float) -> bool:
    """Return whether a predicted gain is larger than its uncertainty."""
    return interval(gain)[0] > 1.0


def words(gain: float) -> str:
    """Return a gain with its interval: '43% faster (90%: 21% to 69%)'."""
    low, high = interval(gain)
    return f"{gain - 1:.0%} faster (90%: {low - 1:.0%} to {high - 1:.0%})"
