"""Rules over single runs: each finds its fault in plain figures, and figures that agree raise nothing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding
from meshwise.audit.rules import one_run
from support.audits import LLAMA, figures


def check(f: Figures) -> dict[str, Finding]:
    """Return the findings of all rules by rule."""
    return {one.rule: one for rule in one_run.RULES for one in rule(f)}


@given(
    devices=st.sampled_from([1, 2, 8, 64, 384]),
    mbs=st.integers(1, 8),
    steps=st.integers(1, 64),
    seq=st.sampled_from([512, 2048, 8192]),
    share=st.floats(0.02, 0.6),
)
def test_figures_that_follow_from_each_other_raise_nothing(devices: int, mbs: int, steps: int, seq: int, share: float):
    batch = devices * mbs * steps
    bare = figures(devices=devices, seq=seq, batch=batch, **LLAMA)
    rate = share * 989.4e12 * devices / bare.formulas["6N"]
    f = figures(
        devices=devices,
        dp=devices,
        tp=1.0,
        pp=1.0,
        mbs=mbs,
        accumulation=steps,
        batch=batch,
        seq=seq,
        tokens_per_step=batch * seq,
        seconds=batch * seq / rate,
        tokens_per_second=rate,
        tflops=share * 989.4e12,
        mfu=share,
        first_loss=math.log(128256) + 0.2,
        loss_step=0.0,
        memory=60e9,
        ranks=(rate / devices,) * devices,
        **LLAMA,
    )
    assert check(f) == {}
    assert f.printed_formula[0] == "6N"
    assert f.mfu["6N"] == pytest.approx(share)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"devices": 64.0, "dp": 4.0, "tp": 8.0, "pp": 4.0}, "layout"),
    ({"devices": 60.0, "tp": 8.0, "pp": 4.0}, "layout"),
    ({"devices": 8.0, "dp": 8.0, "mbs": 4.0, "batch": 100.0}, "batch"),
    ({"devices": 8.0, "dp": 8.0, "mbs": 4.0, "accumulation": 2.0, "batch": 32.0}, "batch"),
    ({"layers": 12.0, "pp": 16.0, "seconds": 1.0}, "layers"),
    ({"heads": 20.0, "tp": 8.0}, "layers"),
    ({"layers": 10.0, "hidden": 14336.0, "params": 18e9}, "size"),
    ({"first_loss": 2.0, "loss_step": 0.0, "vocab": 50257.0}, "first loss"),
    ({"first_loss": 0.5, "loss_step": 0.0}, "first loss"),
    ({"first_loss": 60.0, "loss_step": 1.0, "vocab": 50257.0}, "first loss"),
    ({"memory": 120e9}, "memory"),
    ({"tflops": 400e12, "mfu": 0.6}, "MFU"),
    ({"forward_seconds": 0.045, "seconds": 7.5}, "forward and step"),
    ({"nans": 3.0}, "NaN"),
    ({"decode": 900.0, "model_bytes": 16e9, "users": 1.0, "devices": 1.0}, "above the chip"),
    ({"decode": 90.0, "prefill": 40.0, "prompt": 512.0}, "prompt and generation"),
    ({"devices": 8.0, "tokens_per_second": 300_000.0, **LLAMA}, "above the chip"),
]


def test_each_fault_is_found():
    missed = [(numbers, rule) for numbers, rule in FAULTS if rule not in check(figures(**numbers))]
    assert missed == []


FAULTLESS: list[dict[str, Any]] = [
    {"first_loss": 2.0, "loss_step": 5000.0, "vocab": 50257.0},
    {"first_loss": 10.9, "loss_step": 0.0, "vocab": 50257.0},
    {"layers": 61.0, "pp": 16.0},
    {"decode": 150.0, "model_bytes": 16e9, "users": 1.0, "devices": 1.0},
    {"devices": 8.0, "tokens_per_second": 90_000.0, **LLAMA},
    {"memory": 79e9},
]


def test_possible_figures_raise_nothing():
    raised = [(numbers, found) for numbers in FAULTLESS if (found := check(figures(**numbers)))]
    assert raised == []


def test_a_rate_of_one_device_with_the_step_of_all_is_found():
    one = check(figures(devices=8, seq=4096, batch=64, seconds=4.0, tokens_per_second=8192))["step x throughput"]
    assert "the rate is one device's" in one.message


def test_a_step_in_milliseconds_is_found():
    f = figures(devices=8, seq=4096, batch=64, seconds=4000.0, tokens_per_second=65536)
    assert "milliseconds" in check(f)["step x throughput"].message


def test_ranks_that_each_print_the_total_are_found():
    one = check(figures(devices=4, tokens_per_second=1000.0, ranks=(1000.0, 1001.0, 999.0, 1000.0)))["ranks and total"]
    assert one.message == "each rank prints the total"


def test_ranks_of_very_different_rates_are_found():
    assert "balance" in check(figures(devices=2, tokens_per_second=300.0, ranks=(200.0, 100.0)))


def test_samples_per_second_and_a_batch_need_no_length():
    assert "step x throughput" in check(figures(samples_per_second=10.0, seconds=1.0, batch=64.0))


def test_a_first_loss_is_the_more_certain_the_lower_it_is():
    assert check(figures(first_loss=7.5, loss_step=0.0, vocab=50257.0))["first loss"].certainty == "likely"
    assert check(figures(first_loss=3.0, loss_step=0.0, vocab=50257.0))["first loss"].certainty == "certain"


def test_printed_tflops_of_all_devices_are_recognised_as_such():
    bare = figures(devices=8, seq=4096, batch=64, seconds=10.0, **LLAMA)
    f = figures(devices=8, seq=4096, batch=64, seconds=10.0, tflops=8 * bare.device_flops["6N"], **LLAMA)
    assert "they are the sum of all devices" in check(f)["printed FLOPs"].message


def test_a_run_below_one_percent_of_the_peak_is_found_with_the_documents_grade():
    slow = figures(devices=8.0, tokens_per_second=1000.0, **LLAMA)
    (one,) = one_run.low_utilization(slow, "A+")
    assert one.rule == "low MFU"
    assert one.message == "it uses 0.61% of the peak of H100 SXM (the document grades itself: A+)"
    assert list(one_run.low_utilization(figures(devices=8.0, tokens_per_second=90_000.0, **LLAMA), "")) == []
    assert list(one_run.low_utilization(figures(texts={"chip": "cpu"}, devices=1.0, tokens_per_second=1.0, **LLAMA), "")) == []


def test_a_stated_mfu_alone_is_found_too_low():
    (one,) = one_run.low_utilization(figures(devices=8.0, mfu=0.0015, **LLAMA), "A+")
    assert one.message == "it uses 0.15% of the peak of H100 SXM (the document grades itself: A+)"
    assert list(one_run.low_utilization(figures(devices=8.0, mfu=0.4, **LLAMA), "")) == []
    (unnamed,) = one_run.low_utilization(figures(texts={"chip": ""}, mfu=0.0015), "")
    assert unnamed.message == "it uses 0.15% of the peak of its devices"


def test_rates_beyond_a_thousand_have_no_exponent():
    message = check(figures(devices=8.0, tokens_per_second=400_000.0, **LLAMA))["above the chip"]
    assert "2,410 TFLOP/s of 989.4" in message.arithmetic
