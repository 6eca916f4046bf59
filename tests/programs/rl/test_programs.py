"""A plan on generated answers as files of verl, NeMo RL, OpenRLHF and TRL, with keys that they list, and read back as the same question."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.plan import RolloutPlan, make
from meshwise.programs.program import programs
from meshwise.programs.write import export

LISTS = Path(__file__).parents[3] / "src/meshwise/data/programs/keys"
ASK = TrainAsk("qwen2.5-7b", on="2x8xh100-sxm", batch=64, seq=4096, prompt=512, answer="900:3072", objective="grpo")
ASKS = {
    "verl": replace(ASK, framework="verl"), "verl-lora": replace(ASK, framework="verl", finetune="lora:32", mode="colocated"),
    "verl-ppo": replace(ASK, framework="verl", objective="ppo", mode="split", critic="qwen2.5-1.5b"),
    "verl-fsdp": replace(ASK, framework="verl", mode="colocated", fix=("tp=1", "pp=1", "zero=3")),
    "nemo-rl": replace(ASK, framework="nemo-rl"), "nemo-rl-turn": replace(ASK, framework="nemo-rl", mode="colocated", objective="dapo"),
    "openrlhf": replace(ASK, framework="openrlhf"), "openrlhf-turn": replace(ASK, framework="openrlhf", mode="colocated", objective="ppo"),
    "trl": replace(ASK, framework="trl", mode="colocated"), "trl-server": replace(ASK, framework="trl", mode="split", objective="rloo"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, RolloutPlan]:
    return {name: make(ask) for name, ask in ASKS.items()}


def listed(name: str) -> set[str]:
    return set(json.loads((LISTS / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ASKS)
def test_a_file_that_was_written_is_read_as_the_same_question(name: str, plans: dict[str, RolloutPlan], tmp_path: Path) -> None:
    plan, program = plans[name], plans[name].program
    paths = export(plan, program).save(tmp_path)
    verdict = api.check(*(path for path in paths if path.name != "vllm_serve.sh"), on=ASK.on, set=("answer=900:3072",))
    assert verdict.program == program
    assert verdict.fits, verdict.line
    own = verdict.plan.best  # type: ignore[attr-defined]
    best = plan.best
    assert (own.mode, own.train_devices, own.rollout_devices) == (best.mode, best.train_devices, best.rollout_devices)
    assert own.engine_tp == best.engine_tp
    assert own.step == pytest.approx(best.step, rel=0.1)


@pytest.mark.parametrize("name", [name for name in ASKS if name.startswith("verl")])
def test_verl_lists_every_key(name: str, plans: dict[str, RolloutPlan]) -> None:
    text = export(plans[name], "verl").files["train.sh"]
    keys = {word.partition("=")[0] for word in re.findall(r"[a-z_]+(?:\.[a-z_0-9]+)+=\S+", text)}
    assert len(keys) > 20
    assert keys <= listed("verl")


@pytest.mark.parametrize("name", [name for name in ASKS if name.startswith("openrlhf")])
def test_openrlhf_lists_every_flag(name: str, plans: dict[str, RolloutPlan]) -> None:
    text = export(plans[name], "openrlhf").files["train.sh"]
    flags = set(re.findall(r"^\s+(--[a-z_.]+)", text, re.MULTILINE))
    assert len(flags) > 20
    assert flags <= listed("openrlhf")


@pytest.mark.parametrize("name", [name for name in ASKS if name.startswith("trl")])
def test_trl_lists_every_key(name: str, plans: dict[str, RolloutPlan]) -> None:
    text = export(plans[name], "trl").files["trl.yaml"]
    keys = set(re.findall(r"^([a-z_0-9]+):", text, re.MULTILINE))
    assert keys <= listed("trl-grpo")


def test_a_script_of_verl_that_people_run_is_predicted(tmp_path: Path) -> None:
    """After examples/grpo_trainer of verl: an update of 256 of 1,024 prompts, an engine over two devices."""
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 data.max_prompt_length=512 "
        "data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.model.use_remove_padding=True "
        "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.use_kl_loss=True "
        "actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.6 "
        "actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=8 trainer.nnodes=1\n"
    )
    verdict = api.check(script, on="8xh100-sxm", set=("answer=300:1024",))
    plan = verdict.plan  # type: ignore[attr-defined]
    assert plan.ask.updates == 4
    assert plan.ask.answers == 5
    assert "reference" in plan.best.phases
    assert plan.best.engine_tp == 2
    assert verdict.code == 0


def test_what_stops_a_run_is_told(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    base = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.rollout.n=8 "
    script.write_text(base + "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=256 trainer.nnodes=4\n")
    verdict = api.check(script, on="8xh100-sxm")
    told = " ".join(one.message for one in verdict.findings)
    assert "an update takes 256 prompts, and a step has 64" in told
    assert "it uses 32 devices, and 8xh100-sxm has 8" in told
    assert verdict.code == 1
    script.write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8 data.train_batch_size=64\n")
    assert "does not state the model" in api.check(script, on="8xh100-sxm").line


def test_a_plan_of_another_program_or_kind_is_refused(plans: dict[str, RolloutPlan]) -> None:
    with pytest.raises(UserError, match="plan again with --framework openrlhf"):
        export(plans["verl"], "openrlhf")
    with pytest.raises(UserError, match="trains, and the plan is for training on generated answers"):
        export(plans["verl"], "megatron")
    with pytest.raises(UserError, match="same number of answers, and 90 do not divide"):
        export(make(replace(ASKS["trl"], batch=30, answers=3)), "trl")


def test_four_programs_are_written_and_read() -> None:
    assert sorted(name for name, one in programs().items() if one.kind == "rl") == ["nemo-rl", "openrlhf", "trl", "verl"]
