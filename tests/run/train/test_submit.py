"""A run that is submitted to Slurm: the script of its plan, and what is refused. tests/referees/test_slurm.py submits it to a real one."""

from pathlib import Path

import pytest

import meshwise
from meshwise.errors import UserError
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.submit import batch_script, submit


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    meshwise.plan("llama-3-8b", on="2x8xh100-sxm", batch="64x4096", framework="meshwise").save(file)
    return file


def test_the_script_runs_the_same_command_on_the_nodes_of_the_plan(plan: Path, tmp_path: Path) -> None:
    run = TrainRun(what=str(plan), launcher="slurm", steps=20, checkpoint_every=5, out=str(tmp_path / "out"))
    text = batch_script(run)
    assert f"exec meshwise run {plan}" in text
    assert "--with" not in text
    assert f"#SBATCH --output={tmp_path / 'out'}/slurm-%j.out" in text
    facts = read_sources([Source("train.sbatch", text)], {}).facts
    assert [facts.value(name) for name in ("nodes", "devices_per_node", "steps", "save_every")] == [2, 8, 20, 5]


def test_only_a_plan_says_how_many_nodes_to_ask_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--with slurm: 'llama-debug' is no plan\.json"):
        batch_script(TrainRun(what="llama-debug", launcher="slurm", out=str(tmp_path)))


def test_a_machine_without_slurm_is_named(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no sbatch on this machine"):
        submit(TrainRun(what=str(plan), launcher="slurm", out=str(tmp_path / "out")), print)
    assert not (tmp_path / "out").exists()
