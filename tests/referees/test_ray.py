"""A real Ray cluster of two nodes on this machine runs an exported driver: two workers find each other and sum over both.

Needs: ray[default] torch
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwise.programs.program import Job, find_launcher

PROGRAM = """
import os
import torch.distributed as dist
import torch
dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                        rank=int(os.environ["NODE_RANK"]), world_size=int(os.environ["NNODES"]))
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
open(os.path.join(os.environ["OUT"], f"rank{dist.get_rank()}"), "w").write(str(int(total)))
"""


@pytest.mark.usefixtures("referee")
def test_two_nodes_of_ray_run_the_command_of_a_plan(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'ray[default]'")
    pytest.importorskip("torch", reason="pip install torch")
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    job = Job("sum", 2, 1, (sys.executable, "sum.py"), starter="node", chip="cpu", environment={"OUT": str(tmp_path)})
    (tmp_path / "sum.py").write_text(PROGRAM)
    ((name, text),) = find_launcher("ray").write(job).items()
    (tmp_path / name).write_text(text)
    os.environ["RAY_raylet_start_wait_time_s"] = "300"  # noqa: SIM112
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == ["3", "3"]
        (tmp_path / "sum.py").write_text("import sys; sys.exit(7)")
        failed = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert failed.returncode == 7, "a node that fails ends the job with its code"
    finally:
        cluster.shutdown()
