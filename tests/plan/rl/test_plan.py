"""Devices are split between training and generating answers so that a step takes least time."""

from dataclasses import replace

import pytest

from meshwise.catalogue.rl_programs import rl_programs
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.plan import RolloutPlan, make, read

ASK = TrainAsk("llama-3.1-8b", on="8xh100-sxm", batch=64, seq=2048, objective="grpo", answer="600:1536")


@pytest.fixture(scope="module")
def plan() -> RolloutPlan:
    return make(replace(ASK, top=100))


def test_splits_are_sorted_by_their_step(plan: RolloutPlan) -> None:
    steps = [split.step for split in plan.splits]
    assert steps == sorted(steps)
    assert {split.mode for split in plan.splits} == {"colocated", "split", "async"}


def test_phases_sum_to_the_step_and_lie_in_their_intervals(plan: RolloutPlan) -> None:
    for split in plan.splits:
        assert split.step == pytest.approx(sum(split.phases.values()))
        assert split.interval[0] < split.step < split.interval[1]
        assert all(low <= split.phases[name] <= high for name, (low, high) in split.phase_intervals.items())
        assert split.answers_per_second == pytest.approx(plan.answers / split.step)


def test_devices_apart_wait_for_the_longer_of_training_and_generation(plan: RolloutPlan) -> None:
    for split in plan.splits:
        rest = split.phases["weights"] + split.phases["switch"]
        longest = max(split.rollout_seconds, split.training_seconds)
        busy = split.rollout_seconds + split.training_seconds if split.together else longest
        assert split.step == pytest.approx(busy + rest)
        assert split.together or split.train_devices + split.rollout_devices == 8


def test_a_longer_tail_never_shortens_a_step() -> None:
    steps = [make(replace(ASK, answer=f"400:{longest}", mode="colocated")).best.step for longest in (400, 600, 900, 1200, 1536)]
    assert steps == sorted(steps)
    assert steps[-1] > 1.2 * steps[0]


def test_asynchronous_generation_is_never_slower_than_one_that_waits_for_the_longest(plan: RolloutPlan) -> None:
    waiting = {split.rollout_devices: split for split in plan.splits if split.mode == "split"}
    for split in plan.splits:
        if split.mode == "async":
            assert split.rollout_seconds <= waiting[split.rollout_devices].rollout_seconds
            assert split.step <= waiting[split.rollout_devices].step


def test_partial_rollouts_spare_the_tail() -> None:
    whole = make(replace(ASK, mode="colocated")).best
    partial = make(replace(ASK, mode="colocated", partial=True)).best
    assert partial.tail_seconds == 0 < whole.tail_seconds
    assert partial.step < whole.step


def test_an_engine_without_graphs_and_one_with_adapters_is_slower() -> None:
    plain = make(replace(ASK, mode="colocated", engine_tp=1)).best
    eager = make(replace(ASK, mode="colocated", engine_tp=1, eager=True, finetune="lora:32")).best
    assert eager.rollout_seconds > 1.2 * plain.rollout_seconds


def test_rows_that_are_padded_train_longer_than_packed_ones() -> None:
    packed, padded, longest = (
        make(replace(ASK, mode="colocated", rows=how)).best.phases["update"] for how in ("packed", "padded", "longest")
    )
    assert packed < padded < longest


def test_no_reference_no_pass_of_it(plan: RolloutPlan) -> None:
    without = make(replace(ASK, reference=False, mode="colocated")).best
    assert "reference" not in without.phases
    assert without.memory["reference"] == 0
    assert "reference" not in make(replace(ASK, objective="dapo", mode="colocated")).best.phases


def test_critic_and_reward_model_have_their_own_sizes_or_are_a_function() -> None:
    ppo = replace(ASK, objective="ppo", mode="colocated")
    same = make(ppo).best
    small = make(replace(ppo, critic="llama-3.2-1b", reward="function")).best
    assert small.memory["critic"] < 0.3 * same.memory["critic"]
    assert small.phases["critic"] < 0.5 * same.phases["critic"]
    assert "reward" in same.phases
    assert "reward" not in small.phases


