"""A dry run: the shards that torch would make, computed without torch, and a command for every node of the plan's cluster."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.models import find
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.dry_run import DryRun, describe
from meshwise.run.train.launch import prepare
from meshwise.ui.views.run.dry_run import dry_run_view
from support.command import Run, one_line

LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one device": ("llama-debug", {}),
    "tensor and shards": ("llama-debug", {"dp_shard": 2, "tp": 2}),
    "everything": ("llama-debug", {"dp_replicate": 2, "dp_shard": 3, "tp": 2, "pp": 2, "cp": 2, "batch": 24}),
    "more shards than rows": ("llama-debug", {"dp_shard": 512, "batch": 512}),
    "interleaved": ("llama-debug", {"pp": 2, "vpp": 2, "schedule": "interleaved", "tp": 2}),
    "a V": ("llama-debug", {"pp": 2, "schedule": "zbv"}),
    "layers that stages do not divide": ("bloom-560m", {"pp": 5, "tp": 2, "batch": 10}),
    "a tied head on the last stage": ("bloom-560m", {"pp": 2, "dp_shard": 2}),
    "GPT-2, whose files are transposed": ("gpt2", {"tp": 2, "dp_shard": 3, "batch": 12, "vocab_size": 50304}),
    "packed files, part of a head rotated": ("phi-3-mini", {"tp": 2, "dp_shard": 2}),
    "norms over all heads": ("olmo-2-7b", {"tp": 2, "pp": 2}),
    "experts": ("mixtral-8x7b", {"dp_shard": 2, "tp": 2, "ep": 2}),
    "latent attention": ("deepseek-v3", {"dp_shard": 4, "tp": 2, "pp": 2, "ep": 8}),
    "TTT": ("ttt-linear-125m", {"dp_shard": 4, "pp": 2}),
}


def described(what: str, **words: Any) -> DryRun:
    run = TrainRun(what, device="cpu", dry_run=True, **words)
    return describe(run, prepare(run))


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """A model by name, or its config.json with another vocabulary, which tensor parallelism must divide."""

    def named(what: str, words: dict[str, Any]) -> str:
        if "vocab_size" not in words:
            return what
        path = tmp_path / "model.json"
        path.write_text(json.dumps(find.find_values(what)[0] | {"vocab_size": words.pop("vocab_size")}), encoding="utf-8")
        return str(path)

    return named


@pytest.mark.slow
def test_shards_are_those_that_torch_makes(tmp_path: Path, config: Any) -> None:
    """Each layout's weights by `meshwise.workers.trainer.shapes`, which builds the model on a fake process group."""
    pytest.importorskip("torch")
    asked: list[str] = []
    ours: list[list[tuple[str, str, str]]] = []
    for number, (what, words) in enumerate(LAYOUTS.values()):
        own = dict(words)
        found = described(config(what, own), **own)
        path = tmp_path / f"{number}.json"
        found.settings.write(path)
        asked.append(str(path))
        ours.append([(w.name, _shape(w.shape), _shape(w.local)) for stage in found.stages for w in stage.weights])
    program = (
        "import sys, runpy\n"
        "for path in sys.argv[1:]:\n"
        "    sys.argv[1:] = [path]\n"
        "    print('=', path)\n"
        "    runpy.run_module('meshwise.workers.trainer.shapes', run_name='__main__', alter_sys=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *asked], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = [_weights(text) for text in done.stdout.split("= ")[1:]]
    wrong = {
        name: (mine, torch) for name, mine, torch in zip(LAYOUTS, ours, theirs, strict=True) if sorted(mine) != sorted(torch)
    }
    assert wrong == {}


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _weights(text: str) -> list[tuple[str, str, str]]:
    rows = (line.split() for line in text.splitlines() if line.startswith(("model.", "lm_head.")))
    return [(name, whole, local) for name, whole, local, *_ in rows]


def test_the_parameters_of_all_ranks_add_up_to_the_model() -> None:
    found = described("llama-debug", dp_shard=2, tp=2, pp=2, batch=16)
    assert len(found.stages) == 2
    whole = {weight.name: weight.shape for stage in found.stages for weight in stage.weights}
    assert sum(math.prod(shape) for shape in whole.values()) == 3_410_176  # as `meshwise count llama-debug` has it
    # per layer two norms of 256, which every tensor-parallel rank holds whole; all else is cut in four
    matrices = 3_410_176 - (2 * 4 + 1) * 256
    assert 4 * sum(stage.params for stage in found.stages) == matrices + 2 * (2 * 4 + 1) * 256


def test_the_text_has_the_command_the_layout_one_layer_and_the_memory() -> None:
    found = described("llama-debug", dp_shard=2, tp=2)
    short, long = dry_run_view(found).splitlines(), dry_run_view(found, verbose=True).splitlines()
    assert short[0] == "command"
    assert "--standalone --nproc-per-node 4 --max-restarts 0 -m meshwise.workers.trainer run/config.json" in short[1]
    assert "layout: dp2 tp2 pp1 mbs4 zero3 sp" in short
    assert "  4 x cpu: 2 shards x 2 tensor" in short
    # the gate of llama-debug is 768 x 256: over dp_shard 2 and tp 2 a rank holds a quarter of its rows
    gates = [line.split()[:3] for line in long if "mlp.gate_proj" in line]
    assert gates == [[f"model.layers.{i}.mlp.gate_proj.weight", "768x256", "192x256"] for i in range(4)]
    assert [line.split()[0] for line in short if "gate_proj" in line] == ["model.layers.0.mlp.gate_proj.weight"]
    assert "  --verbose lists all 39 weights" in short
    assert len(short) < 40
    assert any(line.startswith("  weights ") and line.endswith("MiB") for line in short)


@pytest.fixture
def sixteen_nodes(run: Run, tmp_path: Path) -> str:
    path = str(tmp_path / "plan.json")
    asked = [
        "llama-3-8b",
        "--on",
        "16x8xh100-sxm",
        "--batch",
        "128x4096",
        "--framework",
        "meshwise",
        "--fix",
        "tp=8",
        "--out",
        path,
    ]
    assert run("plan", *asked).code == 0
    return path


def test_a_plan_for_several_nodes_prints_the_command_of_each_node(sixteen_nodes: str) -> None:
    """The GPUs of the plan need not be here."""
    run = TrainRun(sixteen_nodes, dry_run=True)
    found = describe(run, prepare(run))
    assert (found.nodes, found.settings.device, found.settings.precision) == (16, "cuda", "bf16")
    typed, started = found.commands
    assert typed == f"meshwise run {sixteen_nodes} --nodes 16 --rendezvous NODE_0:29500 --node-rank NODE_RANK"
    assert "--nnodes 16 --node-rank NODE_RANK --rdzv-backend c10d --rdzv-id meshwise --rdzv-endpoint NODE_0:29500" in started
    assert "--nproc-per-node 8 " in started
    assert dry_run_view(found).startswith("command, on each of 16 nodes: NODE_RANK is 0 to 15, NODE_0 the address of the first\n")


def test_nodes_that_are_given_are_those_of_the_dry_run(sixteen_nodes: str) -> None:
    run = TrainRun(sixteen_nodes, dry_run=True, nodes=4, rendezvous="node-a:4000")
    typed, started = describe(run, prepare(run)).commands
    assert "--nodes 4 --rendezvous node-a:4000 --node-rank NODE_RANK" in typed
    assert "--rdzv-endpoint node-a:4000 --nproc-per-node 32 " in started
    with pytest.raises(UserError) as error:
        prepare(TrainRun(sixteen_nodes, dry_run=True, nodes=3))
    assert "128 devices, which 3 nodes cannot share evenly" in one_line(error.value)


def test_a_dry_run_needs_neither_torch_nor_processes(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class NoTorch:
        def find_spec(self, name: str, *_: object) -> None:
            assert name.partition(".")[0] != "torch", "torch was imported"

    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])
    for starter in ("run", "Popen"):
        monkeypatch.setattr(subprocess, starter, lambda *_, **__: pytest.fail("a process was started"))
    out = tmp_path / "out"
    done = run("run", "--device", "cpu", "--dp-shard", "512", "--batch", "512", "--dry-run", "--verbose", "--out", str(out))
    assert done.code == 0, done.err
    assert "--nproc-per-node 512 " in done.out
    norm = next(line.split() for line in done.out.splitlines() if line.startswith("  model.norm.weight"))
    assert norm[1:3] == ["256", "1"]  # of 256 gains over 512 ranks the first has one
    assert not out.exists()
