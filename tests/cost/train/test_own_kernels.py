"""What our own trainer's kernels move and keep, beside what every framework does (docs/reports/trainer-speed.md)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwise.catalogue.calibrations import named
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.finetune import parse
from meshwise.cost.train.compute import Device, attention
from meshwise.cost.train.question import Question
from meshwise.models.op import Op
from support.train_questions import cost, found_cluster, question

OWN, CALIBRATION = find_framework("meshwise"), named("h200-meshwise")
DEVICE = Device.of(found_cluster("1xh200").chip, CALIBRATION, "bf16")


def asked(model: str, **work: Any) -> Question:
    return question(model, "1xh200", **({"framework": OWN, "calibration": CALIBRATION, "batch": 4} | work))


def changed(q: Question, change: Callable[[Op], Op]) -> Question:
    """The question about a model whose Ops are changed."""
    return replace(q, model=replace(q.model, placed=tuple((block, change(op)) for block, op in q.model.placed)))


def on_one_device(q: Question) -> tuple[dict[str, float], dict[str, float]]:
    return cost(q, mbs=int(q.work.batch))


@pytest.mark.parametrize(("head", "padded"), [(40, 64), (64, 64), (72, 128), (80, 128), (128, 128), (136, 192)])
def test_a_kernel_with_tiles_of_64_features_multiplies_the_padding_of_a_head(head: int, padded: int) -> None:
    one = np.ones(1)

    def seconds(size: int, multiple: float) -> float:
        op = Op(name="scores", part="attention", kind="attention", m=32, n=size, k=size, shard="heads")
        fast = replace(DEVICE, bandwidth=1e18)  # bytes are those of the features that there are
        return float(attention(fast, op, 2048, one, 32 * one, one, True, multiple=multiple)[0][0])

    assert seconds(head, 64) == pytest.approx(seconds(padded, 1))


def test_only_the_plain_kernel_pads_heads() -> None:
    one = np.ones(1)
    op = Op(name="scores", part="attention", kind="attention", m=32, n=80, k=80, shard="heads")
    compiled = [attention(DEVICE, op, 2048, one, 32 * one, one, True, 0.39, multiple) for multiple in (1.0, 64.0)]
    assert compiled[0] == compiled[1]


@pytest.mark.parametrize("model", ["pythia-2.8b", "bloom-1b1", "starcoder2-3b"])
def test_biases_take_the_time_of_reading_their_products_gradients_again(model: str) -> None:
    q = asked(model)
    plain = changed(q, lambda op: replace(op, params=op.n * op.k) if op.kind == "matmul" else op)
    biased = [op for op in q.model.ops if op.kind == "matmul" and op.params > op.n * op.k]
    least = sum(2 * op.n * op.count for op in biased) * 4 * q.work.seq / DEVICE.bandwidth
    more = on_one_device(q)[0]["elementwise"] - on_one_device(plain)[0]["elementwise"]
    assert least < more < 2.5 * least


def test_a_step_of_olmoe_spends_what_was_profiled() -> None:
    """docs/reports/trainer-speed.md: of 165.0 ms, AdamW 43, and products 91 with those of experts' gradients."""
    time, _ = on_one_device(asked("olmoe-1b-7b"))
    assert time["optimizer"] == pytest.approx(0.043, rel=0.03)
    assert time["matmul"] == pytest.approx(0.091, rel=0.04)
    assert sum(time.values()) == pytest.approx(0.165, rel=0.03)


def test_more_and_smaller_experts_are_updated_in_the_same_time() -> None:
    q = asked("olmoe-1b-7b")
    split = changed(q, lambda op: replace(op, params=op.params // 2, count=2 * op.count) if op.expert else op)
    assert on_one_device(split)[0]["optimizer"] == pytest.approx(on_one_device(q)[0]["optimizer"], rel=1e-3)


MEASURED_GIB = {
    ("llama-3.2-1b", "", 8, 2048): 28.71, ("ttt-linear-125m", "", 16, 128): 2.67, ("ttt-linear-125m", "", 16, 512): 4.91,
    ("ttt-linear-350m", "", 8, 512): 7.80, ("ttt-linear-1.3b", "", 2, 2048): 21.95, ("olmoe-1b-7b", "", 4, 2048): 92.49,
    ("olmoe-1b-7b", "", 2, 2048): 91.11, ("llama-3-8b", "lora:16", 4, 2048): 40.00, ("llama-3-8b", "dora:16", 4, 2048): 45.12,
    ("llama-3.2-1b", "dora:16", 8, 1536): 15.09,
}  # fmt: skip
"""Peaks that torch had allocated on an H200 (docs/reports/trainer-speed.md, 2026-11-18; TTT-Linear 125M: ttt-kernels.md, loop.md)."""


@pytest.mark.parametrize("case", list(MEASURED_GIB), ids=str)
def test_memory_is_what_torch_had_allocated(case: tuple[str, str, int, int]) -> None:
    model, method, batch, seq = case
    q = asked(model, batch=batch, seq=seq, finetune=parse(method or "full"))
    assert sum(on_one_device(q)[1].values()) / 2**30 == pytest.approx(MEASURED_GIB[case], rel=0.015)


DORA_OUTPUTS = {"llama-3-8b": 6144 + 4096, "llama-3.2-1b": 3072 + 2048, "qwen3-1.7b": 2048}
"""Outputs of a layer that DoRA keeps beside what LoRA keeps, as torch's partitioner chooses: queries, keys and values before they are
scaled, unless they are kept for their norms, and the outputs of down. Those of gate and up take the place of the scaled ones, and
those after attention the place of the sum that they are added to."""


@pytest.mark.parametrize("model", list(DORA_OUTPUTS))
def test_dora_keeps_the_outputs_that_nothing_else_keeps(model: str) -> None:
    lora, dora = (on_one_device(asked(model, finetune=parse(f"{method}:16")))[1] for method in ("lora", "dora"))
    q = asked(model)
    kept = 2 * DORA_OUTPUTS[model] * q.model.decoder.layers * 4 * q.work.seq * CALIBRATION.activations
    assert dora["activations"] - lora["activations"] == pytest.approx(kept, rel=1e-6)


def test_dora_reads_frozen_weights_once_and_scales_outputs() -> None:
    lora, dora = (on_one_device(asked("llama-3-8b", finetune=parse(f"{method}:16")))[0] for method in ("lora", "dora"))
    tokens, layers = 4 * 2048, 32
    scaled = (4 * (6144 + 28672) + 8 * (6144 + 4096 + 28672 + 4096)) * tokens * layers
    least = (scaled + 2 * 6.98e9) / DEVICE.bandwidth
    assert least < dora["elementwise"] - lora["elementwise"] < 1.3 * least
