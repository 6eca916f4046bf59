"""Time on one device: tiles and waves, shapes that matrix units cannot use, attention."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.cost.train.compute import Device, attention, linear, product, rule_rate
from meshwise.models.op import Op
from support.every import check_every

H100 = Device.of(find_chip("h100-sxm"), Calibration(), "bf16")
A100 = Device.of(find_chip("a100-80gb-sxm"), Calibration(), "bf16")
TILE_OF_256 = replace(H100, bandwidth=1e18, calibration=Calibration(tile=10.0))
"""Bytes are free and smaller tiles useless: only waves of 256 x 128 tiles over 132 SMs take time."""

rows = st.integers(1, 20_000)
features = st.integers(1, 2_000).map(lambda n: 8 * n)
HEADS = Op(name="scores", part="attention", kind="attention", m=32, n=128, k=128, shard="heads")


def seconds(d: Device, m: float, n: float, k: float, batch: float = 1) -> float:
    return product(d, m, n, k, batch).item()


def attend(d: Device, op: Op = HEADS, seq: int = 4096, mbs: int = 1, cp: int = 1, flash: bool = True) -> np.ndarray[Any, Any]:
    """Forward and backward seconds of one layer."""
    one = np.ones(1)
    return np.array(attention(d, op, seq, mbs * one, op.m * one, cp * one, flash)).ravel()


@pytest.mark.parametrize(
    ("full", "over"), [({"m": 256, "n": 12800}, {"m": 257}), ({"m": 25600, "n": 128}, {"n": 136})], ids=["row", "column"]
)
def test_a_257th_row_costs_another_tile(full: dict[str, int], over: dict[str, int]) -> None:
    """100 tiles of 256 x 128 leave 32 of 132 SMs idle; a row more makes them 200, which is a second wave."""
    whole = seconds(TILE_OF_256, **full, k=4096)
    assert seconds(TILE_OF_256, **(full | over), k=4096) == pytest.approx(2 * whole)
    assert seconds(TILE_OF_256, **(full | {axis: full[axis] - 8 for axis in over}), k=4096) == whole


def test_tiles_run_on_the_sms_in_whole_waves() -> None:
    def check(tiles: int, waves: int) -> None:
        one = seconds(TILE_OF_256, 256, 128, 4096)
        assert seconds(TILE_OF_256, 256 * tiles, 128, 4096) == pytest.approx(waves * one)

    check_every(check, [(1, 1), (131, 1), (132, 1), (133, 2), (264, 2), (265, 3)])


def test_filling_a_tile_costs_a_fixed_number_of_steps_of_k() -> None:
    """A tile takes k + depth steps, so a product with k = depth runs at half the rate of a very deep one."""
    d = replace(TILE_OF_256, calibration=replace(TILE_OF_256.calibration, depth=128.0))
    shallow, deep = (seconds(d, 256 * 132, 128, k) / k for k in (128, 128 * 10_000))
    assert shallow / deep == pytest.approx(2, rel=1e-3)


def test_a_head_size_of_108_cannot_use_the_matrix_units() -> None:
    """13824 wide in 128 heads of 108: BLOOM's notes have 163 s a step, against 125 in 96 heads of 144 (NHEADS tables, 02-23)."""

    def check(d: Device, odd: dict[str, int]) -> None:
        shape = {"m": 2048, "n": 2048, "k": 2048}
        wrong, right = shape | odd, shape | dict.fromkeys(odd, 112)
        assert seconds(d, **wrong, batch=64) > 3 * seconds(d, **right, batch=64)

    check_every(check, itertools.product([H100, A100], [{"k": 108}, {"n": 108}]))


@given(rows, features, features, st.integers(1, 64))
def test_nothing_is_faster_than_the_chip(m: int, n: int, k: int, batch: int) -> None:
    took = seconds(H100, m, n, k, batch)
    assert took >= 2 * m * n * k * batch / 989.4e12  # dense bf16, NVIDIA's datasheet
    assert took >= 2 * batch * (m * k + k * n + m * n) / 3.35e12


@given(rows, features, features, st.integers(1, 64), st.sampled_from(("m", "n", "k", "batch")), st.integers(1, 300))
def test_a_larger_product_is_never_faster(m: int, n: int, k: int, batch: int, axis: str, more: int) -> None:
    small = {"m": m, "n": n, "k": k, "batch": batch}
    large = small | {axis: small[axis] + more * (8 if axis in "nk" else 1)}
    assert seconds(H100, **large) >= seconds(H100, **small)


@given(rows, features, features)
def test_an_array_of_products_gives_the_result_of_each(m: int, n: int, k: int) -> None:
    together = product(H100, np.array([m, 64.0]), np.array([n, 128.0]), np.array([k, 256.0]))
    assert together.tolist() == [seconds(H100, m, n, k), seconds(H100, 64, 128, 256)]


def test_backward_is_two_products() -> None:
    """The gradient of the input is rows x k over n, of the weight n x k over rows."""
    forward, inputs, weights = linear(H100, np.full(1, 4096.0), np.full(1, 14336.0), np.full(1, 4096.0))
    assert float(forward[0]) == seconds(H100, 4096, 14336, 4096)
    assert float(inputs[0]) == seconds(H100, 4096, 4096, 14336)
    assert float(weights[0]) == seconds(H100, 14336, 4096, 4096)


