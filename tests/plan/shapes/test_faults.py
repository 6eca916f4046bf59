"""The faults of a shape: correct under the cost model, each with its cost."""

from dataclasses import replace
from typing import Any

import pytest

from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.plan.shapes.faults import Fault, faults, quantization_losses
from meshwise.plan.shapes.stack import base_of, one_model, parse
from support.train_questions import found_model, question

UNEVEN = 2.4
"""Fitted to the BLOOM notes: meshwise.calibration."""


def asked(text: str, framework: str = "megatron-deepspeed", cluster: str = "jean-zay:48", **more: Any) -> Question:
    base = base_of(found_model("bloom-176b"), 250_880)
    q = question("bloom-176b", cluster, framework, Calibration(uneven=UNEVEN), **({"batch": 2048} | more))
    return replace(q, model=one_model(base, parse(base, (text,)), 0))


def faults_of(q: Question, **axes: int) -> list[Fault]:
    return faults(q, base_of(found_model("bloom-176b"), 250_880), Layouts.of(**({"recompute": 2} | axes)))


def about(found: list[Fault], words: str) -> Fault:
    (fault,) = [fault for fault in found if words in fault.words]
    return fault


NOTES: dict[str, int] = {"tp": 8, "pp": 6, "dp_shard": 8, "zero": 1, "mbs": 4}
"""The layout of the NHEADS tables of the BLOOM notes."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("14400x72x96", "a head size of 150 is not a multiple of 8: attention cannot use the tensor cores"),
        ("13824x78x128", "a head size of 108 is not a multiple of 8: attention cannot use the tensor cores"),
        ("14336x72x112", "micro-batch x heads / tp = 56 is not a multiple of 32: attention takes 2.4 times as long"),
        ("13824x78x96", "micro-batch x heads / tp = 48 is not a multiple of 32"),
        ("12288x96x96", "micro-batch x heads / tp = 48 is not a multiple of 32"),
        ("14336x72x16", "micro-batch x heads / tp = 8 is not a multiple of 32"),
        ("14336x72x256", "256 heads of 56 where 112 of 128 would do: softmax passes over 2.3 times the scores"),
        ("14400x72x96", "hidden 14400 / tp 8 = 1800 and FFW 57600 / tp 8 = 7200, not a multiple of 128: tiles at the edges"),
        (
            "14336x72x64",
            "72 layers over 6 equal stages give the last one the head as well; 70 and the vocabulary would divide evenly",
        ),
    ],
)
def test_each_shape_of_the_notes_has_the_fault_that_slows_it(text: str, words: str) -> None:
    fault = about(faults_of(asked(text), **NOTES), words)
    assert fault.cost is not None
    assert 0.004 < fault.cost < 0.5


@pytest.mark.parametrize("text", ["14336x70x64", "13312x82x64", "13824x76x64", "12288x94x64"])
def test_64_heads_and_stages_that_fill_break_nothing(text: str) -> None:
    """4 x 64 / 8 = 32, heads of 192 and more, 8 x 16 x k wide, and layers and the vocabulary that six stages share evenly."""
    found = faults_of(asked(text), **NOTES)
    assert [fault.words for fault in found if "wave" not in fault.words] == []


def test_the_order_of_the_notes_is_that_of_their_faults() -> None:
    """NHIDDEN=13824: 121 s with 64 heads, 125 with 96, 163 with 128 of 108; 14336: 120 with 64, 139 with 112."""
    lost = {
        text: sum(fault.cost or 0 for fault in faults_of(asked(text), **NOTES))
        for text in ("13824x78x64", "13824x78x96", "13824x78x128", "14336x72x64", "14336x72x112")
    }
    assert lost["13824x78x64"] < lost["13824x78x96"] < lost["13824x78x128"]
    assert lost["14336x72x64"] < lost["14336x72x112"]


def test_the_most_expensive_fault_comes_first() -> None:
    costs = [fault.cost or 0.0 for fault in faults_of(asked("14400x72x96"), **NOTES)]
    assert costs == sorted(costs, reverse=True)
    assert len(costs) > 2


def test_empty_slots_are_counted_and_have_a_cost() -> None:
    """69 + 2 of 24 x 3; one more layer takes no longer, and is one more layer."""
    axes = {"tp": 8, "pp": 24, "dp_shard": 2, "zero": 1}
    q, full = asked("13824x69x64"), asked("13824x70x64")
    fault = about(faults_of(q, **axes), "69 layers and the vocabulary over 24 stages of 3 leave 1 slot empty")
    layout = Layouts.of(**axes, recompute=2)
    per, other = (float(evaluate(one, layout).step[0]) / one.model.params for one in (q, full))
    assert fault.cost == pytest.approx(1 - other / per, rel=1e-9)
    assert (about(faults_of(asked("13824x67x64"), **axes), "leave 3 slots empty").cost or 0) > (fault.cost or 0)
    assert not [one for one in faults_of(full, **axes) if "stages" in one.words]


def test_without_pipeline_stages_the_number_of_layers_is_no_fault() -> None:
    for framework, axes in (("megatron-deepspeed", {"tp": 8, "dp_shard": 48, "zero": 1}), ("torchtitan", NOTES)):
        assert not [fault for fault in faults_of(asked("13824x69x64", framework), **axes) if "layers" in fault.words]


def test_layers_that_cannot_be_cut_where_stages_must_be_equal() -> None:
    found = faults_of(asked("13824x69x64", "maxtext"), tp=8, pp=3, dp_shard=16, zero=3)
    assert about(found, "69 layers cannot be cut by pp 4").cost is None


def test_heads_that_a_wider_tp_does_not_divide() -> None:
    found = faults_of(asked("12800x90x100"), tp=4, pp=12, dp_shard=8, zero=1)
    assert about(found, "100 heads cannot be cut by tp 8").cost is None
    assert not [fault for fault in faults_of(asked("12800x90x100"), tp=2, pp=12, dp_shard=16, zero=1) if "by tp" in fault.words]


def test_with_flash_attention_only_small_heads_are_a_fault() -> None:
    found = faults_of(asked("14336x70x256", "megatron"), **NOTES)
    assert not [fault for fault in found if "multiple of 32" in fault.words or "multiple of 8" in fault.words]
    assert about(found, "256 heads of 56 where 112 of 128 would do: flash attention is slow in small heads").cost


def test_widths_that_cannot_use_the_tensor_cores() -> None:
    fault = about(faults_of(asked("14352x70x8"), **NOTES), "hidden 14352 / tp 8 = 1794")
    assert "not a multiple of 8: matrix products cannot use the tensor cores" in fault.words
    assert fault.cost is not None
    assert fault.cost > 0.3


def test_where_multiples_of_32_are_no_faster_no_such_fault_is_listed() -> None:
    q = asked("14336x72x112")
    even = replace(q, calibration=replace(q.calibration, uneven=1.0))
    assert not [fault for fault in faults_of(even, **NOTES) if "32" in fault.words]


def test_whole_tiles_and_waves_by_hand() -> None:
    """Of one sequence of 2048, 1728 wide: 8 x 13.5 tiles of 256 x 128 are 112, two waves of 108 SMs; 8 of them overhang."""
    q = asked("13824x70x64")
    tiles, waves = quantization_losses(q, Layouts.of(tp=8, mbs=1))
    wide_tiles, wide_waves = quantization_losses(asked("14336x70x64"), Layouts.of(tp=8, mbs=1))
    assert 0 <= wide_tiles < 1e-9  # 1792 is 14 x 128
    assert tiles > 0
    assert 0 < waves < 0.5
    assert 0 < wide_waves < 0.5
    endless = replace(q, chip=replace(q.chip, sms=1))
    assert quantization_losses(endless, Layouts.of(tp=8, mbs=1))[1] == 0


def test_a_fault_in_words() -> None:
    assert str(Fault("it is slow", 0.0123)) == "it is slow (1.2%)"
    assert str(Fault("it cannot be cut", None)) == "it cannot be cut"
