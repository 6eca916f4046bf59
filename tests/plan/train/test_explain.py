"""Why a layout won: the sentences are true, and name what would change the answer."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.axes import layout_name, parse
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_PARTS, TRAIN_WORDS
from meshwise.cost.train.question import Question
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice, choice
from meshwise.plan.train.explain import binding, differences, fastest_with, runner_up, what_if
from meshwise.plan.train.plan import TrainPlan, make
from meshwise.plan.train.search import search
from support.command import one_line
from support.train_questions import faster, question

BLOOM = TrainAsk(model="bloom-176b", on="jean-zay:48", batch=2048, seq=2048, framework="megatron-deepspeed")


@pytest.fixture(scope="module")
def asked() -> Question:
    return lookup.question(BLOOM)


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return make(BLOOM)


@pytest.fixture
def best(plan: TrainPlan) -> Choice:
    return plan.choices[0]


def best_of(q: Question, limits: str = "") -> Choice:
    found = search(q, bounds=parse(limits), top=1)
    return choice(q, found.layouts, found.cost, 0)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"[-+]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text)]


# In words.


def test_every_part_of_a_step_has_words() -> None:
    assert tuple(TRAIN_WORDS) == TRAIN_PARTS


@pytest.mark.parametrize(
    ("axes", "name"),
    [
        ({"dp_shard": 8, "zero": 1, "tp": 4, "pp": 12, "mbs": 2, "recompute": 2}, "dp8 tp4 pp12 mbs2 zero1 full recompute"),
        ({"dp_replicate": 8}, "dp8 tp1 pp1 mbs1"),
        ({"dp_replicate": 2, "dp_shard": 4, "zero": 3}, "dp8 tp1 pp1 mbs1 shard4 zero3"),
        ({"tp": 8, "sp": 1, "cp": 2, "ep": 4, "pp": 2, "vpp": 3, "schedule": 1}, "dp1 tp8 pp2 cp2 ep4 etp1 vpp3 mbs1 sp"),
        ({"tp": 8, "etp": 8, "ep": 4}, "dp1 tp8 pp1 ep4 mbs1"),
        ({"pp": 2, "schedule": 2, "offload": 1}, "dp1 tp1 pp2 mbs1 zero-bubble offload optimizer"),
    ],
)
def test_the_name_of_a_layout_lists_the_axes_that_are_not_the_default(axes: dict[str, int], name: str) -> None:
    assert layout_name(Layouts.of(**axes).row(0)) == name


@settings(max_examples=30)
@given(st.data())
def test_layouts_of_different_names_are_different_layouts(data: st.DataObject) -> None:
    layouts = search(question("llama-debug", framework="torchtitan", batch=8), top=20).layouts
    i, j = data.draw(st.tuples(*[st.integers(0, len(layouts) - 1)] * 2))
    assert (layout_name(layouts.row(i)) == layout_name(layouts.row(j))) == (layouts.row(i) == layouts.row(j))


# Against another layout.


def test_differences_are_listed_from_the_largest_and_add_up(plan: TrainPlan) -> None:
    mine = plan.choices[0]
    for other in plan.choices[1:]:
        rows = differences(mine, other)
        gains = [abs(row.gained) for row in rows]
        assert gains == sorted(gains, reverse=True)
        left_out = 1e-3 * mine.step * (len(TRAIN_PARTS) - len(rows))
        assert sum(row.gained for row in rows) == pytest.approx(other.step - mine.step, abs=left_out)


def test_a_layout_does_not_differ_from_itself(best: Choice) -> None:
    assert differences(best, best) == []


def test_the_runner_up_cuts_the_model_differently(plan: TrainPlan) -> None:
    other = runner_up(plan.choices)
    assert other is not None
    axes = ("tp", "pp", "cp", "ep")
    assert [other.layout[axis] for axis in axes] != [plan.choices[0].layout[axis] for axis in axes]
    assert runner_up(plan.choices[:1]) is None


@pytest.mark.parametrize("text", ["tp=8", "tp=4,pp=12", "tp=8,pp=6,mbs=4,dp=8", "recompute=full,zero=0"])
def test_axes_that_a_user_leaves_open_are_chosen_best(text: str, asked: Question, best: Choice) -> None:
    found, bounds = fastest_with(asked, best, text), parse(text)
    assert found.devices == 384
    assert found.step == search(asked, bounds=bounds).cost.step[0] >= best.step
    words = found.layout | {"dp": int(found.layout["dp_replicate"]) * int(found.layout["dp_shard"])}
    assert {f"{axis}={words[axis]}" for axis in bounds} == set(text.split(","))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tp=7", "its axes multiply to 384 devices"),
        ("tp=8,pp=5", "its axes multiply to 384 devices"),
        ("dp=7", "its axes multiply to 384 devices"),
        ("tp=3", "tp divides heads"),  # of 112
        ("pp=96", "pp is at most the number of layers"),
        ("pp=48", "pp cuts the layers into stages"),
        ("tp=1,pp=1", "dp divides the batch"),  # 384 of 2048
        ("cp=2", "the framework must support cp"),
        ("mbs=3", "micro-batches are whole"),
        ("zero=3", "the framework must support this ZeRO stage"),
        ("recompute=selective", "the framework must support this recompute"),
        ("schedule=zero-bubble", "the framework must support this schedule"),
        ("vpp=2", "the framework must support this schedule"),
        ("sp=1", "the framework must support sp"),
        ("offload=parameters", "the framework must support this offload"),
        ("ep=2", "ep divides the experts"),
        ("tp=8,mbs=1", "fused softmax"),  # 14 heads a device, in multiples of 4
    ],
)
def test_a_layout_that_cannot_run_is_refused_with_the_rule_it_breaks(text: str, rule: str, asked: Question, best: Choice) -> None:
    with pytest.raises(UserError) as refused:
        fastest_with(asked, best, text)
    message = one_line(refused.value)
    assert message.startswith(f"{text} cannot run")
    assert rule in message
    assert refused.value.exit_code == 2


def test_a_layout_that_does_not_fit_is_refused_with_its_memory(asked: Question, best: Choice) -> None:
    """BLOOM at tp 8 without recompute keeps 10 + 24/8 + 5 x 112 x 2048 / 14336 / 8 = 23 bytes per token and hidden unit in each of 70
    layers' worth in flight (Korthikanti et al. 2022, eq. 2): with micro-batches of 2, 2 x 2048 x 14336 x 70 x 23 = 95 GB, or 88 GiB."""
    text = "tp=8,pp=3,recompute=none"
    with pytest.raises(DoesNotFit, match=f"{text} does not fit") as refused:
        fastest_with(asked, best, text)
    needed = search(asked, bounds=parse(text)).smallest / 2**30
    assert f"needs {needed:.1f} GiB" in one_line(refused.value)
    assert needed > 88


