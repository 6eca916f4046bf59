"""Neighbours compared: which rates are far below those of the others. Needs no torch: the worker repeats what it suspects, and
`meshwise preflight` judges with the same rules."""

import math
import statistics
from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")

LIMITS = {"matrix products": (0.88, 0.6), "memory": (0.88, 0.55), "host link": (0.7, 0.5), "cpu": (0.55, 0.5), "disk": (0.2, 0.1),
    "send inside": (0.75, 0.5), "send between": (0.7, 0.6), "latency inside": (0.35, 0.15), "latency between": (0.35, 0.15)}  # fmt: skip
"""Share of the neighbours' rate below which something is slow, on GPUs and on CPUs. GPUs of one kind differ by up to 8% in products at
their power limit (arXiv:2208.11035); CPUs are shared with other processes."""
SUSPECT = 0.4  # how far, between the limit and the neighbours' rate, a rate is suspected already and measured again
SIGMAS = 4.0  # robust standard deviations that a slow rate is below its neighbours
MAD_TO_SIGMA = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


def limit(what: str, device: str) -> float:
    return LIMITS[what][device == "cpu"]


def usual(rates: Mapping[Key, float]) -> float:
    """Return the rate of a healthy neighbour: the upper median, so that of two the better one counts."""
    return statistics.median_high(rates.values())


def shares(rates: Mapping[Key, float]) -> dict[Key, float]:
    """Return each rate over that of a healthy neighbour."""
    return {key: rate / usual(rates) for key, rate in rates.items()}


def spread(rates: Mapping[Key, float]) -> float:
    """Return the robust standard deviation of the logarithms of rates; 0 for fewer than four."""
    if len(rates) < 4:
        return 0.0
    middle = math.log(statistics.median(rates.values()))
    return MAD_TO_SIGMA * statistics.median(abs(math.log(rate) - middle) for rate in rates.values())


def suspects(rates: Mapping[Key, float], below: float, most: int) -> list[Key]:
    """Return what is to be measured again, the slowest first: rates near or below the limit."""
    bar = below + SUSPECT * (1 - below)
    found = sorted((share, str(key), key) for key, share in shares(rates).items() if share < bar)
    return [key for _, _, key in found[:most]]


def slow(rates: Mapping[Key, float], below: float, again: Mapping[Key, float]) -> dict[Key, float]:
    """Return what is slow, with its share of a neighbour's rate: below the limit when it was measured again (`again`: that share); of what
    was not, also far outside the spread of its neighbours."""
    deviation = SIGMAS * spread(rates)
    once = {key: share for key, share in shares(rates).items() if key not in again and math.log(share) < -deviation}
    return {key: share for key, share in {**once, **again}.items() if share < below}