def test_a_teacher_reads_every_answer() -> None:
    best = make(replace(ASK, model="llama-3.2-1b", objective="gkd", teacher="llama-3.1-8b", mode="colocated")).best
    assert best.phases["teacher"] > 0
    assert best.memory["teacher"] > 0


def test_measured_lengths_give_the_same_as_their_mean_and_longest(tmp_path) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text("".join(f'{{"answer": {200 + 8 * i}}}\n' for i in range(100)) + "\n1200\n")
    made = make(replace(ASK, answer="", lengths=str(file), mode="colocated"))
    assert made.mean_answer == pytest.approx((sum(200 + 8 * i for i in range(100)) + 1200) / 101)
    assert made.longest_answer == 1200
    stated = make(replace(ASK, answer=f"{made.mean_answer:.0f}:1200", mode="colocated"))
    assert made.best.step == pytest.approx(stated.best.step, rel=0.1)


@pytest.mark.parametrize("name", rl_programs())
def test_every_program_has_a_plan_in_the_layouts_that_it_can_run(name: str) -> None:
    program = rl_programs()[name]
    made = make(replace(ASK, framework=name, model="llama-3.2-1b", objective="grpo"))
    allowed = {one.framework: one for one in program.trainers}
    for split in made.splits:
        assert split.mode in program.modes
        trainer = allowed[split.framework]
        for axis in ("tp", "pp", "cp", "ep"):
            degree = int(split.train_axes[axis])
            assert degree <= getattr(trainer, axis)
            assert axis == "pp" or degree & (degree - 1) == 0


def test_a_saved_plan_reads_back(plan: RolloutPlan, tmp_path) -> None:
    assert read(plan.save(tmp_path / "plan.json")) == plan


def test_a_model_that_fits_neither_together_nor_apart_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="neither with training and generation on the same devices nor apart"):
        make(replace(ASK, model="llama-3-405b"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": 4096}, "expected fewer tokens than --seq 2,048"),
        ({"objective": "dpo"}, "generates no answers; expected ppo or grpo"),
        ({"on": "1xrtx3090+1xrtx3060"}, "one kind of device"),
        ({"answer": "600:1800"}, "leaves 1,536 of --seq 2,048"),
        ({"framework": "trl", "mode": "async"}, "TRL 1.16.0 has colocated and split"),
        ({"framework": "trl", "partial": True}, "ends a step with its longest answer"),
        ({"framework": "forge", "finetune": "lora:16"}, "trains no adapters; expected --finetune full"),
        (
            {"framework": "openrlhf", "objective": "gkd", "teacher": "llama-3.1-8b"},
            "has no gkd; expected --framework nemo-rl or trl or verl",
        ),
        ({"framework": "maxtext"}, "trains on no generated answers; expected forge, nemo-rl"),
        ({"objective": "gkd"}, "needs --teacher MODEL"),
        ({"critic": "llama-3.2-1b"}, "--critic takes part in --objective ppo, not in grpo"),
        ({"mode": "colocated", "rollout_devices": 4}, "drop one of them"),
        ({"rollout_devices": 8}, "expected fewer, so that some devices train"),
    ],
)
def test_bad_questions_are_refused_in_one_line(change: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(replace(ASK, **change))  # type: ignore[arg-type]


def test_bad_lengths_are_refused_with_their_line(tmp_path) -> None:
    file = tmp_path / "lengths.jsonl"
    for text, words in (("12\nmany\n", "line 2: expected a whole number"), ("", "has no lengths"), ("0\n", "line 1: 0 tokens")):
        file.write_text(text)
        with pytest.raises(UserError, match=words):
            make(replace(ASK, answer="", lengths=str(file)))
