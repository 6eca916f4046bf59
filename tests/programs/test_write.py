"""Plans as files: every program with every launcher, read again from the files alone; refusals; placeholders; the verb."""

from functools import cache
from pathlib import Path

import pytest

from meshwise import api
from meshwise.audit.check.layout import normal, row_of
from meshwise.errors import UserError
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs.program import launchers, programs
from meshwise.programs.read.files import read_files
from meshwise.programs.write import export
from meshwise.runs import derive
from support.command import meshwise
from support.launch_files import plan

PLANS = {
    "megatron": "megatron",
    "megatron-bridge": "megatron-bridge",
    "torchtitan": "torchtitan",
    "torchtitan-0.2": "torchtitan",
    "accelerate": "fsdp",
    "axolotl": "fsdp",
    "torchtune": "fsdp",
    "trainer": "deepspeed",
    "llama-factory": "deepspeed",
    "nanotron": "nanotron",
    "maxtext": "maxtext",
    "meshwise": "meshwise",
}
"""Programs and the framework of a plan that they can say."""
FIX = {"fsdp": ("tp=1", "cp=1", "pp=1", "recompute=full"), "deepspeed": ("tp=1", "pp=1", "recompute=full"), "maxtext": ("cp=1",)}


@cache
def of(framework: str) -> TrainPlan:
    return api.plan("llama-3.1-8b", on="4x8xh100-sxm", batch="512x4096", framework=framework, fix=FIX.get(framework, ()), top=20)


@pytest.mark.parametrize("program", PLANS)
def test_exported_files_say_the_plan_again(program: str, tmp_path: Path) -> None:
    made = of(PLANS[program])
    number = next((i for i in range(1, len(made.choices) + 1) if not _refused(made, program, i)), 0)
    assert number, f"{program} can say no layout of its own framework"
    for launcher in ("torchrun", "slurm", "jobset", "trainjob", "leaderworkerset", "skypilot"):
        paths = export(made, program, launcher, number).save(tmp_path / launcher)
        reading = read_files(paths)
        chosen = made.choices[number - 1]
        facts = derive.complete(reading.facts, chosen.devices)
        assert facts.value("devices") == 32, launcher
        assert (facts.value("batch"), facts.value("seq")) == (512, 4096), launcher
        row, missing = row_of(reading.program, facts)
        assert not missing, launcher
        assert row == normal(chosen.layout), launcher


def _refused(made: TrainPlan, program: str, number: int) -> bool:
    try:
        export(made, program, row=number)
    except UserError:
        return True
    return False


def test_every_file_says_its_plan_prediction_version_and_check() -> None:
    made = api.export(plan("bloom"), to="megatron-deepspeed", launcher="slurm")
    text = next(iter(made.files.values()))
    for words in (
        plan("bloom").command,
        "s/step",
        "GiB",
        "Written for Megatron-DeepSpeed of BigScience, 2022",
        "Check: meshwise check",
    ):
        assert words in text
    assert "DATA_PATH:?set DATA_PATH" in text
    assert made.start == "sbatch train.sbatch"


def test_a_refusal_names_the_nearest_layout_and_how_to_plan_it() -> None:
    with pytest.raises(UserError) as refused:
        api.export(plan("dense"), to="torchtitan")
    message = str(refused.value)
    assert "torchtitan 0.3 has no ZeRO 1" in message
    assert "the nearest layout that it can say is " in message
    assert "--framework torchtitan" in message
    assert "--fix" in message


def test_what_no_layout_helps_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="Megatron-LM has no alibi positions"):
        api.export(plan("bloom"), to="megatron")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'megatron'"):
        api.export(plan("bloom"), to="megatorn")
    with pytest.raises(UserError, match="did you mean 'slurm'"):
        api.export(plan("bloom"), to="megatron-deepspeed", launcher="slrum")
    with pytest.raises(UserError, match="is only read"):
        api.export(plan("bloom"), to="neox")


def test_the_verb_prints_and_writes(tmp_path: Path) -> None:
    file = plan("bloom").save(tmp_path / "plan.json")
    printed = meshwise("export", str(file), "--to", "megatron-deepspeed", "--with", "slurm")
    assert printed.code == 0
    assert "#SBATCH --nodes=48" in printed.out
    assert (
        meshwise("export", str(file), "--to", "megatron-deepspeed", "--with", "slurm", "--out", str(tmp_path / "job")).code == 0
    )
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"train.sbatch", "ds_config.json"}
    listed = meshwise("export", "--list").out
    assert all(name in listed for name in (*programs(), *launchers()))
    checked = meshwise(
        "check", str(tmp_path / "job" / "train.sbatch"), str(tmp_path / "job" / "ds_config.json"), "--on", "jean-zay:48"
    )
    assert checked.code == 0
