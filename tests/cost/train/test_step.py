"""The cost of a step: properties of every layout, results of papers on schedules, and measurements."""

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import OFFLOAD
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.compute import SHORTEST_KERNEL
from meshwise.cost.train.layer import GRAPH_GAP, uses_cuda_graph
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, layer_and_head
from meshwise.models.model import build
from support.every import check_every
from support.train_questions import (
    CLUSTERS,
    MODELS,
    block,
    cost,
    faster,
    question,
    questions_with_layouts,
    rows,
    seconds,
    sums_to,
)

# What must hold for every model, cluster, framework and layout.


@settings(max_examples=60)
@given(questions_with_layouts())
def test_seconds_are_finite_and_never_negative_and_parts_add_up_to_the_step(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    found = evaluate(q, layouts)
    assert tuple(found.time) == TRAIN_PARTS
    for part in TRAIN_PARTS:
        assert found.time[part].shape == (len(layouts),)
        assert (found.time[part] >= 0).all()  # NaN is not
        assert (found.time[part] < 1e9).all()
    assert (found.step > 0).all()
    assert sums_to(found.time, found.step)


@given(questions_with_layouts())
def test_a_block_of_layouts_costs_the_same_as_each_layout_alone(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    together = evaluate(q, layouts)
    for i in range(len(layouts)):
        alone = evaluate(q, layouts.take(np.array([i])))
        assert {part: value[i] for part, value in together.time.items()} == pytest.approx(_only(alone.time), rel=1e-12)
        assert {kind: value[i] for kind, value in together.memory.items()} == pytest.approx(_only(alone.memory), rel=1e-12)


def test_layouts_with_different_batches_cost_the_same_as_each_alone() -> None:
    """As rows of a table of measurements are: equal layouts, of which one has few micro-batches and one many."""
    q, layouts = question("bloom-560m", "jean-zay:4", "megatron-deepspeed"), Layouts.of(pp=np.array([4, 4, 4]), tp=2)
    batches = np.array([2, 16, 512])
    together = evaluate(replace(q, work=replace(q.work, batch=batches)), layouts).step
    alone = [seconds(replace(q, work=replace(q.work, batch=int(batch))), pp=4, tp=2) for batch in batches]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


def _only(parts: dict[str, Any]) -> dict[str, float]:
    return {name: value.item() for name, value in parts.items()}


@pytest.mark.parametrize(
    "pair",
    [
        ({"tp": 1, "cp": 6144}, {"tp": 2, "cp": 2048}),
        ({"cp": 1, "ep": 6144}, {"cp": 2, "ep": 2048}),
        ({"ep": 1, "mbs": 65537}, {"ep": 2, "mbs": 1}),
    ],
)
def test_layouts_of_a_large_cluster_are_not_grouped_by_mistake(pair: tuple[dict[str, int], dict[str, int]]) -> None:
    """Work is evaluated once per distinct (tp, cp, ep, mbs); two of those must not share a number."""
    q = question("mixtral-8x7b", batch=2 * 65537, seq=2**20)
    names = {axis for row in pair for axis in row}
    both = evaluate(q, block([{axis: row.get(axis, 1) for axis in names} for row in pair])).step
    assert both.tolist() == pytest.approx([seconds(q, **row) for row in pair])


@settings(max_examples=60)
@given(questions_with_layouts(), st.randoms(use_true_random=False))
def test_the_order_of_layouts_does_not_matter(case: tuple[Question, Layouts], random: Random) -> None:
    q, layouts = case
    order = list(range(len(layouts)))
    random.shuffle(order)
    assert evaluate(q, layouts.take(np.array(order))).step.tolist() == evaluate(q, layouts).step[order].tolist()


@given(case=questions_with_layouts(most=3), times=st.sampled_from((1.01, 2.0, 16.0)))
def test_more_bandwidth_less_latency_or_a_faster_chip_never_makes_a_layout_slower(
    case: tuple[Question, Layouts], times: float
) -> None:
    q, layouts = case
    before = evaluate(q, layouts).step
    for rate in ("memory", "link", "network", "flops", "latency"):
        after = evaluate(faster(q, **{rate: times}), layouts).step
        assert (after <= before * (1 + 1e-9)).all(), rate


def test_a_faster_chip_never_makes_a_zero_bubble_schedule_of_experts_slower() -> None:
    """DeepSeek-V2-Lite on a network that limits its experts: a faster chip hides less of the exchange, which is no reason to defer fewer
    weight gradients."""
    q = question("deepseek-v2-lite", "64x8xh100-sxm", "hai-llm", batch=64)
    axes = {"dp_shard": 32, "pp": 3, "ep": 32, "zero": 1, "schedule": 2}
    assert seconds(faster(q, flops=16), **axes) <= seconds(q, **axes)


@settings(max_examples=60)
@given(st.sampled_from(MODELS), st.sampled_from(CLUSTERS), st.data())
def test_more_micro_batches_take_longer(model: str, cluster: str, data: st.DataObject) -> None:
    q = question(model, cluster, batch=16)
    row = data.draw(rows(q))
    assert seconds(replace(q, work=replace(q.work, batch=32)), **row) > seconds(q, **row)


@settings(max_examples=60)
@given(questions_with_layouts(most=1))
def test_an_unused_axis_costs_nothing(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    row, time = layouts.row(0), _only(evaluate(q, layouts).time)
    unused = {"tp": "tp", "cp": "cp", "ep": "ep", "p2p": "pp", "bubble": "pp"}
    assert all(time[part] == 0 for part, axis in unused.items() if row[axis] == 1)
    assert row["recompute"] != "none" or time["recompute"] == 0
    assert row["offload"] != "none" or time["offload"] == 0


@settings(max_examples=60)
@given(questions_with_layouts(most=1), st.integers(1, 4))
def test_the_fixed_cost_is_paid_once_per_step_unless_a_step_is_one_cuda_graph(case: tuple[Question, Layouts], more: int) -> None:
    q, layouts = case
    later = replace(q, calibration=replace(q.calibration, step=q.calibration.step + more))
    paid = more * (uses_cuda_graph(q, layouts) == 0)
    assert evaluate(later, layouts).step == pytest.approx(evaluate(q, layouts).step + paid)


# Pipelines. A model of many equal layers and hardly any head, and no fixed costs: only the schedule is left.

STACK = build(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 16384,
        "vocab_size": 8,
    },
    "stack",
    "tests",
)
QUIET = Calibration(layer_launch=0, layer_gap=0, stage_launch=0, step=0)


def stack(framework: str = "torchtitan", batch: int = 32) -> Question:
    return replace(question("llama-debug", "jean-zay:4", framework, QUIET, batch=batch), model=STACK)


def busy(q: Question, **axes: int) -> float:
    """Return the seconds in which a stage computes its micro-batches."""
    time = cost(q, **axes)[0]
    return sum(time[part] for part in ("matmul", "attention", "elementwise", "recompute", "tp", "cp"))


def test_the_bubble_of_equal_stages_is_one_slot_for_every_other_stage() -> None:
    """(p - 1) / m of the time at work: Narayanan et al. 2021, arXiv:2104.04473, 2.2.1."""

    def check(pp: int, batch: int) -> None:
        q = stack(batch=batch)
        assert cost(q, pp=pp)[0]["bubble"] / busy(q, pp=pp) == pytest.approx(
            (pp - 1) / batch, rel=5e-3
        )  # what head there is works too

    check_every(check, product([2, 4, 8, 16], [8, 64]))


@pytest.mark.parametrize("vpp", [2, 4])
def test_interleaving_divides_the_bubble_and_multiplies_the_messages(vpp: int) -> None:
    """(p - 1) / (v m), and v times the communication: Narayanan et al. 2021, 2.2.2."""
    q = stack()
    plain, interleaved = cost(q, pp=8)[0], cost(q, pp=8, vpp=vpp, schedule=1)[0]
    assert interleaved["bubble"] == pytest.approx(plain["bubble"] / vpp)
    assert interleaved["p2p"] == pytest.approx(plain["p2p"] * vpp)
    assert interleaved["matmul"] == plain["matmul"]


def test_a_zero_bubble_schedule_leaves_a_third_of_the_bubble() -> None:
    """ZB-H1 idles (p - 1)(F + B - W), Qi et al. 2023, arXiv:2401.10241, Table 2: a third, as F = B = W but for attention."""
    q = stack()
    plain, filled = cost(q, pp=8)[0]["bubble"], cost(q, pp=8, schedule=2)[0]["bubble"]
    assert filled == pytest.approx(plain / 3, rel=0.1)
    assert filled > plain / 3  # attention has no weights whose gradient could wait


@settings(max_examples=60)
@given(questions_with_layouts(most=1))
def test_a_zero_bubble_schedule_never_has_more_bubble_than_1f1b(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    assume(layouts.pp.item() > 1)
    plain, filled = (evaluate(q, replace(layouts, vpp=np.ones(1), schedule=np.array([how]))) for how in (0, 2))
    assert filled.time["bubble"] <= plain.time["bubble"]
    assert filled.step <= plain.step


def test_seven_layers_over_two_stages_are_four_and_three() -> None:
    """7 layers over 2 stages, the embedding and the head counted as one each: 4 and 3, so no stage multiplies for 5."""
    model = build(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 7,
            "num_attention_heads": 32,
            "intermediate_size": 16384,
            "vocab_size": 8,
        },
        "seven",
        "tests",
    )
    q = replace(stack(), model=model)
    assert cost(q, pp=2)[0]["matmul"] == pytest.approx(cost(q)[0]["matmul"] * 4 / 7, rel=1e-3)


def test_twice_the_stages_is_half_the_work_of_each() -> None:
    q = stack()
    assert busy(q, pp=8) == pytest.approx(busy(q, pp=4) / 2, rel=1e-3)


# What parallelism moves.


def test_tensor_parallelism_reduces_twice_a_layer_and_pass() -> None:
    """Megatron, arXiv:1909.08053: all-reduces of s b h 16-bit numbers behind attention and feed-forward, forward and backward."""
    q = replace(question("korthikanti-22b", calibration=replace(QUIET, link_latency=0.0)), work=question(batch=1).work)
    link = 450e9 * q.calibration.link
    once = 2 * 7 / 8 * 2 * 2048 * 6144 / link
    assert cost(q, tp=8)[0]["tp"] == pytest.approx((2 * 2 * 48 + 1) * once)  # and one for the head
    assert cost(q, tp=8, recompute=2)[0]["tp"] == pytest.approx((3 * 2 * 48 + 1) * once)
    assert cost(q, tp=8, sp=1)[0]["tp"] == cost(q, tp=8)[0]["tp"]  # a reduce-scatter and an all-gather are the same bytes


def test_bytes_moved_by_each_zero_stage_in_a_step_of_four_micro_batches() -> None:
    """ZeRO, arXiv:1910.02054, section 7, and FSDP, arXiv:2304.11277; nothing hidden, no latency."""

    def check(zero: int, reduced: int, gathered: int) -> None:
        bare = replace(QUIET, hidden_dp=0.0, link_latency=0.0)
        q = question("llama-3-8b", "1x8xh100-sxm", "torchtitan", bare, batch=32)
        axes = {"dp_shard": 8, "zero": zero} if zero else {"dp_replicate": 8}
        size = 7 / 8 * q.model.params / (450e9 * bare.link)
        assert cost(q, **axes)[0]["dp"] == pytest.approx(size * (4 * reduced + 2 * gathered), rel=1e-4)

    check_every(
        check,
        [
            (0, 2, 0),  # an all-reduce of float32 gradients
            (1, 1, 1),  # a reduce-scatter of them, and an all-gather of bf16 weights
            (2, 4, 1),  # a reduce-scatter behind each of 4 micro-batches
            (3, 4, 2 * 4),  # and weights gathered forward and backward
        ],
    )


def test_computation_hides_the_reduction_of_gradients() -> None:
    exposed, half, hidden = (
        cost(question("llama-3-8b", calibration=Calibration(hidden_dp=share), batch=8), dp_replicate=8)[0]["dp"]
        for share in (0.0, 0.25, 1.0)
    )
    assert exposed > half > hidden >= 0


def test_tokens_are_sent_to_their_experts_and_back() -> None:
    """Mixtral: 2 of 8 experts see each token: 2 copies x 4096 x 2 bytes, there and back, forward and backward, 32 layers, and the
    busiest device has a tenth more than the mean."""
    q = question("mixtral-8x7b", framework="torchtitan", calibration=replace(QUIET, link_latency=0.0), batch=8)
    size = 2 * 2048 * 4096 * 2
    expected = 32 * 2 * 2 * 7 / 8 * size / (450e9 * q.calibration.link)
    assert cost(q, dp_shard=8, zero=1, ep=8)[0]["ep"] == pytest.approx(1.1 * expected)
    even = replace(q, work=replace(q.work, imbalance=1.0))
    assert cost(even, dp_shard=8, zero=1, ep=8)[0]["ep"] == pytest.approx(expected)
    hidden = replace(
        q, work=replace(q.work, framework=find_framework("megatron"))
    )  # behind another micro-batch, on fast links all of it
    assert cost(hidden, dp_shard=8, zero=1, ep=8)[0]["ep"] == 0


def test_all_products_wait_for_the_busiest_expert() -> None:
    """Products of experts take as long as on the device with most tokens; where every device has all experts, none is busier."""
    q = question("mixtral-8x7b")
    worse = replace(q, work=replace(q.work, imbalance=2.0))
    assert cost(worse, dp_shard=8, zero=1, ep=8)[0]["matmul"] > 1.3 * cost(q, dp_shard=8, zero=1, ep=8)[0]["matmul"]
    assert cost(worse, dp_shard=8, zero=1)[0]["matmul"] == cost(q, dp_shard=8, zero=1)[0]["matmul"]


def test_sending_a_token_to_a_node_once_reduces_traffic_between_nodes() -> None:
    """DeepSeek-V3: 8 experts of a token in at most 4 of 8 nodes are on 4 (1 - (3/4)^8) = 3.6 of them: 0.45 of 8 copies leave."""
    program = find_framework("hai-llm")
    axes = {"dp_shard": 64, "zero": 1, "ep": 64}
    once, each = (
        cost(
            question(
                "deepseek-v3",
                "8x8xh800-sxm@400GB/s",
                replace(program, sends_once=how, overlaps_experts=False),
                replace(QUIET, network_latency=0.0, link_latency=0.0, network=1.0, link=1e3),
            ),
            **axes,
        )[0]["ep"]
        for how in (True, False)
    )
    assert once / each == pytest.approx(4 * (1 - 0.75**8) / 8, rel=1e-6)


def test_overlapped_expert_exchange_is_not_counted() -> None:
    program = find_framework("hai-llm")
    axes = {"dp_shard": 8, "zero": 1, "ep": 8}
    hidden, bare = (
        cost(question("deepseek-v2-lite", framework=replace(program, overlaps_experts=how)), **axes)[0]["ep"]
        for how in (True, False)
    )
    assert hidden == 0 < bare  # eight H100 on NVLink: the exchange is far shorter than the products


def test_tensor_parallelism_over_a_slow_network_is_not_hidden_by_a_fitted_share() -> None:
    """A fit may find 15% exposed where links are fast; communication longer than computation cannot hide behind it."""

    def exposed(cluster: str, tp: int) -> float:
        partly, fully = (
            cost(question("llama-3-8b", cluster, calibration=replace(QUIET, exposed_tp=share)), tp=tp)[0]["tp"]
            for share in (0.15, 1.0)
        )
        return partly / fully

    assert exposed("1x8xh100-sxm", 2) == pytest.approx(0.15)
    assert exposed("2x8xh100-sxm@1GB/s", 16) > 0.95


def test_replicas_of_a_sharded_group_reduce_only_their_shard() -> None:
    """dp_replicate 2 over dp_shard 8 on two nodes: 2 x (1/2) of an eighth of the gradients cross the network, at an eighth of it."""
    bare = replace(QUIET, link=1.0, network=1.0, link_latency=0.0, network_latency=0.0, hidden_dp=0.0)
    q = question("llama-3-8b", "jean-zay:2", calibration=bare, batch=16)
    f, params = q.work.framework, q.model.params
    inside = 7 / 8 * (f.reduced_bytes + f.weight_bytes) * params / 300e9
    between = 2 * 1 / 2 * f.reduced_bytes * params / 8 / (50e9 / 8)
    assert cost(q, dp_replicate=2, dp_shard=8, zero=1)[0]["dp"] == pytest.approx(inside + between, rel=1e-4)


@pytest.mark.parametrize("recompute", [0, 2])
def test_full_recompute_is_another_forward_pass(recompute: int) -> None:
    """A third of the FLOPs of forward and backward: 4/3 of the time at most, Korthikanti et al. 2022, section 5."""
    q = question("korthikanti-22b", framework=replace(find_framework("megatron"), attention="unfused"))
    time = cost(q, tp=8, recompute=recompute)[0]
    share = time["recompute"] / (time["matmul"] + time["attention"] + time["elementwise"])
    assert share == pytest.approx(0.34 if recompute else 0, abs=0.03)


def test_sequence_parallelism_shards_the_norms_and_costs_nothing() -> None:
    q = question("llama-3-8b")
    without, shared = cost(q, tp=8)[0], cost(q, tp=8, sp=1)[0]
    assert shared["elementwise"] < without["elementwise"]
    assert {k: v for k, v in shared.items() if k not in ("elementwise", "launch")} == {
        k: v for k, v in without.items() if k not in ("elementwise", "launch")
    }


def test_a_small_model_waits_for_cpu_launches() -> None:
    """Llama debug is so small that a layer computes in less than the 1.2 ms it takes to start: the step is as long as that."""
    q = question("llama-debug", batch=1, seq=512)
    layers = q.model.decoder.layers
    assert cost(q)[0]["launch"] > 0.9 * 2 * layers * q.calibration.layer_launch
    assert seconds(faster(q, flops=10, memory=10)) == pytest.approx(seconds(q), rel=0.02)


# Offload.


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp"])
def test_an_offloaded_optimizer_updates_at_the_bandwidth_of_the_host(framework: str) -> None:
    """8 devices with an eighth of the parameters each: gradients go over PCIe at 64 GB/s and weights come back, and the host of the node
    moves 28 bytes for every parameter of the model through 300 GB/s. Nothing of the device's own update is left."""
    q = question("llama-3-8b", framework=framework, batch=8)
    f, n = q.work.framework, q.model.params
    time = cost(q, dp_shard=8, zero=3, offload=OFFLOAD.index("optimizer"))[0]
    copies = (f.reduced_bytes + f.weight_bytes) * n / 8 / 64e9
    assert time["offload"] == pytest.approx(copies + 28 * n / 300e9, rel=1e-3)
    assert time["optimizer"] == 0


def test_offloaded_parameters_are_copied_for_every_pass() -> None:
    """6 micro-batches, forward and backward: 2 bytes of every parameter over PCIe, 12 times more than with the optimizer alone."""
    q = question("llama-3-8b", framework="deepspeed", batch=48)
    kept, moved = (cost(q, dp_shard=8, zero=3, offload=OFFLOAD.index(how))[0]["offload"] for how in ("optimizer", "parameters"))
    assert moved - kept == pytest.approx(2 * 6 * 2 * q.model.params / 64e9, rel=1e-3)


@settings(max_examples=60)
@given(questions_with_layouts(most=1))
def test_offload_is_never_faster(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    times = [evaluate(q, replace(layouts, offload=np.array([how]))).step.item() for how in range(len(OFFLOAD))]
    assert times[0] <= min(times) * (1 + 1e-9)


# Experts.


def test_grouped_products_of_experts_run_at_their_own_share() -> None:
    """Twice the share of grouped products is half of their time; dense products are not affected."""
    slow, fast = (
        cost(question("mixtral-8x7b", calibration=replace(QUIET, grouped=share), batch=8), dp_shard=8, zero=1)[0]
        for share in (0.4, 0.8)
    )
    dense = [cost(question("llama-3-8b", calibration=replace(QUIET, grouped=share)), tp=8)[0]["matmul"] for share in (0.4, 0.8)]
    assert dense[0] == dense[1]
    assert 1.5 < slow["matmul"] / fast["matmul"] < 2


def test_experts_have_launch_overhead_of_their_own() -> None:
    """Mixtral has experts in all of its 32 layers: a gap in each of two passes and micro-batches."""
    more = replace(QUIET, expert_launch=0.0, expert_gap=1e-3)
    bare = replace(QUIET, expert_launch=0.0, expert_gap=0.0)
    lost = [cost(question("mixtral-8x7b", calibration=c, batch=8), dp_shard=8, zero=1)[0]["launch"] for c in (bare, more)]
    assert lost == pytest.approx([0.0, 2 * 32 * 1e-3])
    assert cost(question("llama-3-8b", calibration=more), tp=8)[0]["launch"] == 0


def test_whole_experts_need_no_all_reduce_between_tensor_parallel_ranks() -> None:
    """Mixtral, tp 4: attention reduces in 32 layers, and experts too where they are cut; the head once."""
    bare = replace(QUIET, link_latency=0.0)
    whole, cut = (
        cost(question("mixtral-8x7b", "1x8xh100-sxm", "torchtitan", bare, batch=8), dp_shard=2, tp=4, ep=2, etp=etp, zero=1)[0][
            "tp"
        ]
        for etp in (1, 4)
    )
    assert whole / cut == pytest.approx((2 * 32 + 1) / (2 * 64 + 1))


@given(questions_with_layouts(most=1))
def test_expert_tensor_parallelism_changes_nothing_without_experts(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    assume(not any(op.expert for op in q.model.ops))
    other = evaluate(q, replace(layouts, etp=layouts.tp))
    assert other.step == pytest.approx(evaluate(q, layouts).step)
    assert other.peak == pytest.approx(evaluate(q, layouts).peak)


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
    assert one["launch"] == pytest.approx(4 * 2 * GRAPH_GAP * c.layer_gap)  # four layers, forward and backward
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
    assert cost(q)[0]["elementwise"] == pytest.approx(layers * 6 * SHORTEST_KERNEL * 2.3, rel=0.01)


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
    time = _only(evaluate(q, layouts).time)
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
