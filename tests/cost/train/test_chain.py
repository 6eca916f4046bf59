"""The serial chain of a TTT layer: as long as its steps, whatever the batch, until chains outnumber the multiprocessors."""

from dataclasses import replace

import numpy as np
import pytest

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.cost.train.chain import AROUND, AROUND_BACK, STEP, STEP_BACK, chain
from meshwise.cost.train.compute import SHORTEST_KERNEL, Device
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
    return forward.item() - AROUND * SHORTEST_KERNEL, backward.item() - AROUND_BACK * SHORTEST_KERNEL


def test_a_chain_has_one_step_per_mini_batch_of_16_tokens_for_any_batch() -> None:
    for sequences in (1, 8, 11):  # 132 chains of 12 heads fill an H200's 132 multiprocessors
        assert seconds(LATENCY, 2048, sequences) == pytest.approx((128 * STEP, 128 * STEP_BACK))
    assert seconds(LATENCY, 2047, 1) == seconds(LATENCY, 2048, 1)


def test_chains_beyond_the_multiprocessors_share_them() -> None:
    assert seconds(LATENCY, 512, 22) == pytest.approx((2 * 32 * STEP, 2 * 32 * STEP_BACK))


def test_bytes_grow_with_the_tokens() -> None:
    small, large = (np.array(seconds(H200, 512, n)) - seconds(LATENCY, 512, n) for n in (2, 8))
    np.testing.assert_allclose(large, 4 * small)
