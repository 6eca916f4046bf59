"""Phases of a step on generated answers are those of serving and of training alone, and the split is the best of all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.cost.train.step import evaluate
from meshwise.errors import DoesNotFit
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.rl.plan import RolloutPlan, Split, make
from meshwise.plan.rl.roles import part_of
from meshwise.plan.rl.rollout import generate
from meshwise.plan.serve import lookup as serve_lookup
from meshwise.plan.serve import search as serving
from meshwise.plan.train import lookup
from meshwise.plan.train import plan as training
from meshwise.plan.train.search import search
from meshwise.units import GIB

ASK = TrainAsk("llama-3.2-1b", on="4xrtx3090", batch=8, seq=1024, objective="grpo", answers=4, prompt=256)
ASKS = {
    "grpo": ASK,
    "lora": replace(ASK, finetune="lora:16"),
    "ppo": replace(ASK, objective="ppo"),
    "long": replace(ASK, seq=4096),
    "large": replace(ASK, model="llama-3.1-8b", on="8xh100-sxm"),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, RolloutPlan]:
    return {name: make(ask) for name, ask in ASKS.items()}


def apart(plan: RolloutPlan) -> list[Split]:
    return [split for split in plan.splits if not split.together]


@pytest.mark.parametrize("name", ASKS)
def test_generation_takes_as_long_as_serving_the_same_prompts_and_answers(name: str, plans: dict[str, RolloutPlan]) -> None:
    ask, checked = ASKS[name], 0
    chip = ask.on.partition("x")[2]
    for split in apart(plans[name]):
        served = ServeAsk(
            ask.model, on=f"{split.rollout_devices}x{chip}", engine="vllm", users=split.at_once, context=ask.seq, prompt=ask.prompt,
            output=ask.seq - ask.prompt,
        )  # fmt: skip
        option = next(one for one in serving.search(serve_lookup.question(served)).options if one.speed)
        speed, copies = option.speed, option.layout.replicas
        assert speed is not None
        assert option.layout.name == split.rollout_layout
        assert split.at_once == min(plans[name].answers, speed.users * copies)
        waves = max(1.0, plans[name].answers / (speed.users * copies))
        prompts = speed.users / ask.answers  # answers to one prompt share its pass
        expected = waves * (prompts * speed.prefill_seconds + (ask.seq - ask.prompt) / speed.per_user)
        assert split.phases["rollout"] == pytest.approx(expected, rel=1e-9), split
        checked += 1
    assert checked


@pytest.mark.parametrize("name", ["grpo", "lora", "long", "large"])
def test_training_takes_as_long_as_a_plan_of_training_on_as_many_tokens(name: str, plans: dict[str, RolloutPlan]) -> None:
    ask = ASKS[name]
    chip = ask.on.partition("x")[2]
    for split in apart(plans[name]):
        alone = training.make(replace(ask, on=f"{split.train_devices}x{chip}", framework="fsdp"))
        assert split.phases["training"] == pytest.approx(alone.best.step, rel=1e-9), split
        assert split.train_layout == alone.best.name


@pytest.mark.parametrize("finetune", ["full", "lora:16"])
def test_two_forward_passes_are_added_to_training_on_plain_text(finetune: str) -> None:
    """Policy and reference read each answer once more: of 3 passes, 2 backward, 5 remain; of frozen layers 2 become 4."""
    bounds = ("mbs=2", "recompute=none", "dp_shard=2", "tp=1", "pp=1", "cp=1", "zero=3")
    ask = replace(ASK, on="2xh200", finetune=finetune, fix=bounds, framework="fsdp")
    text = replace(
        ask, objective="sft", batch=ask.batch * ask.answers, answers=8, prompt=512
    )  # the defaults, which sft has no use for
    reading, plain = training.make(ask).best, training.make(text).best
    ratio = reading.time["matmul"] / plain.time["matmul"]
    assert ratio == pytest.approx(5 / 3 if finetune == "full" else 2, rel=0.05)


@pytest.mark.parametrize("name", ASKS)
def test_roles_add_up_to_what_a_device_holds_in_each_phase(name: str, plans: dict[str, RolloutPlan]) -> None:
    chip = lookup.question(ASKS[name]).chip
    engine = ("engine weights", "engine cache")
    for split in plans[name].splits:
        trained = sum(size for role, size in split.memory.items() if role not in engine)
        assert split.peaks["training"] == pytest.approx(trained)
        assert trained <= 0.96 * chip.memory
        generating = sum(split.memory[role] for role in engine)
        kept = split.peaks["rollout"] - generating
        assert split.peaks["rollout"] <= chip.memory
        if split.together:
            states = sum(split.memory[role] for role in ("policy", "reference", "value", "reward", "other"))
            assert 0 < kept <= states * (1 + 1e-9)  # gradients are freed
        else:
            assert kept == pytest.approx(0, abs=1)


def test_a_reference_is_a_copy_of_the_policy_unless_adapters_are_trained(plans: dict[str, RolloutPlan]) -> None:
    split = next(split for split in apart(plans["grpo"]) if split.train_devices == 2)
    half = 2 if "zero3" in split.train_layout else 1  # 16 bits, half on each device where weights are sharded
    assert split.memory["reference"] == pytest.approx(2 * 1_235_814_400 / half, rel=0.2)
    assert all(split.memory["reference"] == 0 for split in plans["lora"].splits)


def fastest_by_hand(ask: TrainAsk, sync: float) -> float:
    """The least seconds of a step over every split, every layout that fits, and every engine."""
    q, number = lookup.question(ask), ask.batch * ask.answers
    total, seconds = q.cluster.devices, [np.inf]
    for devices in range(total):
        part = part_of(q, total - devices)
        assert part is not None
        found = search(part, bounds=ask.bounds, top=1000)
        if not len(found.layouts):
            continue
        if devices:
            rollout = generate(ask, q.cluster, devices, number)
            if rollout:
                seconds.append(max(rollout.seconds, float(found.cost.step.min())) + sync)
            continue
        cost = evaluate(part, found.layouts)
        resident = cost.memory["weights"] + cost.memory["optimizer"] + cost.memory["context"]
        for taken in np.unique(resident):
            rollout = generate(ask, q.cluster, total, number, taken=float(taken))
            if rollout:
                seconds.append(rollout.seconds + float(found.cost.step[resident == taken].min()) + sync)
    return min(seconds)


@given(
    batch=st.sampled_from([4, 8, 16]),
    answers=st.sampled_from([2, 4]),
    seq=st.sampled_from([512, 1024]),
    finetune=st.sampled_from(["full", "lora:8"]),
    cards=st.sampled_from(["2xrtx3090", "3xrtx4090", "4xrtx3090"]),
)
@settings(max_examples=4, deadline=None)
def test_no_split_is_faster_than_the_one_that_is_chosen(batch: int, answers: int, seq: int, finetune: str, cards: str) -> None:
    ask = replace(ASK, batch=batch, answers=answers, seq=seq, finetune=finetune, on=cards, framework="fsdp", fix=("cp=1", "tp=1"))
    best = make(ask).best
    assert best.step == pytest.approx(fastest_by_hand(ask, best.phases["sync"]), rel=0.01)


def test_a_slower_training_phase_that_leaves_the_engine_memory_is_tried() -> None:
    """With full states on each card nothing is left to generate with; sharded ones leave room."""
    best = make(replace(ASK, model="llama-3.2-3b", on="2xh100-sxm", batch=32)).best
    assert best.peaks["rollout"] <= 80 * GIB


def test_what_would_fit_is_told_where_nothing_does() -> None:
    ask = replace(ASK, on="1xrtx3060", batch=2, framework="ddp")
    with pytest.raises(DoesNotFit, match=r"nor apart; --finetune lora:16 would fit$"):
        make(ask)
    assert make(replace(ask, finetune="lora:16")).splits
