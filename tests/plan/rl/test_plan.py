"""Devices are split between training and generating answers so that a step takes least time."""

from dataclasses import replace

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.plan import RolloutPlan, make

ASK = TrainAsk("llama-3.1-8b", on="8xh100-sxm", batch=64, seq=2048, objective="grpo")


@pytest.fixture(scope="module")
def plan() -> RolloutPlan:
    return make(ASK)


def test_splits_are_sorted_by_their_step(plan: RolloutPlan) -> None:
    steps = [split.step for split in plan.splits]
    assert steps == sorted(steps)
    assert len(steps) > 1


def test_devices_in_turn_take_the_sum_of_the_phases_and_apart_the_longest(plan: RolloutPlan) -> None:
    for split in plan.splits:
        phases = split.phases
        if split.train_devices == split.rollout_devices == 8:
            assert split.step == pytest.approx(sum(phases.values()))
        else:
            assert split.train_devices + split.rollout_devices == 8
            assert split.step == pytest.approx(max(phases["rollout"], phases["training"]) + phases["sync"])
        assert split.answers_per_second == pytest.approx(plan.answers / split.step)


def test_all_weights_cross_the_link_and_adapters_alone_hardly_take_time(plan: RolloutPlan) -> None:
    """8.03 billion weights of 2 bytes over NVLink 4 at 450 GB/s."""
    assert plan.best.phases["sync"] == pytest.approx(2 * 8_030_261_248 / 450e9, rel=0.01)
    assert make(replace(ASK, finetune="lora:16")).best.phases["sync"] < 0.02 * plan.best.phases["sync"]


def test_ppo_has_a_value_and_a_reward_model_beside_policy_and_reference(plan: RolloutPlan) -> None:
    ppo = next(split for split in make(replace(ASK, objective="ppo")).splits if split.train_devices == 8)
    grpo = next(split for split in plan.splits if split.train_devices == 8)
    assert ppo.memory["value"] > 0.8 * ppo.memory["policy"]
    assert ppo.memory["reward"] == pytest.approx(ppo.memory["reference"])
    assert grpo.memory["value"] == grpo.memory["reward"] == 0
    assert ppo.phases["training"] > 1.5 * grpo.phases["training"]


def test_more_answers_take_longer(plan: RolloutPlan) -> None:
    assert make(replace(ASK, answers=16)).best.step > 1.5 * plan.best.step


def test_a_model_that_fits_neither_together_nor_apart_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="neither with training and generation on the same devices nor apart"):
        make(replace(ASK, model="llama-3-405b"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": 4096}, "expected fewer tokens than --seq 2,048"),
        ({"objective": "dpo"}, "generates no answers; expected ppo or grpo"),
        ({"on": "1xrtx3090+1xrtx3060"}, "one kind of device"),
    ],
)
def test_bad_questions_are_refused_in_one_line(change: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(replace(ASK, **change))  # type: ignore[arg-type]
