"""Seconds of a layer: the bytes that parallelism moves, what compute hides, offload and experts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import OFFLOAD
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from support.every import check_every
from support.train_questions import (
    QUIET,
    cost,
    faster,
    question,
    questions_with_layouts,
    seconds,
)

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
    )  # behind another micro-batch, on fast links all of it; 20 of 132 SMs do not compute meanwhile
    assert cost(hidden, dp_shard=8, zero=1, ep=8)[0]["ep"] == pytest.approx(1.1 * expected * 20 / 132)


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


def test_overlapped_expert_exchange_costs_the_sms_that_move_tokens() -> None:
    program = find_framework("hai-llm")
    axes = {"dp_shard": 8, "zero": 1, "ep": 8}
    hidden, bare = (
        cost(question("deepseek-v2-lite", framework=replace(program, overlaps_experts=how)), **axes)[0]["ep"]
        for how in (True, False)
    )
    # eight H100 on NVLink: the exchange is far shorter than the products
    assert hidden == pytest.approx(bare * program.communication_sms / 132)


def test_megatron_hides_the_exchange_of_experts_only_between_chunks_and_without_full_recompute() -> None:
    """--overlap-moe-expert-parallel-comm of Megatron Core needs interleaved stages in a pipeline, and no full recompute."""
    axes = {"dp_shard": 8, "zero": 1, "ep": 8}
    hides = [
        cost(question("deepseek-v2-lite", "2x8xh100-sxm", find_framework("megatron")), **axes, **more)[0]["ep"]
        < 0.5
        * cost(question("deepseek-v2-lite", "2x8xh100-sxm", find_framework("megatron").told(overlap="no-ep")), **axes, **more)[0][
            "ep"
        ]
        for more in ({}, {"recompute": 2}, {"pp": 2}, {"pp": 2, "vpp": 2, "schedule": 1})
    ]
    assert hides == [True, False, False, True]


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
    moves 28 bytes for every parameter of the model at 0.4 of 300 GB/s. Nothing of the device's own update is left."""
    q = question("llama-3-8b", framework=framework, batch=8)
    f, n = q.work.framework, q.model.params
    time = cost(q, dp_shard=8, zero=3, offload=OFFLOAD.index("optimizer"))[0]
    copies = (f.reduced_bytes + f.weight_bytes) * n / 8 / 64e9
    assert time["offload"] == pytest.approx(copies + 28 * n / (0.4 * 300e9), rel=1e-3)
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
