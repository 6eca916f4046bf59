"""Plans: the numbers of a choice, near-ties merged, and a file that reads back as written."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import COMPUTING
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.find import find_values
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import CHEAP_RECOMPUTE, Choice
from meshwise.plan.train.explain import differences
from meshwise.plan.train.plan import TrainPlan, make, read
from meshwise.plan.train.rank import Rank
from meshwise.plan.train.search import search
from meshwise.ui.views.plan import choice_bars
from meshwise.workers.trainer.contract.settings import Layout, Settings, broken_rules
from support.command import one_line

ASK = TrainAsk(model="llama-3-8b", on="2x8xh100-sxm", batch=512, seq=4096, framework="megatron", tokens=15e12)


def planned(ask: TrainAsk = ASK, top: int = 5, **changes: Any) -> TrainPlan:
    return make(replace(ask, top=top, **changes))


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return planned()


@pytest.fixture
def best(plan: TrainPlan) -> Choice:
    return plan.choices[0]


# The question.


@pytest.mark.parametrize(
    ("model", "cluster", "framework"),
    [
        ("llama-3-8b", "1xrtx3090", "accelerate"),
        ("llama-3-8b", "8xh100-sxm", "fsdp"),
        ("llama-3-8b", "2x8xh100-sxm", "megatron"),
        ("llama-3-8b", "tpu-v5e:4x4", "maxtext"),
        ("ttt-mlp-125m", "8xh100-sxm", "meshwise"),
    ],
)
def test_a_framework_that_trains_the_model_is_taken_where_none_is_named(model: str, cluster: str, framework: str) -> None:
    assert lookup.question(replace(ASK, model=model, on=cluster, framework="")).work.framework.key == framework


@pytest.mark.parametrize("model", ["ttt-linear-125m", "gpt2", "llama-3.2-1b", "bloom-560m"])
def test_every_layout_planned_for_our_trainer_can_run_in_it(model: str) -> None:
    """TTT is not cut by tp, and has no attention to compute again; pipelines run as many micro-batches as fill them; a vocabulary of 50257
    is not cut; 8 KV heads go over 8 devices at most."""
    ask = replace(ASK, model=model, on="2x16xa100-80gb", batch=64, seq=512, framework="meshwise")
    values = find_values(ask.model)[0]
    choices = planned(ask, top=1000).choices
    assert {choice.layout["pp"] for choice in choices} >= {1, 2, 4}
    for choice in choices:
        layout = Layout(**{f.name: choice.layout[f.name] for f in fields(Layout)})  # pyright: ignore[reportArgumentType]
        assert broken_rules(Settings(name="ttt", model=values, layout=layout, batch=ask.batch, seq=ask.seq)) == [], layout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "lama-3-8b"}, "did you mean 'llama-3-8b'"),
        ({"on": "8xh100x"}, "h100"),
        ({"framework": "megatorn"}, "did you mean 'megatron'"),
        ({"optimizer": "adam"}, "'adam': expected one of adamw"),
        ({"precision": "fp7"}, "'fp7': expected one of bf16, fp16, fp8"),
        ({"calibration": "nobody's"}, "unknown calibration"),
        (
            {"on": "1x(4xrtx3090)+1x(2xrtx3090)@10Gbps"},
            "mixes nodes; training is planned on one kind of node, or on unequal cards",
        ),
        ({"finetune": "lora:16:q_porj"}, "has no module 'q_porj'; did you mean 'q_proj'"),
        ({"finetune": "lora:5000:q_proj"}, "rank 5000 exceeds the smaller side of q_proj"),
        ({"finetune": "freeze:400"}, "expected at most"),
        ({"finetune": "lara:16"}, "unknown fine-tuning method 'lara:16'; did you mean 'lora'"),
        ({"objective": "dop"}, "'dop': expected one of sft, dpo"),
        ({"data": "nowhere.jsonl", "tokens": 0.0}, "no such file"),
        ({"data": "nowhere.jsonl", "tokens": 1e9}, "give one of them"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_question_that_cannot_be_asked_is_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        lookup.question(replace(ASK, **change))
    assert words in one_line(refused.value)
    assert refused.value.exit_code == 2


# The numbers of a choice.


def test_rates_follow_from_the_seconds_of_a_step(best: Choice) -> None:
    """512 sequences of 4096 are 2,097,152 tokens; Llama 3 8B has 8,030,261,248 parameters; an H100 does 989.4 TFLOP/s."""
    assert best.devices == 16
    assert best.tokens_per_second == pytest.approx(2_097_152 / best.step)
    assert best.tflops["6N"] == pytest.approx(6 * 8_030_261_248 * best.tokens_per_second / 16 / 1e12)
    assert best.mfu == pytest.approx(best.tflops["exact"] * 1e12 / 989.4e12)


def test_megatrons_tflops_count_masked_attention_and_recompute() -> None:
    none, full = (planned(top=1, fix=f"recompute={how}").best for how in ("none", "full"))
    assert none.tflops["Megatron"] > none.tflops["exact"]
    assert (
        full.tflops["Megatron"] / full.tflops["exact"] < none.tflops["Megatron"] / none.tflops["exact"] * 4 / 3
    )  # the head has none
    assert full.tflops["Megatron"] / full.tflops["exact"] == pytest.approx(
        none.tflops["Megatron"] / none.tflops["exact"] * 4 / 3,
        rel=0.03,  # a forward pass more than forward and backward
    )


def test_the_interval_is_that_of_the_rows_which_the_calibration_left_out(best: Choice) -> None:
    """ln(measured / predicted) between `low` and `high` of the range that the step's share of waiting falls into, and what differs between
    machines; memory has its own."""
    c = lookup.question(ASK).calibration
    share = 1 - sum(best.time[name] for name in COMPUTING) / best.step
    at = sum(share >= edge for edge in c.waiting)
    beyond = 0.03 * math.log2(best.devices / c.devices) if 0 < c.devices < best.devices else 0.0
    assert math.log(best.low / best.step) == pytest.approx(-math.hypot(c.low[at], beyond, 1.6449 * c.between))
    assert math.log(best.high / best.step) == pytest.approx(math.hypot(c.high[at], beyond, 1.6449 * c.between))
    assert best.low < best.step < best.high
    assert math.log(best.peak_high / best.peak_low) == pytest.approx(2 * 1.6449 * c.memory_spread)


def test_days_dollars_and_energy_of_a_whole_run(best: Choice) -> None:
    """15T tokens; an H100 at $6.88 an hour (AWS p5, 2026-08) and 700 W."""
    hours = 15e12 / best.tokens_per_second / 3600
    assert best.days == pytest.approx(hours / 24)
    assert best.dollars == pytest.approx(16 * 6.88 * hours)
    assert best.mwh == pytest.approx(16 * 700 * hours / 1e6)


def test_a_step_alone_has_no_days() -> None:
    alone = planned(replace(ASK, tokens=0.0), top=1).choices[0]
    assert (alone.days, alone.dollars, alone.mwh) == (None, None, None)


def test_nodes_that_are_left_idle_are_not_paid_for(best: Choice) -> None:
    fewer = planned(top=1, at_most="1 node").best
    assert fewer.devices == 8
    a_day, both = ((choice.dollars or 0) / (choice.days or math.nan) for choice in (fewer, best))
    assert a_day == pytest.approx(both / 2)


def test_parts_add_up(plan: TrainPlan) -> None:
    for choice in plan.choices:
        assert sum(choice.time.values()) == pytest.approx(choice.step)
        assert sum(choice.memory.values()) == pytest.approx(choice.peak)
        assert choice.peak <= choice.capacity == 80 * 2**30
        assert int(Layouts.from_row(choice.layout).devices[0]) == choice.devices


@pytest.mark.parametrize("chip", ["p40", "gtx1080ti", "cpu", "v100-32gb-sxm2", "mi300x", "m2-ultra", "gaudi3", "l4"])
def test_a_plan_for_any_chip_can_be_written(chip: str) -> None:
    made = planned(TrainAsk(model="llama-debug", on=f"1x{chip}", batch=4, seq=512, framework="megatron"), top=1)
    assert json.dumps(made.to_json(), allow_nan=False)
    assert 0 < made.choices[0].mfu < 1


# Near-ties.


BLOOM = TrainAsk(model="bloom-176b", on="jean-zay:48", batch=2048, seq=2048, framework="megatron-deepspeed")


@pytest.mark.parametrize("ask", [ASK, BLOOM], ids=lambda ask: ask.model)
def test_choices_are_the_best_by_expected_time_and_no_two_are_the_same_answer(ask: TrainAsk) -> None:
    choices = planned(ask, top=8).choices[:8]  # the program's usual layout may follow
    assert len(choices) == 8
    q = lookup.question(ask)
    assert choices[0].step == search(q).cost.step[0]
    factors = [Rank.of(q, Layouts.from_row(one.layout), np.array([one.needs])).factor[0] for one in choices]
    expected = [(one.p_fit < 0.95, one.step * float(factor)) for one, factor in zip(choices, factors, strict=True)]
    assert expected == sorted(expected)
    axes = ("tp", "pp", "cp", "ep", "mbs", "vpp", "recompute")
    for i, a in enumerate(choices):
        for b in choices[i + 1 :]:
            same = all(a.layout[axis] == b.layout[axis] for axis in axes)
            assert not same or b.step > a.step * 1.01


def test_layouts_that_differ_only_in_how_data_is_sharded_are_counted_as_ties() -> None:
    """In one node ZeRO 1 may go over all data ranks or over some of them: hardly a difference in time. Nor is it one whether two ranks
    have a sequence each, or share both (cp 2 and micro-batches of 2), or whether norms are computed twice."""
    ask = replace(ASK, on="1x8xh200")
    best = planned(ask, top=1).best
    found = search(lookup.question(ask), top=1)
    same = found.layouts.mbs / found.layouts.cp == int(best.layout["mbs"]) / int(best.layout["cp"])
    for axis in ("tp", "pp"):
        same &= getattr(found.layouts, axis) == int(best.layout[axis])
    same &= np.isin(found.layouts.recompute, [RECOMPUTE.index(how) for how in ("none", *CHEAP_RECOMPUTE)])
    assert best.ties == sum(same & (abs(found.cost.step / best.step - 1) <= 0.01)) - 1 > 0


# Where nothing fits.


def test_a_model_that_fits_nowhere_says_by_how_much_and_what_would_help() -> None:
    with pytest.raises(DoesNotFit) as refused:
        planned(TrainAsk(model="llama-3-405b", on="8xrtx4090", batch=8, seq=4096, framework="megatron"))
    message = one_line(refused.value)
    q = lookup.question(TrainAsk(model="llama-3-405b", on="8xrtx4090", batch=8, seq=4096, framework="megatron"))
    assert f"{search(q).smallest / 2**30:.1f} GiB" in message
    assert "24.0" in message  # GiB of an RTX 4090
    assert refused.value.exit_code == 1


def test_rules_that_leave_nothing_are_named() -> None:
    ask = replace(ASK, batch=7, framework="nanotron")
    with pytest.raises(DoesNotFit, match=r"dp divides the batch \(\d") as refused:
        planned(ask, fix="tp=1,pp=1,cp=1")
    assert one_line(refused.value)


# The file.


def written(plan: TrainPlan, folder: Path) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    return path


def test_a_plan_reads_back_as_written(plan: TrainPlan, tmp_path: Path) -> None:
    assert read(written(plan, tmp_path)) == plan


def test_every_word_of_the_question_is_in_the_file(tmp_path: Path) -> None:
    ask = replace(ASK, ramp=(64, 128), fix=("tp=2",), allow=("pp=1..4",), at_most="1 node", optimizer="muon", precision="fp8")
    ask = replace(ask, mtbf=3.6e7, spares=2, async_checkpoint=True, price=2.5 / 3600, link=4e11, top=5)
    assert read(written(planned(ask), tmp_path)).ask == ask


def test_a_plan_has_digests_of_its_data(plan: TrainPlan) -> None:
    other = planned(replace(ASK, framework="nanotron", tokens=0.0), top=1)
    assert plan.versions["meshwise"] == other.versions["meshwise"]
    assert plan.versions["model"] == other.versions["model"]
    assert plan.versions["cluster"] == other.versions["cluster"]
    assert plan.versions["framework"] != other.versions["framework"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a plan; make one with 'meshwise plan'"),
        ('{"model_type": "llama"}', "not a plan"),
        (f'{{"format": {TrainPlan.format}}}', "a damaged plan"),
        (f'{{"format": {TrainPlan.format}, "ask": {{}}, "choices": []}}', "a damaged plan"),
        ('{"format": 1}', f"a plan of format 1; this version reads format {TrainPlan.format}: make the plan again"),
        ('{"format": "1"}', "a plan of format '1'"),
        ('{"format": null}', "a plan of format None"),
    ],
    ids=lambda text: text[:24],
)
def test_a_file_that_is_no_plan_of_this_version_is_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read(path)
    assert words in one_line(refused.value)
    assert str(path) in str(refused.value)


def test_a_plan_cut_off_anywhere_is_refused_in_one_line(plan: TrainPlan, tmp_path: Path) -> None:
    text = json.dumps(plan.to_json())
    path = tmp_path / "plan.json"
    for length in range(1, len(text), len(text) // 40):
        path.write_text(text[:length])
        with pytest.raises(UserError, match="not valid JSON"):
            read(path)


@pytest.mark.parametrize("given", [{"mtbf": -1.0}, {"mtfb": 1e9}, {"spares": 1.5}], ids=str)
def test_a_plan_of_impossible_failures_is_refused_in_one_line(given: dict[str, float], plan: TrainPlan, tmp_path: Path) -> None:
    table = plan.to_json()
    table["ask"] |= given
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(table))
    with pytest.raises(UserError) as refused:
        read(path)
    assert next(iter(given)) in one_line(refused.value)


def paths(value: object, *above: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON document."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(inner, *above, key)


@pytest.mark.parametrize("damage", [[], {}, "x", -1, None, True, math.nan, "lost"], ids=repr)
def test_a_plan_damaged_anywhere_is_refused_or_can_still_be_shown(damage: object, plan: TrainPlan, tmp_path: Path) -> None:
    """'lost' takes the key away too."""
    whole = json.loads(json.dumps(replace(plan, choices=plan.choices[:1]).to_json()))
    refused = 0
    for place in paths(whole):
        damaged = copy.deepcopy(whole)
        inner = damaged
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = damage
        if damage == "lost":
            del inner[place[-1]]
        (tmp_path / "plan.json").write_text(json.dumps(damaged))
        found = message = None
        try:
            found = read(tmp_path / "plan.json")
        except UserError as error:
            message = one_line(error)
        if found:
            assert choice_bars(found.choices, 80)
            assert differences(found.choices[0], plan.choices[-1])
        refused += bool(message)
    assert refused > 20  # a plan has some 70 values; a few may be missing, and words may be any words
