"""With llama.cpp's own programs (CPU, GGML_RPC=ON): a plan over hosts on one machine, its memory, its dry run, its timer."""

import json
import shutil
from pathlib import Path

import pytest

from meshwise.models import make_gguf
from meshwise.models.formats import find_format
from meshwise.plan.ask import ServeAsk
from meshwise.run.serve import memory, programs
from meshwise.run.serve.allocations import MIB, dry_run, from_log
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import Deployment, deployment
from meshwise.run.serve.process import started
from support.command import Run

NEEDED = ("llama-server", "llama-fit-params", "llama-bench", "ggml-rpc-server")
MISSING = [name for name in NEEDED if not shutil.which(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"of llama.cpp's programs there is no {', '.join(MISSING)} on PATH"),
]

RPC = "host2=loopback,host3=loopback"
HOSTS = "3x(1xcpu)@1Gbps"


def file_of(folder: Path, name: str, layers: int | None = None, *, header_only: bool = False) -> Path:
    path = folder / f"{name}.gguf"
    make_gguf.write(make_gguf.prepare(name, find_format("q4_k_m"), layers), path, header_only=header_only)
    return path


def plan(file: Path, **more: object) -> Deployment:
    return deployment(ServeAsk(**{"model": str(file), "on": HOSTS, "fix": ("hosts=3",), "context": 2048, **more}))  # type: ignore[arg-type]


def check(rows: list[memory.Row]) -> None:
    """Weights and cache to 1 MiB of the plan; of what the host maps, repacked tensors at the end may be missing. Of working memory no more
    than planned: builds differ, and the plan has the newest dry run's."""
    assert [row["device"] for row in rows] == ["host", "RPC0", "RPC1"]
    for row in rows:
        assert row["planned_weights"] - row["repacked"] - MIB < row["weights"] < row["planned_weights"] + MIB
        assert row["cache"] == pytest.approx(row["planned_cache"], abs=MIB)
        assert 0 < row["compute"] <= row["planned_compute"]


def test_planned_bytes_per_device_equal_those_that_llamacpp_prints(tmp_path: Path) -> None:
    """Two RPC servers and the server's own processor share one model as it was planned."""
    one = plan(file_of(tmp_path, "smollm2-135m"))
    run = ServeRun(rpc=RPC, threads=1, port=0)
    warned: list[str] = []
    processes = programs.programs(one, run)
    with memory.started_and_checked(one, run, processes, lambda line: None, warned.append) as up:
        reported = from_log(list(up[-1].log), memory.rpc_addresses(up[-1].program.command))
    assert [one.process.poll() is not None for one in up] == [True] * 3
    assert warned == []
    check(memory.compare(one, reported))


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen2.5-14b"])
@pytest.mark.parametrize("context", [4096, 32768])
def test_the_dry_run_takes_a_file_of_a_header_alone_and_agrees_with_the_plan(tmp_path: Path, name: str, context: int) -> None:
    """The referee for memory: models that would not fit on this machine, of which nothing is loaded."""
    one = plan(file_of(tmp_path, name, header_only=True), context=context)
    run = ServeRun(rpc=RPC, port=0)
    with started(programs.rpc_helpers(one, run), lambda line: None, 30):
        check(memory.compare(one, dry_run(programs.dry_run_command(one, run), 60)))


def test_a_file_other_than_the_planned_one_is_reported_before_it_is_loaded(run: Run, tmp_path: Path) -> None:
    file = file_of(tmp_path, "smollm2-135m", 2)
    words = ["--prompt", "8", "--output", "4", "--repeats", "1", "--threads", "1", "--model-file", str(file)]
    done = run("bench", "smollm2-135m:q8_0", "--on", "cpu", *words)
    assert done.code == 0, done.err
    assert "differs from the plan on host: weights 33 MiB (planned 136.4 MiB)" in done.err


def test_llama_bench_times_a_plan_over_rpc(run: Run, tmp_path: Path) -> None:
    file = file_of(tmp_path, "smollm2-135m", 3)
    made = tmp_path / "plan.json"
    assert run("serve", str(file), "--on", HOSTS, "--fix", "hosts=3", "--out", str(made)).code == 0
    words = ["--rpc", "host2=loopback,host3=loopback", "--threads", "1", "--prompt", "16,32", "--output", "4", "--repeats", "2"]
    done = run("bench", str(made), *words, "--llama-bench", "--json")
    assert done.code == 0, done.err
    points = json.loads(done.out)["points"]
    assert [(point["prompt"], len(point["decode_values"])) for point in points] == [(16, 2), (32, 2)]
    assert all(point["decode"] > 0 and point["prefill"] > 0 for point in points)
