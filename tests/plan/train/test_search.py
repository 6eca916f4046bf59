"""Search: exhaustive, under named rules, within the user's bounds, and in little memory."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import meshwise.plan.train.search
from meshwise.catalogue.chips import Host
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES, parse
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.plan.train.rank import Rank
from meshwise.plan.train.rules import broken, cut_rules, inner_rules, offered_rules
from meshwise.plan.train.search import Found, divisors, search
from support.train_questions import FRAMEWORKS, MODELS, devices, faster, question

AXES = tuple(f.name for f in fields(Layouts))


def every(q: Question, **limits: Any) -> Found:
    """All layouts that fit, not the best alone."""
    return search(q, top=100_000, **limits)


def table(layouts: Layouts) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(layouts, axis).tolist() for axis in AXES), strict=True))


def dropped(found: Found, *, late: bool) -> int:
    """How many layouts rules dropped: those evaluated and too large, or those never evaluated."""
    return sum(count for rule, count in found.rejected.items() if rule.startswith("fits in memory") == late)


def one(**axes: int) -> Layouts:
    return Layouts.of(**axes)


# Exhaustive.

ALL = {"recompute": (0, len(RECOMPUTE) - 1), "offload": (0, len(OFFLOAD) - 1)}
"""Bounds of a user who names recompute and offload: every way is tried, also those that a search leaves out."""


def grid(q: Question) -> Layouts:
    """Every combination of every value of every axis, valid or not, whose groups multiply to the devices of the cluster."""
    total = q.cluster.devices
    parts = divisors(total)
    experts = parts if any(op.expert for op in q.model.ops) else [1]
    cuts = [cut for cut in itertools.product(parts, repeat=5) if math.prod(cut) == total]
    offered = sorted(map(RECOMPUTE.index, q.work.framework.recompute))
    recompute = [*offered, next(i for i in range(len(RECOMPUTE)) if i not in offered)]  # and one that it does not offer
    inner = (range(4), recompute, range(2), range(len(SCHEDULES)), range(len(OFFLOAD)))
    rest = (experts, experts, divisors(int(q.work.batch)), divisors(q.model.decoder.layers), *inner)
    rows = np.array([(*cut, *inner) for cut in cuts for inner in itertools.product(*rest)])
    return Layouts.of(**dict(zip(AXES, rows.T, strict=True)))


@pytest.mark.parametrize(
    ("model", "cluster", "framework", "batch"),
    [
        ("llama-debug", "4xrtx4090", "torchtitan", 8),
        ("llama-debug", "4xrtx4090", "fsdp", 4),
        ("llama-debug", "2x(2xrtx3090)@10Gbps", "nanotron", 6),
        ("llama-debug", "8xrtx4090", "megatron-deepspeed", 12),
        ("bloom-560m", "2x(2xrtx3090)@10Gbps", "megatron", 4),
        ("mamba2-130m", "2xrtx4090", "megatron", 4),
        ("deepseek-v2-lite", "4xh100-sxm", "torchtitan", 2),
    ],
)
def test_a_search_evaluates_the_same_layouts_as_a_loop_over_all_combinations(
    model: str, cluster: str, framework: str, batch: int
) -> None:
    q = question(model, cluster, framework, batch=batch)
    everything, found = grid(q), every(q, bounds=ALL)
    offered, cuts, inner = (holds(rules(q, everything)) for rules in (offered_rules, cut_rules, inner_rules))
    expected = everything.take(offered & cuts & inner)
    cost = evaluate(q, expected)
    fits = cost.peak <= q.chip.memory * (1 - q.work.reserve)
    assert found.evaluated == len(expected) > 0
    assert sorted(table(found.layouts)) == sorted(table(expected.take(fits)))
    rank = Rank.of(q, found.layouts, found.cost.peak - found.cost.memory["allocator"])
    assert rank.risky.tolist() == sorted(rank.risky.tolist())
    assert found.safe == np.count_nonzero(~rank.risky)
    for rows in (~rank.risky, rank.risky):
        expected_seconds = (found.cost.step * rank.factor)[rows]
        assert expected_seconds.tolist() == pytest.approx(sorted(expected_seconds), rel=2e-7)  # equals to 1e-7 by their axes
    assert found.smallest == cost.peak.min()
    assert dropped(found, late=True) == np.count_nonzero(~fits)
    # A cut that breaks a rule counts once; a valid cut counts once per inner choice and micro-batch that divides.
    whole = int(q.work.batch) % (everything.dp * everything.mbs) == 0
    a = everything
    mixture = any(op.expert for op in q.model.ops)
    enumerated = ((a.etp == 1) | (a.etp == a.tp)) & (a.dp_shard * a.cp * a.tp // a.etp % a.ep == 0)
    enumerated &= (a.etp == a.tp) | (a.ep > 1) | (not mixture)
    ways = {row[:7] for row in table(everything.take(enumerated))}
    broken_cuts = len(ways) - len({row[:7] for row in table(everything.take(cuts & offered))})
    assert found.evaluated + dropped(found, late=False) == broken_cuts + np.count_nonzero(offered & cuts & whole)


def holds(rules: dict[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.logical_and.reduce(list(rules.values()))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_layout_that_is_found_satisfies_every_rule(framework: str) -> None:
    q = question("llama-3.2-1b" if framework == "ddp" else "llama-3-8b", "jean-zay:4", framework, batch=64)
    found = search(q, top=5)
    assert len(found.layouts)
    for i in range(len(found.layouts)):
        assert broken(q, found.layouts.take(np.array([i]))) == []
        assert devices(found.layouts.row(i)) == 32


@pytest.mark.parametrize("top", [1, 3, 400])
def test_the_best_are_the_best_however_many_are_asked_for(top: int) -> None:
    """Sizes on both sides of what one block keeps."""
    q = question("llama-debug", "1x8xh100-sxm", "torchtitan", batch=64)
    assert search(q, top=top).cost.step[:top].tolist() == every(q).cost.step[:top].tolist()
    assert len(every(q).layouts) > 400


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 50, 10**6])
def test_the_result_does_not_depend_on_the_size_of_a_block(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q = question("mixtral-8x7b", "1x8xh200", "torchtitan", batch=8)
    expected = search(q)
    monkeypatch.setattr(meshwise.plan.train.search, "BLOCK_SIZE", block)
    assert table(search(q).layouts) == table(expected.layouts)
    assert search(q).rejected == expected.rejected


@pytest.mark.parametrize("model", ["llama-debug", "mixtral-8x7b", "mamba2-130m"])
def test_the_result_does_not_depend_on_the_order_of_enumeration(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q = question(model, "1x8xh200", "torchtitan", batch=24)
    expected = search(q)
    monkeypatch.setattr(
        meshwise.plan.train.search, "divisors", lambda n: [1, *divisors(n)[:0:-1]]
    )  # 1 first, then from the largest
    found = search(q)
    assert found.cost.step.tolist() == expected.cost.step.tolist()
    assert table(found.layouts) == table(expected.layouts)
    assert (found.evaluated, found.rejected) == (expected.evaluated, expected.rejected)


@given(st.integers(1, 10**6))
def test_divisors_divide_and_none_is_missing(n: int) -> None:
    found = list(divisors(n))
    assert all(n % i == 0 for i in found)
    assert found == sorted(set(found))
    assert {n // i for i in found} == set(found)
    assert sum(n % i == 0 for i in range(1, min(n, 1000) + 1)) == sum(i <= 1000 for i in found)


@settings(max_examples=25)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(("1x8xh100-sxm", "8xrtx4090", "2x(4xrtx3090)@10Gbps")),
    st.sampled_from(FRAMEWORKS),
    st.floats(1, 4),
)
def test_more_memory_never_removes_a_layout_and_the_best_never_gets_slower(
    model: str, cluster: str, framework: str, times: float
) -> None:
    q = question(model, cluster, framework, batch=8)
    before, after = every(q, bounds=ALL), every(faster(q, capacity=times), bounds=ALL)
    assert set(table(before.layouts)) <= set(table(after.layouts))
    assert before.evaluated == after.evaluated
    assert len(before.layouts) == 0 or after.cost.step[0] <= before.cost.step[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_state_is_offloaded_only_where_nothing_fits_without(framework: str) -> None:
    """Llama 3 8B has 16 bytes of state and more a parameter: 8 devices of 80 GiB hold it, one does only with the optimizer on the host, or
    where everything is in 16 bits, which are 8 bytes."""
    whole = not (
        find_framework(framework).zero or find_framework(framework).tensor_parallel
    )  # a device then holds the whole model
    q = question("llama-3.2-1b" if whole else "llama-3-8b", "1x8xh100-sxm", framework, batch=8)
    assert set(every(q).layouts.offload.tolist()) == {0}
    alone = every(question("llama-3-8b", "1xh100-sxm", framework, batch=8, loss="fused"))
    program = find_framework(framework)
    assert bool(len(alone.layouts)) == ("optimizer" in program.offload or program.pure_unsharded)
    assert (0 in alone.layouts.offload) == program.pure_unsharded


def test_a_user_may_ask_for_offload_by_name() -> None:
    found = every(question("llama-3-8b", framework="deepspeed", batch=8), bounds=parse("offload=optimizer"))
    assert set(found.layouts.offload.tolist()) == {OFFLOAD.index("optimizer")}


def test_offloaded_state_must_fit_in_the_memory_of_the_hosts() -> None:
    q = question("llama-3-8b", framework="deepspeed", batch=8)
    (count, node) = q.cluster.nodes[0]
    small = replace(q, cluster=replace(q.cluster, nodes=((count, replace(node, host=Host(memory=1e9))),)))
    found = search(small, bounds=parse("offload=optimizer"))
    assert len(found.layouts) == 0
    assert found.rejected["offloaded state fits in the hosts' memory"] > 0


def test_expert_tensor_parallelism_is_in_the_search_of_a_mixture() -> None:
    """Experts are whole or cut like the other layers; a dense model has no such choice."""
    found = every(question("mixtral-8x7b", "1x8xh200", "torchtitan", batch=8), bounds=parse("tp=4"))
    pairs = {(row["ep"], row["etp"]) for row in map(found.layouts.row, range(len(found.layouts)))}
    assert {(8, 1), (2, 4)} <= pairs
    assert {etp for _, etp in pairs} == {1, 4}
    assert (8, 4) not in pairs  # 8 devices are 2 groups of 4
    dense = every(question("llama-debug", batch=8))
    assert set(dense.layouts.etp.tolist()) == {1}


def test_a_way_to_recompute_that_saves_nothing_is_left_out_unless_it_is_named() -> None:
    """Megatron's core_attn recomputes scores, which flash attention never keeps."""
    q, selective = question("llama-3-8b", batch=8), RECOMPUTE.index("selective")
    assert selective not in every(q).layouts.recompute
    assert set(every(q, bounds=parse("recompute=selective")).layouts.recompute.tolist()) == {selective}
    plain = question("llama-3-8b", batch=8, framework=replace(find_framework("megatron"), attention="unfused"))
    assert selective in every(plain).layouts.recompute


