"""What tools and files say of nodes becomes facts with their sources; what they do not say is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.catalogue import here
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import UserError
from meshwise.run.preflight import cluster, jobs, tools
from meshwise.run.preflight.ask import PreflightAsk
from meshwise.run.preflight.tools import NodeFacts

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tPIX\t0-47\t0
GPU1\tNV18\t X \tNV12\tSYS\t0-47\t0
GPU2\tNV18\tNV12\t X \tSYS\t48-95\t1
NIC0\tPIX\tSYS\tSYS\t X
"""
SCONTROL = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=96 Gres=gpu:h100:8(S:0-1) OS=Linux 6.1 #1 SMP RealMemory=2000000 "
    "State=IDLE ThreadsPerCore=1\n"
    "NodeName=n2 CPUTot=96 Gres=gpu:h100:8 RealMemory=2000000 State=DOWN*+DRAIN Reason=gpu fell off [root@2026-11-18]\n"
    "NodeName=$(reboot) CPUTot=4 RealMemory=1 State=MIXED\n"
)


def missing(*command: str) -> str:
    raise UserError(f"{command[0]} is not installed here")


def test_the_matrix_of_nvidia_smi_says_how_gpus_are_joined() -> None:
    pairs = tools.topology(TOPOLOGY)
    assert pairs == {(0, 1): "NV18", (0, 2): "NV18", (1, 2): "NV12"}
    assert tools.weakest(pairs) == "NV12"
    assert tools.weakest(pairs | {(0, 3): "SYS"}) == "SYS"
    assert tools.topology("no matrix") == {}


def test_slurm_s_nodes_have_their_state_and_nothing_in_their_names_is_run() -> None:
    first, second, strange = tools.slurm(lambda *_: SCONTROL)
    assert (first.host, first.devices, first.chip, first.cpus, first.state) == ("n1", 8, "h100", 96, "ready")
    assert second.state.startswith("down*+drain gpu fell off")
    assert strange.host == "$(reboot)"


