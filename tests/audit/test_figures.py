"""Figures that follow from a run: FLOPs by formula, cost, devices, batch and rate."""

import math
from typing import Any

import pytest

from support.audits import LLAMA, figures


def test_the_megatron_formula_is_eq_3():
    """arXiv:2104.04473, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh)."""
    s, layers, h, v = 2048.0, 96.0, 12288.0, 51200.0
    f = figures(layers=layers, hidden=h, vocab=v, seq=s)
    assert f.formulas["Megatron + recompute"] == pytest.approx(96 * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)))


def test_a_price_makes_a_cost_of_tokens():
    f = figures(devices=8, tokens_per_second=100_000.0)
    assert f.chip is not None
    assert f.chip.rent
    assert f.dollars_per_million_tokens == pytest.approx(8 * f.chip.rent / 100_000 * 1e6)


def test_devices_are_stated_or_nodes_times_their_devices_or_the_product_of_the_axes():
    assert figures(devices=6.0, dp=4.0, tp=2.0, pp=1.0).devices == 6
    assert figures(nodes=3.0, devices_per_node=8.0).devices == 24
    assert figures(dp=4.0, tp=2.0, pp=3.0, cp=2.0).devices == 48


def test_a_batch_per_device_is_multiplied_by_replicas_and_accumulation():
    assert figures(devices=16.0, tp=2.0, per_device_batch=4.0, accumulation=3.0).batch == 4 * 8 * 3
    assert math.isnan(figures(devices=16.0, mbs=4.0).batch)


def test_the_rate_is_that_of_the_step_time_where_one_is_stated():
    f = figures(devices=8.0, seq=4096.0, batch=64.0, seconds=4.0, tokens_per_second=8192.0)
    assert f.rate == 64 * 4096 / 4
    assert f.stated_rate == 8192


def test_the_size_decides_whether_a_shape_has_a_gate_and_a_tied_head():
    shape = figures(**LLAMA).shape
    assert shape.layer_params == 32 * (2 * 4096**2 * 1.25 + 3 * 4096 * 14336)
    assert shape.params == 8_030_261_248  # meta-llama/Meta-Llama-3-8B


def test_the_formula_of_printed_tflops_is_recognised():
    bare = figures(devices=8.0, seq=4096.0, batch=64.0, seconds=10.0, **LLAMA)
    f = figures(devices=8.0, seq=4096.0, batch=64.0, seconds=10.0, tflops=bare.device_flops["PaLM"], **LLAMA)
    assert f.printed_formula == ("PaLM", pytest.approx(1.0))


def test_a_family_and_a_size_are_a_preset_and_a_stated_shape_is_none():
    found = figures(texts={"model": "LlamaForCausalLM"}, params=8.03e9).named
    assert found is not None
    assert found.params == pytest.approx(8.03e9, rel=0.03)
    assert figures(texts={"model": "llama-3-8b"}, **LLAMA).named is not None
    fewer: dict[str, Any] = LLAMA | {"layers": 31.0}
    assert figures(texts={"model": "llama-3-8b"}, **fewer).named is None