def test_a_layout_is_compared_on_as_many_devices_as_the_plan_uses() -> None:
    """A second node, at 1 Gb/s, only makes data and tensor ranks wait."""
    near = TrainAsk(
        model="llama-debug", on="2x(4xrtx3090)@1Gbps", batch=8, seq=512, framework="megatron", at_most="2", fix=("pp=1",)
    )
    best = make(near).best
    assert best.devices == fastest_with(lookup.question(near), best, "tp=2,pp=1").devices == 4


# What binds, and what would change it.


def test_memory_binds_where_a_faster_layout_does_not_fit() -> None:
    asked = lookup.question(TrainAsk(model="llama-3-70b", on="64x8xh100-sxm", batch=1024, seq=4096, framework="megatron"))
    text = binding(asked, best_of(asked), {})
    assert text.startswith("Memory is the limit: ")
    free = search(replace(asked, work=replace(asked.work, reserve=-0.5)), top=1)  # half as much memory again
    assert layout_name(free.layouts.row(0)) in text
    assert f"{float(free.cost.step[0]):.3g} s" in text


def test_memory_is_no_limit_where_there_is_plenty() -> None:
    q = faster(question("llama-debug", batch=8), capacity=1000)
    assert binding(q, best_of(q), {}).startswith("Memory is not a limit")


def test_memory_is_no_limit_where_the_faster_layout_fits() -> None:
    """The first row is within 1% of the fastest and does less per device, so the fastest layout is a row below it."""
    q = lookup.question(TrainAsk(model="llama-3.1-405b", on="tpu-v5p-1024", batch=1024, seq=4096))
    best = best_of(q)
    assert float(search(q, top=10).cost.step.min()) < best.step * 0.995
    assert binding(q, best, {}).startswith("Memory is not a limit")


