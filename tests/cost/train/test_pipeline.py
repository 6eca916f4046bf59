"""The critical path of a schedule in closed form. tests/test_schedule.py holds it to the schedules played out; here are worked numbers."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cost.train.pipeline import PassTimes, Stages, makespan, sampled_stages
from support.every import check_every

NONE = (0.0, 0.0, 0.0)


def pass_times(seconds: tuple[float, float, float]) -> PassTimes:
    return PassTimes(*(np.array([value]) for value in seconds))


def length(
    layers: list[int],
    m: int,
    layer: tuple[float, float, float],
    head: tuple[float, float, float] = NONE,
    every: bool = True,
) -> float:
    """Makespan of stages with these layers each, the head on the last."""
    pp = np.array([float(len(layers))])
    number = sampled_stages(pp, np.array([float(m)]), every)
    which = number.astype(int)
    before = np.concatenate([[0], np.cumsum(layers)])[which]
    stages = Stages(number, before, np.array(layers, float)[which])
    return float(makespan(stages, pass_times(layer), pass_times(head), np.array([float(m)]), pp)[0])


def test_equal_stages_take_one_slot_per_micro_batch_and_per_other_stage() -> None:
    """(m + p - 1)(F + B): arXiv:2104.04473, 2.2.1."""

    def check(pp: int, m: int) -> None:
        assert length([2] * pp, m, (1, 2, 0)) == pytest.approx((m + pp - 1) * 6)

    check_every(check, product([2, 3, 8], [1, 2, 8, 40]))


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 4), (4, 20)])
def test_deferring_weight_gradients_leaves_a_bubble_of_f_plus_b_minus_w(pp: int, m: int) -> None:
    """(p - 1)(F + B - W): ZB-H1, arXiv:2401.10241, Table 2."""
    assert length([1] * pp, m, (1, 1.3, 0.9)) - m * 3.2 == pytest.approx((pp - 1) * (1 + 1.3 - 0.9))


def test_a_slower_last_stage_limits_every_micro_batch() -> None:
    assert length([1, 1, 1], 10, (1, 2, 0), head=(1, 1, 0)) == pytest.approx(10 * 5 + 2 * 3)


def test_a_faster_last_stage_shortens_the_step() -> None:
    """As simulated in test_schedule.py: 15.5 s, not 4 x 3 + 3 + 1.5."""
    assert length([2, 2, 1], 4, (0.5, 1, 0)) == pytest.approx(15.5)


def test_one_micro_batch_passes_every_stage_once() -> None:
    assert length([3, 4, 4, 1], 1, (1, 2, 0), head=(1, 2, 0)) == pytest.approx(12 * 3 + 3)


@given(st.integers(2, 20), st.integers(1, 40), st.integers(1, 5), st.integers(0, 5), st.floats(0, 9), st.floats(0, 1))
def test_sampled_stages_suffice_where_the_middle_stages_are_equal(
    pp: int, m: int, layers: int, last: int, head: float, weight: float
) -> None:
    """The first may have a layer less, and the last any number, as frameworks cut them."""
    cut = [layers - (layers > 1), *([layers] * (pp - 2)), min(last, layers)]
    layer, more = (1.0, 2.0 - weight, weight), (head, 2 * head - head * weight, head * weight)
    assert length(cut, m, layer, more, every=False) == pytest.approx(length(cut, m, layer, more))