@settings(max_examples=25)
@given(st.sampled_from(MODELS), st.sampled_from(FRAMEWORKS), st.sampled_from(("memory", "link", "network", "flops")))
def test_a_faster_cluster_never_has_a_slower_best(model: str, framework: str, rate: str) -> None:
    q = question(model, "2x(4xrtx3090)@10Gbps", framework, batch=8)
    before, after = search(q, top=1), search(faster(q, **{rate: 2}), top=1)
    assert len(before.layouts) == len(after.layouts)
    assert len(before.layouts) == 0 or after.cost.step[0] <= before.cost.step[0] * (1 + 1e-9)


# Rules: each with a layout that breaks it and one that passes.

LLAMA = {"model": "llama-3-8b", "cluster": "jean-zay:4"}  # 32 heads, 8 KV heads, 32 layers, 14336 wide
BLOOM = {"model": "bloom-560m", "cluster": "jean-zay:4", "framework": "megatron-deepspeed"}  # 16 heads, 24 layers
RAMPED = LLAMA | {"ramp": (16, 32)}


@pytest.mark.parametrize(
    ("rule", "asked", "breaks", "passes"),
    [
        ("tp divides heads", LLAMA, {"tp": 3}, {"tp": 8}),
        ("tp divides KV heads, or they divide it", {"model": "gemma-2-2b"}, {"tp": 3}, {"tp": 8}),  # 4 of them
        ("tp divides the FFW width", LLAMA, {"tp": 5}, {"tp": 7}),  # 14336 = 2^11 x 7
        ("tp stays inside a node", LLAMA, {"tp": 16}, {"tp": 8}),
        ("tp stays inside a node", LLAMA, {"tp": 6}, {"tp": 4}),  # 6 of 8, and the next 6 span two nodes
        ("pp is at most the number of layers", LLAMA, {"pp": 64}, {"pp": 32}),
        ("pp cuts the layers", LLAMA | {"framework": "fsdp"}, {"pp": 3}, {"pp": 4}),
        ("pp cuts the layers", LLAMA | {"model": "bloom-176b"}, {"pp": 48}, {"pp": 12}),  # 72 of 70 + 2; 48 leaves none for some
        ("the framework must support cp", BLOOM, {"cp": 2}, {"cp": 1}),
        ("cp halves divide the sequence", LLAMA | {"seq": 2050}, {"cp": 2}, {"cp": 5}),
        ("dp divides the batch", LLAMA, {"dp_shard": 5, "zero": 1}, {"dp_shard": 16, "zero": 1}),  # of 48
        ("ep divides the experts", {"model": "mixtral-8x7b"}, {"dp_shard": 16, "ep": 16}, {"dp_shard": 16, "ep": 8}),
        ("ep divides the experts", {"model": "deepseek-v2-lite"}, {"dp_shard": 3, "ep": 3}, {"dp_shard": 16, "ep": 16}),  # 64
        ("ep divides the experts", {"model": "llama-4-maverick"}, {"cp": 256, "ep": 256}, {"cp": 128, "ep": 128}),
        ("the framework must support ZeRO", LLAMA | {"zeros": ()}, {"dp_shard": 2}, {"dp_replicate": 2}),
        ("micro-batches are whole", LLAMA, {"mbs": 5}, {"mbs": 6}),
        ("interleaving needs micro-batches in multiples of pp", LLAMA, {"pp": 32, "vpp": 2}, {"pp": 16, "vpp": 2}),
        ("offloading parameters needs ZeRO 3", LLAMA, {"offload": 2, "zero": 2}, {"offload": 2, "zero": 3}),
        ("fused softmax", BLOOM, {"tp": 16, "mbs": 2}, {"tp": 8, "mbs": 2}),  # 2 x 16/16 = 2, and 4
        ("batch 16 of the ramp-up", RAMPED, {"dp_shard": 8, "mbs": 3}, {"dp_shard": 8, "mbs": 2}),
        ("batch 32 of the ramp-up", RAMPED, {"dp_shard": 12}, {"dp_shard": 4}),
        ("ep divides dp_shard x cp", {"model": "mixtral-8x7b"}, {"ep": 2}, {"dp_shard": 2, "ep": 2}),
        ("the framework must support this ZeRO stage", LLAMA, {"dp_shard": 2, "zero": 3}, {"dp_shard": 2, "zero": 1}),
        ("the framework must support this ZeRO stage", LLAMA, {"dp_shard": 2}, {"dp_replicate": 2}),
        ("the framework must support this recompute", BLOOM, {"recompute": 1}, {"recompute": 2}),
        ("the framework must support this schedule", LLAMA, {"pp": 2, "schedule": 2}, {"pp": 2, "schedule": 1, "vpp": 2}),
        ("a schedule other than 1f1b needs pp", LLAMA, {"schedule": 1, "vpp": 2}, {"pp": 2, "schedule": 1, "vpp": 2}),
        ("vpp goes with the interleaved schedule", LLAMA, {"pp": 2, "vpp": 2}, {"pp": 2, "vpp": 2, "schedule": 1}),
        ("vpp cuts the layers of a stage evenly", LLAMA, {"pp": 4, "vpp": 3}, {"pp": 4, "vpp": 4}),
        ("the framework must support sp", BLOOM, {"tp": 2, "sp": 1}, {"tp": 2}),
        ("the framework must support sp", LLAMA | {"framework": "meshwise"}, {"tp": 2}, {"tp": 2, "sp": 1}),
        ("the framework must support sp", LLAMA, {"sp": 1}, {"tp": 2, "sp": 1}),
        ("the framework must support this offload", LLAMA, {"offload": 2}, {"offload": 1}),
        ("the framework must support this offload", BLOOM, {"offload": 1}, {"offload": 0}),
        ("etp is 1 or tp", {"model": "mixtral-8x7b"}, {"tp": 4, "etp": 2}, {"tp": 4, "etp": 4}),
        (
            "ep divides dp_shard x cp x tp / etp",
            {"model": "mixtral-8x7b"},
            {"tp": 4, "ep": 4, "etp": 4},
            {"tp": 4, "ep": 4, "etp": 1},
        ),
        ("this recompute needs attention or experts", LLAMA, {"recompute": 5}, {"recompute": 3}),
    ],
)
def test_a_rule_drops_what_breaks_it_and_nothing_else(
    rule: str, asked: dict[str, Any], breaks: dict[str, int], passes: dict[str, int]
) -> None:
    asked = dict(asked)
    if "zeros" in asked:
        asked["framework"] = replace(find_framework("megatron"), zero=asked.pop("zeros"))
    q = question(**asked)
    assert [name for name in broken(q, one(**breaks)) if name.startswith(rule)]
    assert not [name for name in broken(q, one(**passes)) if name.startswith(rule)]


