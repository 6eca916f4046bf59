"""Rows of a machine with H200 GPUs, in the form that its workers write: a healthy one passes, a slow or broken GPU is named."""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise import api
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import UserError
from meshwise.run.preflight import predicted
from meshwise.run.preflight.result import Preflight
from meshwise.run.preflight.tools import NodeFacts
from meshwise.workers.probe.counters import FIELDS

Row = dict[str, Any]
HEALTHY = dict(zip(FIELDS, (
    "1755", "1980", "62", "689.35", *["Not Active"] * 4, "0", "0", "No", "0", "5", "5", "16", "16",
), strict=True))  # fmt: skip
"""What nvidia-smi prints for the worker's query on an H200 SXM under load."""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWISE_HOME", str(tmp_path / "home"))


def node(gpus: int, slow: int | None = None, **counters: str) -> list[Row]:
    """Return the rows of a node whose GPUs reach 97% of what is predicted; the GPU `slow` reaches 60% of that in products."""
    link = {"link": "NV18"} if gpus > 1 else {}
    facts = NodeFacts(
        "gpu-a", gpus, "H200", network=5e10, network_name="mlx5_0", memory=2.1e12, cpus=192, **link,
        sources={"devices": "nvidia-smi", "chip": "nvidia-smi", "network": "/sys/class/infiniband"}, unseen=("GPUs by rocm-smi",),
    )  # fmt: skip
    expected = predicted.rates(find_cluster(f"1x{gpus}xh200")) | {"cpu": 5e8, "disk": 1e9}
    made: list[Row] = []
    for rank in range(gpus):
        own = {"rank": rank, "node": 0}
        machine = {
            "kind": "machine", "device": "cuda", "ranks": gpus, "nodes": 1, "cores": 192, "threads": 8, "torch": "2.11.0+cu130",
            "system": "Linux", "date": "2026-11-18", "name": "NVIDIA H200", "memory": 150_121_545_728, "sms": 132, "context": 500e6,
            "cuda": "13.0", "devices": gpus, "host": "gpu-a", "local": rank, "load": 1.5,
        }  # fmt: skip
        made += [machine | own, *([{"kind": "facts", "seen": asdict(facts), **own}] if rank == 0 else [])]
        for what in ("matrix products", "memory", "host link", *(("cpu", "disk") if rank == 0 else ())):
            share = 0.6 if (rank, what) == (slow, "matrix products") else 1.0
            made.append({"kind": "figure", "what": what, "rate": 0.97 * share * expected[what], **own})
        made.append({"kind": "counters", "bus": f"0000:{rank:02x}:00", **HEALTHY, **(counters if rank == slow else {}), **own})
        made.append({"kind": "missing", "what": "Xid errors", "why": "dmesg shows nothing here", **own})
        for other in set(range(gpus)) - {rank}:
            made.append({"kind": "link", "what": "inside", "from": rank, "to": other, "rate": 2.6e11, "latency": 2e-5, **own})
    flops = 0.97 * expected["matrix products"]
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (8192, 4096, 4096)):
        work = 2 * m * n * k
        timed = dict.fromkeys(("seconds", "low", "high"), work / flops) | {"repeats": 9}
        made.append({"kind": "gemm", "m": m, "n": n, "k": k, "dtype": "bf16", "flops": work, **timed, "rank": 0, "node": 0})
    for size in (2**30, 2**28, 2**26, 2**20):
        timed = dict.fromkeys(("seconds", "low", "high"), 2e-6 + 2 * size / expected["memory"]) | {"repeats": 9}
        made.append({"kind": "memory", "what": "copy", "size": size, "bytes": 2 * size, **timed, "rank": 0, "node": 0})
    return made


def judged(rows: list[Row], folder: Path) -> Preflight:
    """Judge rows as a file of a folder; JSON has lists where records have tuples."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = api.preflight(read=str(folder), on="")
    assert done is not None
    return done


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_healthy_machine_with_gpus_has_no_findings(gpus: int, tmp_path: Path) -> None:
    done = judged(node(gpus), tmp_path / "rows")
    assert (done.findings, done.exit_code) == ((), 0)
    assert done.found.chip == "h200"
    assert done.expected is not None
    assert done.expected["matrix products"] > 5e14  # of its 989 TFLOP/s (NVIDIA's datasheet)
    assert json.loads(json.dumps(done.to_json()))["nodes"][0]["host link"] > 4e10


def test_a_gpu_alone_at_60_percent_of_its_rate_is_named_against_the_prediction(tmp_path: Path) -> None:
    done = judged(node(1, slow=0), tmp_path / "rows")
    (one,) = done.findings
    assert (one.level, one.where, one.against) == ("sick", "gpu-a", "prediction")
    assert one.share == pytest.approx(0.97 * 0.6)
    assert done.exit_code == 1


def test_a_gpu_of_eight_at_60_percent_is_named_with_why_it_throttles(tmp_path: Path) -> None:
    throttled = {"clocks_throttle_reasons.hw_thermal_slowdown": "Active", "temperature.gpu": "92", "clocks.sm": "1050"}
    rows = node(8, slow=3, **throttled)
    again = [row for row in rows if row["kind"] == "figure" and row["what"] == "matrix products" and row["rank"] in (3, 4)]
    done = judged([*rows, *(row | {"kind": "again", "usual": row["rank"] == 4} for row in again)], tmp_path / "rows")
    assert {(one.level, one.where) for one in done.findings} == {("sick", "gpu-a device 3")}
    assert {one.what for one in done.findings} == {"counters", "matrix products"}


@pytest.mark.parametrize(("name", "value", "words"), [
    ("ecc.errors.uncorrected.volatile.total", "3", "uncorrected memory errors"),
    ("remapped_rows.failure", "1", "could not be remapped"),
    ("retired_pages.pending", "Yes", "waits for retirement"),
    ("pcie.link.width.current", "4", "PCIe x4 instead of x16"),
])  # fmt: skip
def test_a_counter_of_a_broken_gpu_names_it(name: str, value: str, words: str, tmp_path: Path) -> None:
    rows = [row | ({name: value} if row["kind"] == "counters" and row["rank"] == 1 else {}) for row in node(2)]
    (one,) = judged(rows, tmp_path / "rows").findings
    assert one.where == "gpu-a device 1"
    assert words in one.message


def test_a_healthy_machine_is_remembered_and_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a real preflight after its workers, which writes cluster.toml, history and a calibration."""
    from meshwise.run.preflight import jobs

    def written(ask: Any, *_: object) -> None:
        (Path(ask.out) / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in node(2)))

    monkeypatch.setattr(jobs, "measure", written)
    done = api.preflight(out=str(tmp_path / "out"))
    assert done is not None
    assert (done.findings, done.exit_code) == ((), 0)
    assert done.cluster_file is not None
    assert find_cluster(str(done.cluster_file)).node.devices == 2
    assert any("calibration for free" in note for note in done.notes)
    assert (tmp_path / "home" / "preflights" / "gpu-a.jsonl").is_file()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(seen=st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), lambda one: st.lists(one) | st.dictionaries(
    st.sampled_from(["host", "devices", "sources", "network", "unseen", "x"]), one)))  # fmt: skip
def test_facts_of_any_form_are_read_or_refused(seen: Any, tmp_path: Path) -> None:
    rows = [row | ({"seen": seen} if row["kind"] == "facts" else {}) for row in node(1)]
    with contextlib.suppress(UserError):
        judged(rows, tmp_path / "rows")
