"""Steps that were measured, and the worked step of the module."""

from dataclasses import replace

import pytest

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.compute import MIN_KERNEL_SECONDS
from meshwise.cost.train.layer import GRAPH_GAP_SHARE
from meshwise.cost.train.step import evaluate, layer_and_head
from support.train_questions import (
    cost,
    only,
    question,
    seconds,
)

# What was measured.

TABLE_5 = {  # model: pp, micro-batch, batch, interleave, seconds with full recompute, seconds with selective and sequence parallel
    "korthikanti-22b": (1, 4, 4, 1, 1.42, 1.10),
    "korthikanti-175b": (8, 1, 64, 3, 18.13, 13.75),
    "korthikanti-530b": (35, 1, 280, 3, 49.05, 37.83),
    "korthikanti-1t": (64, 1, 512, 1, 94.42, 71.49),
}
"""Korthikanti et al. 2022, arXiv:2205.05198, Tables 3 and 5: A100s of 80 GB, tp 8, InfiniBand of 200 Gb/s for each."""


def iterations(model: str, calibration: Calibration | None = None) -> tuple[float, float]:
    """Predicted seconds with full recompute, and with selective recompute and sequence parallelism."""
    pp, mbs, batch, vpp, _, _ = TABLE_5[model]
    program = replace(find_framework("megatron"), attention="unfused", dropout=True)
    q = question(model, f"{pp}x8xa100-80gb-sxm@1600Gbps", program, calibration, batch=batch)
    axes = {"tp": 8, "pp": pp, "mbs": mbs, "vpp": vpp, "schedule": int(vpp > 1)}
    return seconds(q, recompute=2, **axes), seconds(q, recompute=1, sp=1, **axes)


@pytest.mark.parametrize("model", TABLE_5)
def test_korthikantis_iterations_are_predicted_within_a_fifth_by_the_prior(model: str) -> None:
    predicted = iterations(model)
    assert predicted == pytest.approx(TABLE_5[model][-2:], rel=0.2)
    full, selective = predicted
    assert 1.15 < full / selective < 1.45  # measured: 1.29, 1.32, 1.30, 1.32


def test_a_head_size_of_108_slows_bloom_as_measured() -> None:
    """48 nodes, dp 8, tp 8, pp 6, micro-batch 4, 13824 wide: 128 heads of 108 took 162.72 s, 96 of 144 124.75 (BLOOM notes, 02-23)."""
    slow, quick = (
        seconds(
            question(f"bloom-182b-h13824-l78-a{heads}", "jean-zay:48", "megatron-deepspeed", batch=2048),
            dp_shard=8,
            tp=8,
            pp=6,
            mbs=4,
            zero=1,
            recompute=2,
        )
        for heads in (128, 96)
    )
    assert slow / quick == pytest.approx(162.72 / 124.75, rel=0.15)


def test_a_cuda_graph_has_no_cpu_launch_overhead() -> None:
    """On one GPU; several, or a CPU, start every kernel from the host."""
    c = replace(Calibration(), layer_gap=1e-5, layer_launch=5e-3)
    one = cost(question("llama-debug", "1xh100-sxm", "meshwise", c, batch=1, seq=64))[0]
    assert one["launch"] == pytest.approx(4 * 2 * GRAPH_GAP_SHARE * c.layer_gap)  # four layers, forward and backward
    assert one["fixed"] == 0
    for cluster, axes in (("2xh100-sxm", {"dp_shard": 2, "zero": 3}), ("1xcpu", {})):
        other = cost(question("llama-debug", cluster, "meshwise", c, batch=2, seq=64), **axes)[0]
        assert other["launch"] > 4 * 2 * 4e-3
        assert other["fixed"] == c.step


def test_joined_products_count_as_one_on_a_single_gpu() -> None:
    """Queries, keys and values of a 768-wide model are a product of 2,304 outputs, gate and up one of 4,096: fewer tiles are cut off."""
    joins = find_framework("meshwise")
    apart = replace(joins, joins_products=False)
    for cluster, axes in (("1xh200", {}), ("2xh200", {"dp_shard": 2, "zero": 3}), ("1xcpu", {})):
        one, other = (cost(question("ttt-linear-125m", cluster, f, batch=16), mbs=8, **axes)[0] for f in (joins, apart))
        assert (one["matmul"] < other["matmul"]) == (cluster == "1xh200")
        assert {part for part in TRAIN_PARTS if one[part] != other[part]} <= {"matmul"}