def test_a_model_without_attention_has_no_heads_to_divide() -> None:
    q = question("mamba2-130m")
    assert broken(q, one(tp=8)) == []


def test_a_mixture_with_some_dense_layers_can_spread_all_its_experts() -> None:
    """DeepSeek V2 Lite has 64 experts in 26 of its 27 layers."""
    found = search(question("deepseek-v2-lite", "8x8xh100-sxm", "torchtitan", batch=64, seq=4096), bounds={"ep": (64, 64)})
    assert len(found.layouts) > 0


def test_uneven_stages_are_searched_where_the_embedding_counts_as_a_layer() -> None:
    """BLOOM's own: 70 layers and two more in 12 stages of 6."""
    q = question("bloom-176b", "jean-zay:48", "megatron-deepspeed", batch=2048)
    own = {"tp": (4, 4), "pp": (12, 12), "dp": (8, 8), "mbs": (2, 2)}
    assert len(search(q, bounds=own).layouts) > 0


# Bounds of the user.


@settings(max_examples=30)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tp": st.sampled_from(((2, 2), (1, 4), (4, 8))),
            "pp": st.sampled_from(((1, 1), (2, 8))),
            "dp": st.sampled_from(((1, 2), (2, 2), (4, 8))),
            "mbs": st.sampled_from(((1, 1), (2, 5))),
            "recompute": st.sampled_from(((0, 0), (1, 2))),
            "zero": st.sampled_from(((0, 0), (2, 3))),
            "schedule": st.sampled_from(((0, 0), (2, 2))),
        },
    )
)
def test_bounds_leave_exactly_what_is_within_them(bounds: dict[str, tuple[int, int]]) -> None:
    q = question("llama-debug", "1x8xh100-sxm", "torchtitan", batch=8)
    everything, found = every(q), every(q, bounds=bounds)
    within = np.ones(len(everything.layouts), dtype=bool)
    for axis, (least, most) in bounds.items():
        values = getattr(everything.layouts, axis)
        within &= (values >= least) & (values <= most)
    assert table(found.layouts) == table(everything.layouts.take(within))


