"""A real preflight: on this machine, over nodes in namespaces with a slow cable, and as a job of a real Slurm whose second node is slow."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwise import api
from meshwise.catalogue.clusters import find_cluster
from support.slurm import in_slurm, needs_slurm

ROOT = Path(__file__).parents[3]
SLURM = """
ip netns exec n2 tc qdisc add dev eth0 root tbf rate 60mbit burst 64kb latency 200ms
for i in 1 3; do ip netns exec n$i tc qdisc add dev eth0 root tbf rate 600mbit burst 64kb latency 200ms; done
export MESHWISE_HOME=$PWD/home
meshwise preflight --with slurm --partition all --device cpu --ranks 1 --seconds 8 --out out --json || [ $? = 1 ]
"""
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path / "home"))


def test_this_machine_is_measured_judged_and_planned_with(tmp_path: Path) -> None:
    done = api.preflight(seconds=5, device="cpu", ranks=2, out=str(tmp_path / "out"))
    assert done is not None
    assert done.exit_code == 0, done.findings
    (node,) = done.rows()
    assert {"matrix products", "memory", "cpu", "disk", "send inside"} <= set(node)
    assert done.cluster_file is not None
    assert find_cluster(str(done.cluster_file)).chip.key == "preflight"
    again = api.preflight(read=str(tmp_path / "out"))
    assert again is not None
    assert again.rows() == done.rows()


def test_what_was_measured_is_kept_and_judged_when_it_is_stopped(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "meshwise", "preflight", "--device", "cpu", "--seconds", "300", "--out", str(tmp_path / "out")]
    worker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while '"figure"' not in (tmp_path / "out/rank-0.jsonl").read_text() if (tmp_path / "out/rank-0.jsonl").is_file() else True:
        assert time.monotonic() < until
        time.sleep(0.2)
    worker.send_signal(signal.SIGTERM)
    said, errors = worker.communicate(timeout=60)
    assert worker.returncode == 130, errors
    assert "stopped: judged by what was measured so far" in said
    assert "matrix products" in said


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="namespaces and their cables need root and iproute2")
def test_a_slow_cable_among_nodes_is_found_and_its_node_left_out(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "benchmarks/preflight/planted.py"), "--only", "slow-cable-sends", "--seconds", "6"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=500)
    if "Unavailable" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    found = json.loads(done.stdout.splitlines()[0])
    assert found["right"], found
    assert found["exclude"] == ["n1"]
    assert found["exit"] == 1


@pytest.mark.parametrize("_", [pytest.param(0, marks=needs_slurm)])
def test_a_slow_cable_under_slurm_is_found_and_excluded(tmp_path: Path, _: int) -> None:
    said = in_slurm(tmp_path, SLURM, nodes=3)
    result = json.loads(said[said.index("{") :])
    assert result["exclude"] == ["n2"], result["findings"]
    assert [row["node"] for row in result["nodes"]] == ["n1", "n2", "n3"]
    assert "nodes = 3" in (tmp_path / "out" / "cluster.toml").read_text()
