"""The cost of a step: properties of every layout, and results of papers on schedules."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.layer import cuda_graphs
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.models.model import build
from support.every import check_every
from support.train_questions import (
    CLUSTERS,
    MODELS,
    QUIET,
    block,
    cost,
    faster,
    only,
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


@pytest.mark.slow
@given(questions_with_layouts())
def test_a_block_of_layouts_costs_the_same_as_each_layout_alone(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    together = evaluate(q, layouts)
    for i in range(len(layouts)):
        alone = evaluate(q, layouts.take(np.array([i])))
        assert {part: value[i] for part, value in together.time.items()} == pytest.approx(only(alone.time), rel=1e-12)
        assert {kind: value[i] for kind, value in together.memory.items()} == pytest.approx(only(alone.memory), rel=1e-12)


def test_layouts_with_different_batches_cost_the_same_as_each_alone() -> None:
    """As rows of a table of measurements are: equal layouts, of which one has few micro-batches and one many."""
    q, layouts = question("bloom-560m", "jean-zay:4", "megatron-deepspeed"), Layouts.of(pp=np.array([4, 4, 4]), tp=2)
    batches = np.array([2, 16, 512])
    together = evaluate(replace(q, work=replace(q.work, batch=batches)), layouts).step
    alone = [seconds(replace(q, work=replace(q.work, batch=int(batch))), pp=4, tp=2) for batch in batches]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)


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


@pytest.mark.slow
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
    row, time = layouts.row(0), only(evaluate(q, layouts).time)
    unused = {"tp": "tp", "cp": "cp", "ep": "ep", "p2p": "pp", "bubble": "pp"}
    assert all(time[part] == 0 for part, axis in unused.items() if row[axis] == 1)
    assert row["recompute"] != "none" or time["recompute"] == 0
    assert row["offload"] != "none" or time["offload"] == 0


@settings(max_examples=60)
@given(questions_with_layouts(most=1), st.integers(1, 4))
def test_the_fixed_cost_is_paid_once_per_step_unless_a_step_is_one_cuda_graph(case: tuple[Question, Layouts], more: int) -> None:
    q, layouts = case
    later = replace(q, calibration=replace(q.calibration, step=q.calibration.step + more))
    paid = more * (cuda_graphs(q, layouts) == 0)
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