@pytest.mark.parametrize("text", ["tp=2,pp=2,recompute=full", "recompute=full,pp=2,tp=2", "pp=2, recompute=full , tp=2"])
def test_the_order_in_which_a_user_fixes_axes_does_not_matter(text: str) -> None:
    q = question("llama-debug", batch=8)
    found, same = search(q, bounds=parse(text)), search(q, bounds=parse("tp=2,pp=2,recompute=full"))
    assert table(found.layouts) == table(same.layouts)
    assert sum(found.rejected.values()) == sum(same.rejected.values())


def test_a_user_who_names_tp_may_leave_the_node() -> None:
    q = question("llama-3-8b", "jean-zay:4")
    assert set(every(q, bounds={"tp": (16, 16)}).layouts.tp.tolist()) == {16}
    assert max(every(q).layouts.tp) == 8


def test_contradicting_bounds_leave_no_layout_and_name_the_rules() -> None:
    q = question("llama-debug", batch=8)
    found = search(q, bounds={"tp": (2, 2), "pp": (3, 3)})
    assert (len(found.layouts), found.evaluated, found.smallest) == (0, 0, float("inf"))
    assert "--fix or --allow pp" in found.rejected


def test_fewer_nodes_are_tried_where_they_may_be_faster() -> None:
    """A model so small that a second node, at 1 Gb/s, only makes it wait."""
    q, flat = question("llama-debug", "2x(4xrtx3090)@1Gbps", "megatron", batch=8, seq=512), parse("pp=1")
    found = search(q, nodes=(1, 2), bounds=flat)
    assert {devices(found.layouts.row(i)) for i in range(len(found.layouts))} <= {4, 8}
    assert devices(found.layouts.row(0)) == 4
    assert found.cost.step[0] < search(q, bounds=flat).cost.step[0]


