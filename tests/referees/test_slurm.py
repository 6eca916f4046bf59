"""A real Slurm runs exported scripts of our trainer over four ranks on two nodes: submitted, followed, requeued, resumed.

Needs Slurm's packages and torch; takes one to four minutes.
"""

import json
import re
from pathlib import Path

import pytest

import meshwise
from meshwise.plan.train.plan import TrainPlan
from support.slurm import in_slurm, needs_slurm

pytestmark = [*needs_slurm, pytest.mark.usefixtures("referee")]


TRAIN = """
export OUT=$PWD/out STEPS=12
id=$(sbatch --parsable job/train.sbatch)
until grep -q 'saved after' *.out 2> /dev/null || ls -d out/checkpoints/step-* > /dev/null 2>&1; do
  sleep 0.2
  ! scontrol show job $id | grep -qE 'JobState=(FAILED|COMPLETED)'
done
scancel --signal=USR1 --batch $id
until scontrol show job $id | grep -q 'Restarts=1'; do sleep 0.2; done
until scontrol show job $id | grep -qE 'JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)'; do sleep 0.3; done
scontrol show job $id
"""


def four_ranks() -> TrainPlan:
    fixed = "dp_shard=2,tp=2,dp_replicate=1,pp=1,cp=1"
    return meshwise.plan("llama-debug", on="2x2xcpu@10Gbps", batch="8x64", framework="meshwise", fix=(fixed,))


def test_a_plan_is_submitted_followed_and_measured(tmp_path: Path) -> None:
    four_ranks().save(tmp_path / "plan.json")
    said = in_slurm(tmp_path, "meshwise run plan.json --with slurm --steps 3 --device cpu --out out\n")
    rows = [json.loads(line) for line in (tmp_path / "out" / "measurement.jsonl").read_text().splitlines()]
    assert [(row["n_gpus"], row["tp"]) for row in rows] == [(4, 2)]
    assert "submitted job 1" in said
    assert re.search(r"step +3/3", said), "the job's log is passed on"
    assert f"job 1: {rows[0]['sec_per_iter']:.4g} s/step" in said.splitlines()[-1]


def test_an_exported_script_trains_over_two_nodes_is_requeued_and_goes_on(tmp_path: Path) -> None:
    written = meshwise.export(four_ranks(), to="meshwise", launcher="slurm")
    written.save(tmp_path / "job")
    script = tmp_path / "job" / "train.sbatch"
    script.write_text(script.read_text().replace("--checkpoint-every 100", "--checkpoint-every 3 --device cpu"))
    state = in_slurm(tmp_path, TRAIN)
    log = next(tmp_path.glob("llama-debug-*.out")).read_text()
    assert "JobState=COMPLETED" in state, log
    assert "Restarts=1" in state
    assert "the time limit is near: requeued" in log
    assert re.search(r"resum", log), log
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "steps.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step was repeated"
    assert len(steps) == 12
