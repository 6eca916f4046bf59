"""A real Slurm of two nodes on this machine (tests/support/slurm.sh): exported scripts are accepted, refused, run, requeued and go on."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwise
from meshwise.export.program import Job, find_launcher
from meshwise.plan.train.plan import TrainPlan

HERE = Path(__file__).parent
SLURM = HERE.parents[1] / "support" / "slurm.sh"
MISSING = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare") if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)} (apt-get install slurmctld slurmd slurm-client munge iproute2)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of their own need root"),
]


def in_slurm(folder: Path, script: str, seconds: int = 900) -> str:
    """Run a script beside a Slurm of two nodes; return what it prints."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "meshwise"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m meshwise "$@"\n')
    program.chmod(0o755)
    (folder / "driver.sh").write_text("set -euo pipefail\n" + script)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTHONPATH": str(Path(meshwise.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    command = ["unshare", "-m", "-p", "-f", "--kill-child", "-n", "-u", "bash", str(SLURM), str(folder), "bash", str(folder / "driver.sh")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    if "Operation not permitted" in done.stderr and not done.stdout:
        pytest.skip(f"this machine does not allow namespaces: {done.stderr.splitlines()[-1]}")
    logs = "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in folder.glob("*.out"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def test_scripts_are_accepted_where_they_fit_and_refused_where_not(tmp_path: Path) -> None:
    sizes = {"fits": (48, 8), "whole": (64, 8), "too_many_nodes": (65, 8), "too_many_devices": (2, 9)}
    for name, (nodes, devices) in sizes.items():
        job = Job(name, nodes, devices, ("pretrain_gpt.py", "--tp", "8"), chip="a100-80gb-sxm", hours=20.0)
        (tmp_path / f"{name}.sbatch").write_text(find_launcher("slurm").write(job)["train.sbatch"])
    tried = in_slurm(tmp_path, "for f in *.sbatch; do sbatch --test-only -p big $f > $f.log 2>&1 && echo $f yes || echo $f no; done\n")
    assert sorted(tried.split("\n")[:-1]) == ["fits.sbatch yes", "too_many_devices.sbatch no", "too_many_nodes.sbatch no", "whole.sbatch yes"]
    assert "big[001-048]" in (tmp_path / "fits.sbatch.log").read_text()


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