def test_kubernetes_nodes_have_the_products_of_their_labels() -> None:
    node: dict[str, Any] = {
        "metadata": {"name": "pool-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}, "spec": {"unschedulable": True},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "memory": "1048576Ki", "cpu": "96"}, "conditions": []},
    }  # fmt: skip
    (found,) = tools.kubernetes(lambda *_: json.dumps({"items": [node]}))
    assert (found.devices, found.chip, found.memory, found.state) == (8, "H100-80GB-HBM3", 2.0**30, "cordoned")
    with pytest.raises(UserError, match="not the list of nodes"):
        tools.kubernetes(lambda *_: '{"items": [3]}')


def test_a_machine_without_tools_says_which_are_missing_and_reads_its_ports(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "state").write_text("4: ACTIVE\n")
    found = tools.this_node(missing, tmp_path)
    assert found.network == 50e9
    assert found.sources["network"] == "/sys/class/infiniband"
    assert [words for words in found.unseen if "nvidia-smi is not installed" in words]
    (port / "state").write_text("1: DOWN\n")
    assert any("network" in words for words in tools.this_node(missing, tmp_path).unseen)


def test_what_was_seen_is_a_file_that_plan_takes_with_every_source_in_it(tmp_path: Path) -> None:
    sources = {"devices": "nvidia-smi", "chip": "nvidia-smi", "network": "/sys/class/infiniband", "memory": "the kernel"}
    node = NodeFacts("a", 8, "H100 80GB HBM3", "NV18", 400e9, "mlx5_0", 2e12, 96, sources=sources)
    found = cluster.found(
        [node, NodeFacts("b", 8, "H100 80GB HBM3", "NV18", 400e9, "mlx5_0"), NodeFacts("c", 1, "H100 80GB HBM3")], ["Slurm: no"]
    )
    path = found.write(tmp_path)
    assert path is not None
    text = path.read_text()
    for words in ("[nvidia-smi]", "[/sys/class/infiniband]", "# not seen: Slurm: no", 'chips = "8xh100-sxm"', "nodes = 2"):
        assert words in text
    on = find_cluster(str(path))
    assert (on.devices, on.network and on.network.bandwidth) == (16, 400e9)
    assert api.plan("llama-3-8b", on=str(path), batch="64x4096").best.step > 0


def test_a_chip_that_the_catalogue_does_not_have_is_named_and_no_file_is_written(tmp_path: Path) -> None:
    found = cluster.found([NodeFacts("a", 4, "Abacus 9000")], [])
    assert found.write(tmp_path) is None
    assert any("Abacus 9000" in words for words in found.unseen)


def test_commands_that_leave_nodes_out_hold_no_command_of_a_stranger_s_rows(tmp_path: Path) -> None:
    rows = [
        {
            "kind": "machine",
            "rank": rank,
            "node": rank,
            "local": 0,
            "host": host,
            "device": "cpu",
            "name": "X",
            "nodes": 2,
            "cores": 8,
        }
        for rank, host in enumerate(("n0", "$(reboot); x"))
    ]
    rows += [{"kind": "missing", "rank": 1, "node": 1, "what": "pairs and rings", "why": "a dead link"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = api.preflight(read=str(tmp_path))
    assert done is not None
    assert done.advice() == ["srun --exclude='$(reboot); x'", "kubectl cordon '$(reboot); x'"]


@pytest.mark.parametrize("change", [
    {"host": "a\nb"}, {"host": 3}, {"local": -1}, {"local": True}, {"device": "tpu"}, {"cores": "8"}, {"rank": 1e3}, {"node": 2**40},
    {"load": "x"}, {"name": "x" * 5000}, {"kind": "figure"}, {"kind": "link", "what": "between", "from": 0, "to": 1, "rate": 1.0},
], ids=str)  # fmt: skip
def test_rows_that_no_preflight_writes_are_refused_in_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    row = {
        "kind": "machine",
        "rank": 0,
        "node": 0,
        "local": 0,
        "host": "n0",
        "device": "cpu",
        "name": "X",
        "nodes": 1,
        "cores": 8,
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | change) + "\n")
    with pytest.raises(UserError, match="not a row of a preflight"):
        api.preflight(read=str(tmp_path))


def test_a_folder_with_links_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rank-0.log").symlink_to(tmp_path / "notes")
    with pytest.raises(UserError, match=r"rank-0\.log is a link"):
        api.preflight(seconds=5, device="cpu", out=str(tmp_path / "out"))
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_comment_of_cluster_toml_ends_where_its_line_does(tmp_path: Path) -> None:
    node = NodeFacts('a\nname = "x"', 8, "H100 80GB HBM3", "NV18", 400e9, 'mlx\n[host]\nmemory = "1GB"', 2e12, 96)
    path = cluster.found([node, NodeFacts("b", 8, "H100 80GB HBM3")], ["no\nnodes = 9"]).write(tmp_path)
    assert path is not None
    assert find_cluster(str(path)).node_count == 2


def test_a_machine_that_is_not_the_cluster_that_on_says_is_sick_but_not_to_be_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = api.preflight(facts=True, on="2x8xh100-sxm", out=str(tmp_path / "out"))
    assert found is not None
    assert {finding.what for finding in found.findings} == {"nodes", "chip", "devices of a node"}
    assert (found.exit_code, found.exclude) == (1, [])


def test_gpus_of_amd_are_measured_as_those_of_nvidia_are(monkeypatch) -> None:
    monkeypatch.setattr(here, "gpus", list)
    monkeypatch.setattr(here, "radeons", lambda: ["AMD Instinct MI300X"] * 8)
    assert jobs.devices(PreflightAsk()) == ("cuda", 8)
    with pytest.raises(UserError, match="list 8 GPUs here"):
        jobs.devices(PreflightAsk(device="cuda", ranks=9))
