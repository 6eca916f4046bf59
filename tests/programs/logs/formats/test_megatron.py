"""Megatron-LM and Megatron-DeepSpeed logs: iterations of any version and the arguments above them."""

import pytest

from meshwise.audit import report
from support.audits import FIXTURES, read_text, runs_of


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


def test_megatron_deepspeed_states_seconds_tflops_and_its_arguments():
    (run,) = runs_of("megatron-deepspeed-10nodes.log")
    assert run.number("seconds") == pytest.approx(844.81)
    assert run.number("tflops") == pytest.approx(98.87e12)
    assert (run.number("tp"), run.number("pp"), run.number("devices")) == (8, 10, 80)
    assert (run.number("layers"), run.number("hidden"), run.number("vocab"), run.number("seq")) == (80, 14400, 250880, 2048)
    assert run.text("framework") == "Megatron-DeepSpeed"


def test_megatron_lm_states_milliseconds_and_mebibytes():
    (run,) = runs_of("megatron-lm-22b.log")
    assert run.number("seconds") == pytest.approx(1.42)  # the first step, three times as long, is not the median
    assert run.number("memory") == 61440 * 2**20
    assert run.number("loss_step") == 1
    assert run.text("recompute") == "full"


def test_a_log_without_arguments_still_has_its_times():
    (run,) = runs_of("megatron-lm-old.log")
    assert run.number("seconds") == pytest.approx(18.13)
    assert run.number("batch") == 64
    assert not run.stated("devices")


def test_nan_losses_are_found_and_never_a_speed():
    text = fixture("megatron-lm-22b.log").replace("lm loss: 1.060000E+01", "lm loss: NaN")
    (run,) = read_text(text, "megatron").runs
    assert run.number("nans") == 1
    audit = report.audit([("x", read_text(text, "megatron"))], planned=False)
    assert [one.rule for one in audit.findings] == ["NaN"]


def test_another_model_in_the_same_log_is_another_run():
    both = fixture("megatron-deepspeed-1node.log") + fixture("megatron-deepspeed-10nodes.log")
    first, second = read_text(both, "megatron").runs
    assert (first.number("layers"), second.number("layers")) == (8, 80)
    assert (first.number("seconds"), second.number("seconds")) == (769.99, 844.81)
    assert second.number("devices") == 80