def test_no_norm_is_faster_than_the_shortest_kernel() -> None:
    """Of one token: two norms, two additions, rotary positions and the gate are a kernel each forward, and 1.3 times as much backward."""
    q = question("llama-debug", "1xh100-sxm", "megatron", batch=1, seq=1)
    layers = q.model.decoder.layers
    assert cost(q)[0]["elementwise"] == pytest.approx(layers * 6 * MIN_KERNEL_SECONDS * 2.3, rel=0.01)


def test_the_elementwise_coefficient_only_scales_elementwise_time() -> None:
    q = question("llama-3-8b", "1xh100-sxm", "torchtitan", batch=4)
    fewer, many = (cost(replace(q, calibration=replace(q.calibration, elementwise=more)), mbs=4)[0] for more in (1.0, 3.0))
    logits = 4 * 2048 * 128256 * q.work.framework.logit_bytes / (3.35e12 * q.calibration.memory)  # are not of a layer
    assert many["elementwise"] - logits == pytest.approx(3 * (fewer["elementwise"] - logits))
    assert {part for part in TRAIN_PARTS if many[part] != fewer[part]} == {"elementwise"}


JEAN_ZAY = Calibration(
    matmul=0.7314,
    memory=0.4959,
    flash=0.5998,
    uneven=1.975,
    link=0.9828,
    link_latency=33.95e-6,
    network=0.2366,
    network_latency=30e-6,
    exposed_tp=0.9967,
    exposed_stage=0.2532,
    hidden_dp=0.4702,
    layer_launch=1.456e-3,
    layer_gap=100.9e-6,
    stage_launch=3.696e-3,
    step=2.98e-3,
)
"""A fit to the BLOOM notes and vTrain's runs, of which the worked step of step.py is evaluated."""


def test_the_worked_step_of_the_module_adds_up() -> None:
    """The numbers of step.py's docstring: BLOOM on 384 A100 as it was trained."""
    q = question("bloom-176b", "jean-zay:48", "megatron-deepspeed", JEAN_ZAY, batch=2048, seq=2048)
    layouts = Layouts.of(dp_shard=8, tp=4, pp=12, mbs=2, zero=1, recompute=2)
    layer = {part: 1e3 * value.item() for part, value in layer_and_head(q, layouts)[0].items()}
    stated = {
        "matmul": 70.5,
        "attention": 15.4,
        "elementwise": 3.2,
        "recompute": 31.5,
        "tp": 4.8,
        "launch": 0.3,
        "cp": 0,
        "ep": 0,
    }
    assert layer == pytest.approx(stated, abs=0.05)
    assert sum(layer.values()) == pytest.approx(125.7, abs=0.05)
    time = only(evaluate(q, layouts).time)
    stage = 128 * 6 * sum(layer.values()) / 1e3
    assert stage == pytest.approx(96.5, abs=0.05)
    assert stage + 128 * 3.7e-3 == pytest.approx(sum(time[part] for part in stated), abs=0.01)
    assert {part: time[part] for part in ("bubble", "p2p", "optimizer", "fixed")} == pytest.approx(
        {"bubble": 8.13, "p2p": 1.29, "optimizer": 0.017, "fixed": 0.003}, abs=0.005
    )
    assert sum(time.values()) == pytest.approx(114.3, abs=0.05)


def test_the_data_parallel_part_of_the_worked_step() -> None:
    """Two of the 8 data ranks are in each node, so 4 rings share its network of 50 GB/s. A device has a quarter of 6 of the 70 layers and
    of a vocabulary table, 2 bytes a parameter on the wire, nothing hidden; 4 bytes of the tied embedding between the first stage and the
    last, of which a device has an eighth of the network."""
    q = question("bloom-176b", "jean-zay:48", "megatron-deepspeed", JEAN_ZAY, batch=2048, seq=2048)
    table = 250880 * 14336
    parameters = ((q.model.params - table) * 6 / 70 + table) / 4
    ring = 50e9 * JEAN_ZAY.network * 2 / 8
    reduced = gathered = 2 * parameters * 7 / 8 / ring
    tied = 2 * 1 / 2 * 4 * table / 4 / (50e9 * JEAN_ZAY.network / 8)
    assert (reduced, gathered, tied) == pytest.approx((2.7, 2.7, 2.4), abs=0.05)
    assert cost(q, dp_shard=8, tp=4, pp=12, mbs=2, zero=1, recompute=2)[0]["dp"] == pytest.approx(
        reduced + gathered + tied, rel=1e-3
    )
