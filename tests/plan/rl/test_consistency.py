"""Without overheads, the phases of a step on generated answers are those of serving and of training alone."""

from dataclasses import replace

import pytest

from meshwise.catalogue.rl_programs import Overheads
from meshwise.errors import DoesNotFit
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.rl.plan import RolloutPlan, make, setting
from meshwise.plan.rl.roles import row_tokens, with_rows
from meshwise.plan.serve import lookup as serve_lookup
from meshwise.plan.serve import search as serving
from meshwise.plan.train import plan as training

IDEAL = Overheads(fitted_on="nothing: devices never wait", reload=1.0)
ASK = TrainAsk("llama-3.2-1b", on="4xh100-sxm", batch=16, seq=1024, objective="grpo", answers=4, prompt=256, framework="fsdp")
ASKS = {"grpo": ASK, "lora": replace(ASK, finetune="lora:16"), "ppo": replace(ASK, objective="ppo")}


@pytest.fixture(scope="module")
def plans() -> dict[str, RolloutPlan]:
    return {name: make(replace(ask, top=100), IDEAL) for name, ask in ASKS.items()}


def test_generation_of_equal_answers_takes_as_long_as_serving_them(plans: dict[str, RolloutPlan]) -> None:
    split = next(one for one in plans["grpo"].splits if one.mode == "split" and one.rollout_devices == 1)
    served = ServeAsk(
        ASK.model, on="1xh100-sxm", engine="vllm", users=64, context=ASK.seq, prompt=ASK.prompt, output=ASK.seq - ASK.prompt
    )
    option = next(one for one in serving.search(serve_lookup.question(served)).options if one.speed)
    assert option.speed is not None
    expected = 768 / option.speed.per_user + 16 * option.speed.prefill_seconds  # answers to one prompt share its pass
    assert split.rollout_seconds == pytest.approx(expected, rel=0.02)


def test_the_update_takes_as_long_as_a_plan_of_training_on_as_many_rows(plans: dict[str, RolloutPlan]) -> None:
    s = setting(ASK, IDEAL)
    for split in (one for one in plans["grpo"].splits if one.mode == "split"):
        q = with_rows(s.q, s.answers.number * row_tokens(ASK, s.program, s.answers), 1)
        axes = tuple(
            f"{name}={value}"
            for name, value in split.train_axes.items()
            if name in ("mbs", "zero", "recompute", "tp", "pp", "cp")
        )
        text = TrainAsk(
            ASK.model, on=f"{split.train_devices}xh100-sxm", batch=int(q.work.batch), seq=ASK.seq, framework="fsdp", finetune="full",
            fix=axes,
        )  # fmt: skip
        if int(q.work.batch) % split.train_devices == 0 and split.train_devices in (2, 4):
            assert split.phases["update"] == pytest.approx(training.make(text).best.step, rel=0.01)


def test_a_pass_for_log_probabilities_is_a_third_of_an_update_of_all_weights(plans: dict[str, RolloutPlan]) -> None:
    best = next(one for one in plans["grpo"].splits if one.mode == "split" and one.train_devices == 2)
    ratio = best.phases["old log-probabilities"] / best.phases["update"]
    assert 0.2 < ratio < 0.45
    assert best.phases["reference"] == best.phases["old log-probabilities"]


@pytest.mark.parametrize("name", ASKS)
def test_roles_add_up_to_what_a_device_holds_in_each_phase(name: str, plans: dict[str, RolloutPlan]) -> None:
    chip = setting(ASKS[name]).q.chip
    engine = ("engine weights", "engine cache")
    for split in plans[name].splits:
        trained = sum(size for role, size in split.memory.items() if role not in engine)
        assert split.peaks["training"] == pytest.approx(trained)
        assert trained <= 0.96 * chip.memory
        assert split.peaks["rollout"] <= chip.memory


def test_a_reference_is_a_copy_of_the_policy_unless_adapters_are_trained(plans: dict[str, RolloutPlan]) -> None:
    split = next(one for one in plans["grpo"].splits if one.mode == "split" and one.train_devices == 2)
    assert split.memory["reference"] == pytest.approx(2 * 1_235_814_400 / 2, rel=0.2)  # 16 bits, half on each device
    assert all(one.memory["reference"] == 0 for one in plans["lora"].splits)


def test_what_would_fit_is_told_where_nothing_does() -> None:
    with pytest.raises(DoesNotFit, match=r"nor apart; .*lora:16 would fit$"):
        make(replace(ASK, model="llama-3.1-8b", on="1xa100-40gb", batch=2, ram="16GB"))
