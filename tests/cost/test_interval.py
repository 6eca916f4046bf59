"""Intervals of a training step, from its calibration."""

import math
from dataclasses import replace

import numpy as np
import pytest

from meshwise.catalogue.calibrations import Calibration
from meshwise.cost import interval
from meshwise.cost.parts import COMPUTING, TRAIN_PARTS


def test_more_devices_than_in_any_fitted_row_widen_the_interval() -> None:
    c = replace(Calibration(), devices=64.0)
    parts = dict.fromkeys(TRAIN_PARTS, 0.0) | {"matmul": 1.0}
    inside, beyond = (interval.step(c, parts, devices, mixed=False) for devices in (64, 1024))
    assert inside == pytest.approx((math.exp(-0.16), math.exp(0.35)))
    assert beyond[1] == pytest.approx(math.exp(math.hypot(0.35, 4 * 0.03)))  # four doublings
    assert beyond[0] < inside[0]


def test_a_step_waits_in_all_parts_that_do_not_compute() -> None:
    shares = np.full((1, len(TRAIN_PARTS)), 1 / len(TRAIN_PARTS))
    assert interval.waiting(shares) == pytest.approx([1 - len(COMPUTING) / len(TRAIN_PARTS)])


def test_the_interval_depends_on_the_share_of_waiting() -> None:
    c = replace(Calibration(), waiting=(0.5,), low=(0.1, 0.2), high=(0.3, 0.4))
    low, high = interval.factors(c, np.array([0.2, 0.8]), np.ones(2))
    assert low == pytest.approx(np.exp([-0.1, -0.2]))
    assert high == pytest.approx(np.exp([0.3, 0.4]))


def test_what_differs_between_sources_and_experts_widens_the_interval_in_quadrature() -> None:
    """90% of a normal distribution lies within 1.6449 standard deviations."""
    parts = dict.fromkeys(TRAIN_PARTS, 0.0) | {"matmul": 1.0}
    own = replace(Calibration(), low=(0.1, 0.1, 0.1), high=(0.1, 0.1, 0.1))
    other = replace(own, between=0.2, expert_spread=0.3)
    assert interval.step(own, parts, 8, mixed=True) == pytest.approx((math.exp(-0.1), math.exp(0.1)))
    dense, mixed = (interval.step(other, parts, 8, mixed=experts)[1] for experts in (False, True))
    assert math.log(dense) == pytest.approx(math.hypot(0.1, 1.6449 * 0.2))
    assert math.log(mixed) == pytest.approx(math.sqrt(0.1**2 + (1.6449 * 0.2) ** 2 + (1.6449 * 0.3) ** 2))