def test_a_batch_that_nothing_divides_leaves_nothing() -> None:
    """7 sequences on 8 devices of FSDP: no tensor, pipeline or context parallelism of 8 is allowed, and 2, 4 and 8 do not divide 7."""
    limits = parse("tp=1,pp=1,cp=1")
    found = search(question("llama-debug", framework="fsdp", batch=7), bounds=limits)
    assert len(found.layouts) == 0
    assert "dp divides the batch" in found.rejected


def test_every_batch_of_a_ramp_up_must_divide() -> None:
    q = question("llama-debug", batch=64, ramp=(4, 16))
    found = every(q)
    assert len(found.layouts)
    assert (4 % (found.layouts.dp * found.layouts.mbs) == 0).all()
    assert len(found.layouts) < len(every(question("llama-debug", batch=64)).layouts)


def test_a_model_that_does_not_fit_has_its_smallest_memory_reported() -> None:
    found = search(question("llama-3-405b", "8xrtx4090", batch=8))
    assert len(found.layouts) == 0
    assert found.evaluated > 0
    assert 24 * 2**30 < found.smallest < 2**50


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_a_search_over_2048_devices_stays_under_500_mb() -> None:
    """Llama 3 70B, in a process of its own: the peak of its whole memory, Python and numpy included."""
    script = """
import json, pathlib
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import search
q = lookup.question(TrainAsk(model="llama-3-70b", on="256x8xh100-sxm", batch=2048, seq=4096, framework="torchtitan"))
found = search(q, top=1000)
# getrusage would count the memory of the process that started this one
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(json.dumps([found.evaluated, len(found.layouts), int(status["VmHWM"].split()[0]) * 1024]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    evaluated, kept, peak = json.loads(done.stdout)
    assert evaluated > 100_000
    assert kept >= 1000
    assert peak < 500e6


def test_zero_over_some_of_the_data_ranks_is_for_frameworks_that_have_it() -> None:
    """HSDP of torchtitan, instances of Megatron's distributed optimizer; DeepSpeed's ZeRO 1 goes over all data ranks."""
    partly = {"dp_replicate": (2, 2), "dp_shard": (4, 4)}
    for name, has_it in (("torchtitan", True), ("megatron", True), ("megatron-deepspeed", False), ("nanotron", False)):
        assert (search(question("llama-debug", framework=name), bounds=partly).evaluated > 0) is has_it