def test_fp8_doubles_the_products_but_attention_and_the_head_stay_in_16_bits() -> None:
    chip = find_chip("h100-sxm")
    low = Device.of(chip, Calibration(), "fp8")
    assert low.peak / H100.peak == pytest.approx(2, rel=1e-3)  # 1978.9 and 989.4 TFLOP/s
    assert low.in_16_bits().peak == H100.peak
    assert attend(low).tolist() == attend(H100).tolist()


@pytest.mark.parametrize(("chip", "rate"), [("a100-80gb-sxm", 312e12), ("p40", 11.76e12), ("v100-32gb-sxm2", 125e12)])
def test_a_chip_without_a_precision_computes_in_the_nearest_it_has(chip: str, rate: float) -> None:
    """No fp8 on an A100, no 16 bits of any use on a P40, no bf16 on a V100: datasheet rates of bf16, fp32 and fp16."""
    assert Device.of(find_chip(chip), Calibration(), "fp8").peak == rate


@pytest.mark.parametrize("flash", [True, False])
def test_attention_grows_with_the_square_of_the_sequence(flash: bool) -> None:
    short, long = (attend(H100, seq=seq, flash=flash) for seq in (32768, 131072))
    assert long / short == pytest.approx([16, 16], rel=0.1)


def test_flash_attention_over_short_sequences_moves_bytes_and_computes_whole_tiles() -> None:
    """In 64 tokens all keys are one tile. Of 32 heads of 128, q, k, v and o are 32,768 bytes a token, and backward four times that."""
    slow = replace(H100, bandwidth=1e9)
    work = attend(replace(H100, bandwidth=1e18), seq=64)
    assert attend(slow, seq=64) - work == pytest.approx([64 * 32768 / 1e9, 4 * 64 * 32768 / 1e9])
    every_key = 2 * 32 * 64 * 64 * (128 + 128)
    assert work[0] == pytest.approx(every_key / (H100.peak * H100.calibration.flash), rel=1e-4)


@pytest.mark.parametrize("flash", [True, False])
def test_context_parallelism_shards_the_queries(flash: bool) -> None:
    assert attend(H100, seq=32768, cp=4, flash=flash) * 4 == pytest.approx(attend(H100, seq=32768, flash=flash), rel=0.1)


def test_flash_attention_skips_masked_keys_and_never_writes_the_scores() -> None:
    assert (attend(H100, seq=8192) < attend(H100, seq=8192, flash=False) / 2).all()


def test_a_window_limits_the_flops_of_flash_attention() -> None:
    """A window of 1024 in 16384 tokens: 1024 - 1024 x 1023 / 2 / 16384 = 992 keys a token, against 8192.5; both and half a tile of 128."""
    free = replace(H100, bandwidth=1e18)
    narrow, whole = attend(free, replace(HEADS, window=1024), seq=16384), attend(free, seq=16384)
    assert narrow / whole == pytest.approx(np.full(2, (992.03 + 64) / (8192.5 + 64)), rel=1e-4)


def test_small_heads_lose_more_of_the_peak() -> None:
    """Twice the heads of half the size are slower at equal FLOPs (H200: 374 TFLOP/s in heads of 64, 584 in heads of 128)."""
    halved = replace(HEADS, m=64, n=64, k=64)
    assert (attend(H100, halved) > 1.2 * attend(H100)).all()
    assert (attend(H100, halved) < 2.0 * attend(H100)).all()


def test_rules_on_scores_slow_only_the_kernels_that_have_them() -> None:
    windowed, wide = replace(HEADS, window=1024), replace(HEADS, n=256, k=256, window=1024)
    cases = {  # op, ALiBi, cap, whether kernels are compiled for a rule -> slower than plain attention
        "plain": (rule_rate(HEADS, 4096, False, False, True) < 1, False),
        "a window that covers the sequence": (rule_rate(windowed, 1024, False, False, True) < 1, False),
        "a window": (rule_rate(windowed, 4096, False, False, True) < 1, True),
        "ALiBi": (rule_rate(HEADS, 4096, True, False, True) < 1, True),
        "a cap": (rule_rate(HEADS, 4096, False, True, True) < 1, True),
        "a window in kernels that have one": (rule_rate(windowed, 4096, False, False, False) < 1, False),
    }
    assert [name for name, (found, expected) in cases.items() if found != expected] == []
    assert rule_rate(wide, 4096, False, False, True) < rule_rate(windowed, 4096, False, False, True)
    # wide heads with caps have kernels of their own, for whole sequences whose queries see all keys before them
    open_wide = replace(wide, window=0)
    own = rule_rate(open_wide, 4096, False, True, True)
    others = [rule_rate(wide, 4096, False, True, True), rule_rate(open_wide, 4096, True, True, True)]
    assert (
        max(float(np.max(rate)) for rate in [*others, rule_rate(open_wide, 4096, False, True, True, np.array([2.0]))]) < own < 1
    )
    # a kernel for the rule is faster than a mask of biases
    assert rule_rate(HEADS, 4096, True, False, False) < rule_rate(HEADS, 4096, True, False, True)
