"""The serial chain of a TTT layer: as long as its steps, whatever the batch, until chains outnumber the multiprocessors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.cost.train.chain import AROUND, AROUND_BACK, STEP, STEP_BACK, Pass, chain, scratch_bytes
from meshwise.cost.train.compute import MIN_KERNEL_SECONDS, Device
from meshwise.models.find import find_model
from meshwise.models.op import Op

H200 = Device.of(find_chip("h200"), Calibration(), "bf16")
LATENCY = replace(H200, bandwidth=1e30)
"""Bytes are free: only steps take time."""


def state() -> Op:
    (op,) = (op for op in find_model("ttt-linear-125m").ops if op.serial)
    return op


def seconds(d: Device, seq: int, sequences: int) -> tuple[float, float]:
    """Less the short kernels around the chain, which are the same for every shape."""
    forward, backward = chain(d, state(), seq, np.array([float(sequences)]), np.ones(1), 12)
    return forward.item() - AROUND * MIN_KERNEL_SECONDS, backward.item() - AROUND_BACK * MIN_KERNEL_SECONDS


def test_a_chain_has_one_step_per_mini_batch_of_16_tokens_for_any_batch() -> None:
    for sequences in (1, 8, 11):  # 132 chains of 12 heads fill an H200's 132 multiprocessors
        assert seconds(LATENCY, 2048, sequences) == pytest.approx((128 * STEP, 128 * STEP_BACK))
    assert seconds(LATENCY, 2047, 1) == seconds(LATENCY, 2048, 1)


def test_chains_beyond_the_multiprocessors_share_them() -> None:
    assert seconds(LATENCY, 512, 22) == pytest.approx((2 * 32 * STEP, 2 * 32 * STEP_BACK))


def test_bytes_grow_with_the_tokens() -> None:
    small, large = (np.array(seconds(H200, 512, n)) - seconds(LATENCY, 512, n) for n in (2, 8))
    np.testing.assert_allclose(large, 4 * small)


PASS = Pass(step=2e-6, after=1e-6)


def of_pass(steps: int, sequences: int, heads: int) -> float:
    return float(PASS.seconds(132, np.array([float(steps)]), np.array([float(sequences)]), np.array([float(heads)])).item())


def test_one_wave_of_the_mlp_is_its_steps_and_then_what_follows_them() -> None:
    assert of_pass(32, 11, 12) == pytest.approx(32 * 2e-6 + 32 * 1e-6)
    assert of_pass(32, 1, 12) == pytest.approx(32 * 2e-6 + 12 * 32 * 1e-6 / 132)


def test_what_follows_a_wave_of_the_mlp_runs_where_the_next_one_leaves_multiprocessors_idle() -> None:
    # 132 x 32 us of work beside 72 idle multiprocessors for 64 us: all of it fits, and only the last wave's is left
    assert of_pass(32, 16, 12) == pytest.approx(2 * 32 * 2e-6 + 60 * 32 * 1e-6 / 132)


@given(steps=st.integers(1, 300), sequences=st.integers(1, 80), heads=st.integers(1, 200))
def test_a_pass_of_the_mlp_is_never_shorter_than_its_work_nor_its_waves(steps: int, sequences: int, heads: int) -> None:
    seconds_now = of_pass(steps, sequences, heads)
    chains = sequences * heads
    assert seconds_now >= chains * steps * (PASS.step + PASS.after) / 132 * (1 - 1e-9)
    assert seconds_now >= np.ceil(chains / 132) * steps * PASS.step * (1 - 1e-9)
    assert seconds_now <= (np.ceil(chains / 132) + sequences) * steps * PASS.step + chains * steps * PASS.after
    assert of_pass(steps + 1, sequences, heads) > seconds_now


def test_tiles_that_kernels_leave_for_each_other_are_counted_per_token() -> None:
    (op,) = (op for op in find_model("ttt-mlp-125m").ops if op.serial)
    assert scratch_bytes(op, 12) == 12 * 143_488 / 16
    assert scratch_bytes(state(), 12) == 12 * (6 * 2 * 64 + 2 * 64 * 64 / 16)
