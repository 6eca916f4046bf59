"""A training question at many points: each has the plan of its own question, and a change of layout has a true reason."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from meshwise.cost.axes import layout_name
from meshwise.errors import DoesNotFit
from meshwise.plan.ask import TrainAsk
from meshwise.plan.axes import TRAIN_AXES
from meshwise.plan.train.plan import make
from meshwise.plan.train.vary import Point, answers, check
from meshwise.plan.vary import parse, variants
from support.command import one_line

SMALL = TrainAsk(model="llama-3-8b", on="1x8xh100-sxm", batch=256, seq=4096, framework="megatron", tokens=1e12)
HUGE = TrainAsk(model="llama-3-405b", on="8x8xh100-sxm", batch=512, seq=8192, framework="megatron")
"""Its weights alone are 101 GB for each of 8 devices, wherever the optimizer is."""
LARGE = TrainAsk(model="llama-3-70b", on="8x8xh100-sxm", batch=512, seq=8192, framework="megatron")


def points(ask: TrainAsk, *texts: str) -> list[Point]:
    varied = parse(texts, TRAIN_AXES, ask)
    return answers(variants(ask, varied, TRAIN_AXES), len(varied[-1].values))


@pytest.mark.parametrize(
    "text", ["nodes=1,2,4", "chip=a100-80gb,h100-sxm,h200", "batch=1M,4M", "link=50GB/s,450GB/s", "seq=2k,8k"]
)
def test_a_point_is_the_plan_of_its_own_question(text: str) -> None:
    for point in points(SMALL, text):
        assert point.ask
        best = make(replace(point.ask, top=1)).best
        assert point.choice
        assert replace(point.choice, ties=best.ties) == best


def test_a_faster_link_or_network_and_more_memory_bandwidth_never_hurt() -> None:
    """Every layout exists at the better point and is no slower. This does not hold for nodes: a batch may divide by fewer only."""
    for text in ("link=25GB/s..800GB/s", "network=50Gbps..3200Gbps"):
        times = [point.choice.step for point in points(replace(SMALL, on="2x8xh100-sxm"), text) if point.choice]
        assert len(times) > 5
        assert times == sorted(times, reverse=True)


def test_doubling_the_nodes_never_doubles_the_speed_of_a_step_but_for_what_memory_forbade() -> None:
    """Twice the devices do at best twice the work: more only where a layout that did not fit before does now."""
    found = points(replace(SMALL, on="2x8xh100-sxm"), "nodes=2..32")
    for before, after in pairwise(found):
        assert before.choice
        assert after.choice
        assert after.choice.step < before.choice.step
        assert after.choice.step > before.choice.step / 2 or "needs" in after.why


def test_a_point_that_does_not_fit_or_divide_is_a_row_with_the_reason() -> None:
    found = points(HUGE, "nodes=1,32,100")
    assert [point.choice is not None for point in found] == [False, True, False]
    needs = re.fullmatch(r"does not fit: needs ([\d.]+) GiB, only 76.8 are free", found[0].refusal)  # 80 GiB less 4%
    assert needs
    assert float(needs[1]) > 76.8
    assert found[2].refusal.startswith("no layout for 800 devices: ")
    assert found[1].why == ""  # nothing before it works


def test_the_same_cut_on_more_devices_is_no_change() -> None:
    """Only data parallelism grows from 64 to 128 sequences on 8 and 16 devices of a model that fits on one."""
    ask = TrainAsk(
        model="llama-debug", on="1x8xh100-sxm", batch=64, seq=512, framework="fsdp", fix=("tp=1,pp=1,cp=1,mbs=1,zero=3",)
    )
    small, large = points(ask, "nodes=1,2")
    assert small.choice
    assert large.choice
    assert small.choice.layout != large.choice.layout
    assert large.why == ""


def test_a_change_says_what_changes_and_names_every_axis_that_does() -> None:
    found = points(LARGE, "nodes=8..512")
    changes = 0
    for before, after in pairwise(found):
        assert before.choice
        assert after.choice
        for axis in ("tp", "pp", "cp", "vpp", "mbs"):
            old, new = before.choice.layout[axis], after.choice.layout[axis]
            assert (f"{axis}{old} to {axis}{new}" in re.split(r", |: ", after.why)) == (old != new)
            changes += old != new
    assert changes


def test_a_layout_that_no_longer_fits_is_reported_with_its_memory() -> None:
    """Twice the sequence, twice the activations: the layout of 4k cannot run at 8k."""
    found = points(replace(LARGE, on="64x8xh100-sxm"), "seq=4k,8k")
    needs = re.search(
        r": here the previous layout needs ([\d.]+) (GiB, only 76.8 are free|of 80 GiB and fits with \d+%)$", found[1].why
    )
    assert needs
    assert float(needs[1]) > 69  # more fits with less than 95%


def test_a_layout_that_breaks_a_rule_of_another_framework_is_reported_with_the_rule() -> None:
    found = points(replace(LARGE, on="64x8xh100-sxm"), "framework=megatron,nanotron")
    # nanotron neither interleaves nor recomputes norms alone
    assert re.search(r"here the previous layout breaks 'the framework must support this (schedule|recompute)'", found[1].why)


def test_the_reason_names_the_part_that_the_axis_changes() -> None:
    """With a slow link inside the node, tensor parallelism costs more than it is worth."""
    slow, fast = points(replace(LARGE, on="64x8xh100-sxm"), "link=64GB/s,450GB/s")
    assert slow.choice
    assert fast.choice
    assert int(slow.choice.layout["tp"]) < int(fast.choice.layout["tp"])
    match = re.search(
        r"mainly because of tensor-parallel communication: costs ([\d.]+)% of a step here, costs ([\d.]+)%", fast.why
    )
    assert match
    assert float(match[1]) < float(match[2])


def test_a_grid_compares_along_its_last_axis() -> None:
    found = points(LARGE, "chip=h100-sxm,h200", "nodes=16,128")
    assert [point.labels for point in found] == [("h100-sxm", "16"), ("h100-sxm", "128"), ("h200", "16"), ("h200", "128")]
    alone = points(replace(LARGE, on="8x8xh200"), "nodes=16,128")
    assert found[3].why == alone[1].why
    assert found[2].why.startswith(("tp", "pp", "cp", "vpp"))  # against 16 nodes of h100-sxm


def test_a_table_in_which_nothing_works_is_one_line() -> None:
    with pytest.raises(DoesNotFit) as caught:
        check(points(HUGE, "nodes=1,2"), 0.0)
    assert "none of 2 points fits; 1: does not fit: needs" in one_line(caught.value)


def test_a_deadline_that_nothing_meets_names_the_closest() -> None:
    found = points(SMALL, "nodes=1,2,4")
    best = found[2].choice
    assert best
    assert best.wall_days
    check(found, best.wall_days * 86400)
    with pytest.raises(DoesNotFit) as caught:
        check(found, best.wall_days * 86400 - 1)
    assert f"the closest is 4x8xh100-sxm with {layout_name(best.layout)}, {best.wall_days:,.1f} days" in one_line(caught.value)
