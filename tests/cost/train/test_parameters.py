"""Fine-tuning decides which bytes a device holds: frozen weights, adapters, and the state of what is trained."""

import csv
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE
from meshwise.cost.finetune import parse
from meshwise.cost.layout import Layouts
from meshwise.cost.train.memory import MOMENTS, host_bytes
from meshwise.cost.train.parameters import finetuned, nf4_bytes
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, moments
from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from support.adapters import adapter_parameters
from support.every import check_every
from support.train_questions import cost, question

TABLES = Path(__file__).parent.parent.parent / "fixtures/finetune"
LLAMA = "llama-3-8b"


def table(name: str) -> list[dict[str, str]]:
    with (TABLES / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def memory(q: Question, **axes: int) -> dict[str, float]:
    return cost(q, **axes)[1]


def finetune(text: str, model: str = LLAMA, framework: str = "accelerate", **more: Any) -> Question:
    return question(model, "1xh200", framework=framework, finetune=parse(text), batch=4, **more)


def test_4_bit_weights_are_whole_on_every_rank_where_the_framework_does_not_shard_them() -> None:
    """Llama 3 8B has 6,979,321,856 weights in linear layers: about 3.4 GiB in nf4. Of 2 ranks each has half, or all."""
    packed = finetuned(find_model("llama-3-8b"), parse("qlora:16")).packed
    assert packed == pytest.approx(6_979_321_856 * (0.5 + 1 / 64 + 4 / (64 * 256)), rel=1e-3)
    held: dict[str, float] = {}
    for framework in ("meshwise", "fsdp"):
        ask = TrainAsk("llama-3-8b", on="2xh200", batch=4, seq=1024, framework=framework, finetune="qlora:16")
        held[framework] = float(evaluate(lookup.question(ask), Layouts.of(dp_shard=2, zero=3, mbs=2)).memory["weights"][0])
    assert held["meshwise"] - held["fsdp"] == pytest.approx(packed / 2 - packed * 2 / 32, rel=0.01)  # two layers are not gathered


def test_a_matrix_in_nf4_has_the_bytes_that_bitsandbytes_packs() -> None:
    for row in table("bitsandbytes"):
        assert nf4_bytes(int(row["rows"]) * int(row["columns"])) == int(row["bytes"]), row


def test_states_are_those_of_deepspeeds_estimator() -> None:
    """Of a device without the layers that ZeRO 3 gathers, and of the host of all devices without its spare buffers; within 1%."""
    models = {1_235_814_400: "llama-3.2-1b", 8_030_261_248: "llama-3.1-8b", 70_553_706_496: "llama-3-70b"}

    def check(row: dict[str, str]) -> None:
        devices, zero, offload = int(row["devices"]), int(row["zero"]), OFFLOAD.index(row["offload"])
        if devices == 1:  # nothing is sharded
            return
        q = question(models[int(row["parameters"])], f"{devices}xa100-80gb-sxm", framework="deepspeed", batch=devices)
        axes = {"dp_shard": devices, "zero": zero, "offload": offload}
        held = memory(q, **axes)
        layers = 2 * q.work.framework.weight_bytes * q.model.params / q.model.decoder.layers if zero == 3 else 0.0
        states = held["weights"] + held["gradients"] + held["optimizer"] - layers
        assert states == pytest.approx(float(row["device"]), rel=0.01, abs=0.01 * layers + 1)
        if row["offload"] != "none" and devices <= 4:  # beyond 4, ZeRO 2 holds a float32 model in every process while it loads
            a, every = Layouts.of(**axes).as_floats(), np.full(1, float(q.model.decoder.layers))
            host = devices * host_bytes(q.model, q.work, a, every, np.ones(1)).item()
            assert host == pytest.approx(float(row["host"]), rel=0.01)

    check_every(check, ((row,) for row in table("deepspeed")))


def test_lora_holds_frozen_weights_in_16_bits_and_16_bytes_per_adapter_weight() -> None:
    q = finetune("lora:16")
    adapters = adapter_parameters(q.model, ("all-linear",), 16)
    found = moments(q, Layouts.of(mbs=4)).sizes
    held = {kind: float(values[MOMENTS.index("first layer"), 0]) for kind, values in found.items()}
    assert held["weights"] == pytest.approx(2 * q.model.params + 4 * adapters)
    assert held["gradients"] + held["optimizer"] == pytest.approx(12 * adapters)


def test_adapters_have_the_dtype_of_their_program() -> None:
    """torchtune keeps weights, gradients and moments of adapters in bf16."""
    q = finetune("lora:16", framework="torchtune")
    adapters = adapter_parameters(q.model, ("all-linear",), 16)
    found = moments(q, Layouts.of(mbs=4)).sizes
    assert float(found["gradients"][2, 0] + found["optimizer"][2, 0]) == pytest.approx(6 * adapters)


@pytest.mark.parametrize(
    ("base", "least", "most"),
    [("nf4", 0.51, 0.52), ("nf4-single", 0.56, 0.57), ("int8", 1.0, 1.01), ("gptq", 0.51, 0.53), ("awq", 0.51, 0.53)],
)
def test_each_format_of_a_base_has_its_bytes_per_weight(base: str, least: float, most: float) -> None:
    """nf4: half a byte, 8-bit scales per 64 and a second per 256 of these, or float32 ones; int8: a scale per output; groups of 128."""
    how = finetuned(find_model(LLAMA), parse("lora:16", base))
    weights = sum(
        op.n * op.k * op.count
        for block, op in find_model(LLAMA).placed
        if block not in ("embedding", "head") and op.kind == "matmul"
    )
    assert least < how.packed / weights < most


def test_experts_are_quantized_unless_the_program_keeps_them() -> None:
    """Mixtral 8x7B: 45.1 of 46.7B parameters are experts; transformers 5 holds them as stacked parameters, which bitsandbytes leaves."""
    kept, packed = (memory(finetune("qlora:16:attention", "mixtral-8x7b", name), mbs=1)["weights"] for name in ("trl", "unsloth"))
    experts = 45_097_156_608
    assert kept - packed > 0.95 * (2 - 0.52) * experts


def test_peft_casts_what_is_not_quantized_to_float32_and_axolotl_does_not() -> None:
    """prepare_model_for_kbit_training: two tables of 128,256 x 4,096 in 4 bytes, a float32 stream, and 4 more bytes per logit."""
    cast, plain = (
        moments(finetune("qlora:16", framework=name), Layouts.of(mbs=4, recompute=2)).sizes for name in ("peft", "axolotl")
    )
    loss = MOMENTS.index("loss")
    assert float(cast["weights"][0, 0] - plain["weights"][0, 0]) == pytest.approx(2 * 2 * 128256 * 4096, rel=0.01)
    assert float(cast["activations"][loss, 0]) == pytest.approx(2 * float(plain["activations"][loss, 0]))
    assert float(cast["logits"][loss, 0] - plain["logits"][loss, 0]) == pytest.approx(4 * 4 * 2048 * 128256)


def test_qlora_holds_the_linear_layers_of_the_base_in_nf4() -> None:
    q = finetune("qlora:16")
    packed = [op for block, op in q.model.placed if block in q.model.times and op.kind == "matmul"]
    left = 4 * (q.model.params - sum(op.params * op.count for op in packed))  # PEFT casts the rest to float32
    stored = sum(nf4_bytes(op.n * op.k) * op.count for op in packed)
    adapters = adapter_parameters(q.model, ("all-linear",), 16)
    assert memory(q, mbs=4)["weights"] == pytest.approx(left + stored + 4 * adapters, rel=1e-5)  # less the last norm


def test_a_frozen_embedding_has_neither_gradient_nor_state() -> None:
    """Llama 3 8B: embedding and head are two tables; only the head's is trained."""
    whole, frozen = (memory(finetune(text, framework="ddp"), mbs=1) for text in ("full", "freeze:0"))
    table = 128256 * 4096
    assert whole["weights"] == frozen["weights"]
    assert whole["gradients"] - frozen["gradients"] == pytest.approx(4 * table)
    assert whole["optimizer"] - frozen["optimizer"] == pytest.approx((12 + 4) * table)  # and a temporary of the foreach update


def test_frozen_layers_keep_no_activations_and_have_no_backward_pass() -> None:
    whole, half = (cost(finetune(text), mbs=4) for text in ("full", "freeze:16"))
    assert half[1]["activations"] == pytest.approx(whole[1]["activations"] / 2)
    assert half[0]["attention"] < 0.7 * whole[0]["attention"]


def test_the_backward_pass_of_frozen_products_has_no_weight_gradients() -> None:
    """Two products of three are left; the adapters' own are small."""
    whole, lora = (cost(finetune(text, framework="meshwise"), mbs=4)[0]["matmul"] for text in ("full", "lora:16"))
    assert 0.6 * whole < lora < 0.85 * whole


def test_frozen_products_do_not_keep_their_inputs() -> None:
    """With adapters in attention alone, the input of the down product is not needed."""
    everything, attention = (
        memory(finetune(f"lora:16:{targets}", framework="torchtitan"), mbs=4)["activations"]
        for targets in ("all-linear", "attention")
    )
    down = 2 * 14336 * 32 * 4 * 2048
    assert everything - attention >= 0.9 * down


@pytest.mark.parametrize("framework", ["accelerate", "meshwise", "fsdp", "deepspeed", "megatron", "torchtitan", "ddp"])
def test_less_is_trained_the_less_memory_it_takes(framework: str) -> None:
    def check(model: str, recompute: str) -> None:
        peaks = [
            evaluate(finetune(text, model, framework), Layouts.of(mbs=2, recompute=RECOMPUTE.index(recompute))).peak.item()
            for text in ("full", "freeze:1", "lora:8", "qlora:8")
        ]
        if find_framework(framework).kbit_casts:  # float32 logits of a large vocabulary may take more than 4-bit weights save
            peaks.pop()
        assert peaks == sorted(peaks, reverse=True), peaks

    check_every(check, product((LLAMA, "mixtral-8x7b", "gemma-2-2b"), ("none", "full")))


def test_more_layers_cannot_be_frozen_than_the_model_has() -> None:
    with pytest.raises(UserError, match="has 32 layers; expected at most 31"):
        finetuned(find_model(LLAMA), parse("freeze:32"))
