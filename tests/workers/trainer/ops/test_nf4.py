"""Weights in nf4: the nearest of sixteen levels times a scale per block, in the bytes of bitsandbytes."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.workers.trainer.contract.finetune.method import NF4_BLOCK
from meshwise.workers.trainer.ops.nf4 import GROUP_BLOCKS, LEVELS, Quantized, dequantize, empty, quantize

WIDEST_STEP = max(second - first for first, second in pairwise(LEVELS))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 80), st.sampled_from([64, 128, 192]), st.floats(1e-4, 10), st.integers(0, 2**31))
def test_every_weight_is_within_half_a_step_of_its_block(rows: int, columns: int, spread: float, seed: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread
    stored = quantize(weight)
    for part, room in zip(stored, empty(rows, columns), strict=True):
        assert part.shape == room.shape
        assert part.dtype == room.dtype
    found = dequantize(list(stored), columns, torch.float32)
    largest = weight.view(-1, NF4_BLOCK).abs().amax(1)
    distance = (largest - largest.mean()).abs().max()
    # half a step between levels, and half a step of the scales, of which there are 127 on each side of their mean
    bound = (WIDEST_STEP / 2 * largest + distance / 127)[:, None].expand(-1, NF4_BLOCK)
    assert bool(((found - weight).view(-1, NF4_BLOCK).abs() <= bound * 1.001 + 1e-6 * spread).all())


def test_the_error_of_normal_weights_is_that_of_the_paper() -> None:
    weight = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    error = dequantize(list(quantize(weight)), 1024, torch.float32) - weight
    assert 0.08 < float(error.square().mean().sqrt()) < 0.1  # of weights with a deviation of one


def test_a_weight_takes_four_bits_and_an_eighth_of_its_scale() -> None:
    rows, columns = 4096, 14336
    stored, count = empty(rows, columns), rows * columns
    assert sum(part.nbytes for part in stored) == count // 2 + count // 64 + 4 * (count // (64 * GROUP_BLOCKS)) + 4


def test_matrices_are_one_below_another_and_zeros_stay_zeros() -> None:
    first, second = torch.randn(3, 64), torch.zeros(2, 64)
    whole = dequantize([*quantize(first), *quantize(second)], 64, torch.bfloat16)
    assert whole.shape == (5, 64)
    assert whole.dtype == torch.bfloat16
    assert torch.equal(whole[3:], torch.zeros(2, 64, dtype=torch.bfloat16))
    again = quantize(dequantize(list(quantize(first)), 64, torch.float32))
    assert torch.equal(again.packed, quantize(first).packed)


@pytest.mark.parametrize("shape", [(1, 64), (5, 192)])
def test_levels_are_reached_exactly_without_a_second_quantization_error(shape: tuple[int, int]) -> None:
    """Blocks with one and the same scale have no distance from its mean."""
    index = torch.arange(shape[0] * shape[1]) % 16
    weight = torch.tensor(LEVELS)[index].view(shape) * 3
    stored = Quantized(*quantize(weight))
    torch.testing.assert_close(dequantize(list(stored), shape[1], torch.float32), weight)