@pytest.mark.parametrize("fixed", ["pp=8", "tp=8", "mbs=1", "recompute=full"])
def test_an_axis_that_the_user_fixed_is_not_blamed_on_memory(fixed: str) -> None:
    q = faster(question("llama-3-8b", batch=64), capacity=1000)
    bounds = parse(fixed)
    best = best_of(q, fixed)
    assert best.step > best_of(q).step
    assert binding(q, best, bounds).startswith("Memory is not a limit")
    assert "With twice the memory: no gain." in what_if(q, best, bounds)


def test_twice_of_each_is_tried_and_reported_in_tokens_per_second(asked: Question, best: Choice) -> None:
    lines = {re.sub(r":.*", "", line): line for line in what_if(asked, best, {})}
    assert set(lines) == {"With twice the batch", "With twice the network", "With twice the memory"}
    gains = [numbers(line)[0] for line in lines.values()]
    assert gains == sorted(gains, reverse=True)  # the largest first
    wider = best_of(faster(asked, network=2))
    gain = 100 * (best.step / wider.step - 1)
    assert numbers(lines["With twice the network"])[0] == pytest.approx(gain, abs=0.05)
    assert gain > 0
    roomier = best_of(faster(asked, capacity=2))
    assert layout_name(roomier.layout, short=True) in lines["With twice the memory"]


def test_one_node_has_no_network_to_double() -> None:
    q = question("llama-3-8b", "1x8xh100-sxm")
    assert not any("network" in line for line in what_if(q, best_of(q), {}))


def test_a_larger_batch_that_does_not_fit_is_reported() -> None:
    """One sequence in 8 stages keeps one micro-batch in flight; two sequences keep two, and there is no room for them."""
    fixed, tight = "pp=8,tp=1,recompute=none,offload=none", question("korthikanti-22b", batch=1, reserve=0.0)
    room = search(tight, bounds=parse(fixed)).smallest / tight.chip.memory
    q = faster(tight, capacity=room * (1 + 1e-9))
    assert "With twice the batch: nothing fits." in what_if(q, best_of(q, fixed), parse(fixed))


def test_rooflines_are_for_the_devices_that_the_layout_uses(plan: TrainPlan, best: Choice) -> None:
    """2048 x 2048 tokens on 384 devices are 10,923 each; on 192 of them, which --at-most may choose, twice as many."""
    assert "10,923 tokens per device" in replace(plan, choices=(best,)).explain().reasons[-1]
    assert "21,845 tokens per device" in replace(plan, choices=(replace(best, devices=192),)).explain().reasons[-1]


# All of it.


def test_the_explanation_names_both_layouts_and_the_largest_parts(plan: TrainPlan) -> None:
    best, other = plan.choices[0], runner_up(plan.choices)
    assert other is not None
    lines = plan.explain().reasons
    assert lines[0].startswith(
        f"{layout_name(best.layout)} takes {best.step:.4g} s, {layout_name(other.layout)} {other.step:.4g} s"
    )
    first = differences(best, other)[0]
    assert ("saves" if first.gained > 0 else "costs") in lines[1]
    assert TRAIN_WORDS[first.part] in lines[1]
    assert all(line.isprintable() for line in lines)


def test_the_highlights_are_few_and_say_how_much_slower_the_other_layout_is(plan: TrainPlan) -> None:
    found = plan.explain(versus="tp=8,pp=6")
    assert found.other is not None
    slower = 100 * (found.other.step / found.best.step - 1)
    assert found.highlights[0].startswith(f"{found.other.name} is {slower:.1f}% slower: ")
    assert 3 <= len(found.highlights) <= 5
    assert set(found.highlights[1:]) <= set(found.reasons)


def test_a_plan_of_one_layout_is_explained_without_another(plan: TrainPlan, best: Choice) -> None:
    share = round(100 * best.time["matmul"] / best.step)  # of BLOOM's step, the largest part
    alone = replace(plan, choices=(best,)).explain()
    assert alone.other is None
    assert any(line.startswith(f"The largest parts of the step are matrix products {share}%") for line in alone.reasons)
