"""A real Slurm of two nodes on this machine (slurm.sh), for tests of scripts that are submitted to it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwise

SLURM = Path(__file__).with_name("slurm.sh")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare") if shutil.which(name, path=PATH) is None]
needs_slurm = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"Slurm is not installed: no {', '.join(MISSING)} (apt-get install slurmctld slurmd slurm-client munge iproute2)",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of their own need root"),
]


def in_slurm(folder: Path, script: str, seconds: int = 900, nodes: int = 2) -> str:
    """Run a script beside a Slurm of two nodes, or of `nodes`; return what it prints."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "meshwise"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m meshwise "$@"\n')
    program.chmod(0o755)
    (folder / "driver.sh").write_text("set -euo pipefail\n" + script)
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{PATH}",
        "PYTHONPATH": str(Path(meshwise.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "NODES": str(nodes),
    }
    own = ["unshare", "-m", "-p", "-f", "--kill-child", "-n", "-u"]
    command = [*own, "bash", str(SLURM), str(folder), "bash", str(folder / "driver.sh")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    if "Operation not permitted" in done.stderr and not done.stdout:
        pytest.skip(f"this machine does not allow namespaces: {done.stderr.splitlines()[-1]}")
    logs = "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in folder.glob("*.out"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout
