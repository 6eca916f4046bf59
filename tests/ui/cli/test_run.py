"""`meshwise run`: the errors before any process starts, the output of a dry run, and a run from start to report."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from support.command import Run, refused
from support.nursery import Nursery


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that comes after a process was started is no refusal."""
    for starter in ("run", "Popen"):
        monkeypatch.setattr(subprocess, starter, lambda *_, **__: pytest.fail("a process was started"))


REFUSED: dict[str, tuple[list[str], str]] = {
    "more devices than there are": (["--dp-shard", "512"], "the layout is for 512 devices"),
    "a model of another kind": (["mamba2-130m"], "the trainer cannot build mamba2-130m: model_type 'mamba2'"),
    "a file that is no model": (
        [str(Path(__file__).parents[2] / "models" / "published_params.json")],
        "it has no model_type; the trainer supports bloom, ",
    ),
    "a misspelt model": (["lama-debug"], "did you mean 'llama-debug'"),
    "a weight file of another kind": (["model.gguf"], "--device only applies to training; model.gguf is served"),
    "heads that do not divide": (["--tp", "3"], "tp (3) must divide the heads (8)"),
    "a batch that does not divide": (["--dp-shard", "2", "--batch", "7"], "must divide the batch (7)"),
    "no stages": (["--pp", "0"], "--pp '0': expected a whole number from 1"),
    "a misspelt schedule": (["--pp", "2", "--schedule", "1f2b"], "did you mean '1f1b'"),
    "a misspelt device": (["--device", "gpu"], "expected one of cpu, cuda"),
    "a misspelt recompute": (["--recompute", "fully"], "did you mean 'full'"),
    "an unsupported precision": (["--precision", "fp8"], "--precision fp8 needs a GPU with 8-bit products"),
    "a target that the model lacks": (
        ["--finetune", "lora:8:wo"],
        "the model has no module 'wo'; its linear layers are q_proj, k_proj",
    ),
    "a method that does not exist": (["--finetune", "lra:8"], "unknown fine-tuning method 'lra:8'; did you mean 'lora'?"),
    "a rank above every layer": (["--finetune", "lora:4096"], "rank 4096 is above the smallest dimension of k_proj"),
    "no such text": (["--data", "nowhere.txt"], "--data 'nowhere.txt': no such file, folder or pattern"),
    "an empty text": (["--data", os.devnull], "no such file, folder or pattern"),
    "a text of another kind": (["--data", __file__], "'.py' is not one of .txt, .jsonl"),
    "a tokenizer for a larger model": (
        ["--tokenizer", "bpe:4096"],
        "token ids up to 4095, but llama-debug has a vocabulary of 512",
    ),
    "no such tokenizer": (["--tokenizer", "nowhere"], "expected bytes, bpe:N, HF's tokenizer.json or its folder"),
    "a key for no file": (["--text-key", "body"], "--text-key body only applies to .jsonl"),
    "half of several machines": (["--nodes", "2"], "--nodes 2 needs --node-rank (0 to 1) and --rendezvous"),
    "a misspelt policy": (["--on-nan", "skp"], "did you mean 'skip'"),
    "no time": (["--timeout", "0s"], "expected at least 1s"),
    "a time that is none": (["--timeout", "soon"], "'soon'"),
    "a profile of no steps": (["--profile", "3"], "expected START:COUNT, such as 5:3"),
    "a profile behind the last step": (["--profile", "9:1", "--steps", "8"], "starts at step 9, but the run has 8 steps"),
    "a snapshot of GPU memory on a CPU": (["--memory-snapshot"], "this run is on a CPU"),
    "lengths without a report": (["--report-lengths", "64"], "--report-lengths requires --report"),
    "lengths that are none": (["--report", "--report-lengths", "64,64"], "expected different lengths"),
    "a sweep of nothing": (["--sweep", ""], "expected axis=values, such as 'mbs=1,2,4 tp=1,2'"),
    "a sweep of what is given": (["--sweep", "mbs=1,2", "--mbs", "4"], "--sweep varies mbs: drop --mbs"),
    "a sweep of the given batch": (["--sweep", "batch=1,2", "--batch", "4"], "--sweep varies batch: drop --batch"),
    "an endless learning rate": (["--lr", "inf"], "--lr 'inf': expected a number from 0"),
    "three of two heads": (["--tp", "3"], "(tp 1, 2 or 4 would work)"),
    "three for a batch of eight": (["--dp-shard", "3"], "(dp-shard 1, 2 or 4 would work)"),
    "a micro-batch that does not divide": (["--mbs", "3"], "(mbs 1, 2 or 4 would work)"),
    "a flag of serving": (["--port", "1"], "--port only applies to serving; llama-debug is trained"),
    "a folder without weights": (["--weights", "nowhere"], "--weights nowhere: no such folder or .safetensors file"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("nothing_starts")
def test_refused_in_one_line_before_anything_starts(run: Run, name: str) -> None:
    arguments, words = REFUSED[name]
    assert words in refused(run("run", *([] if "--device" in arguments else ["--device", "cpu"]), *arguments))


def plan(run: Run, path: Path, *more: str) -> None:
    asked = ["plan", "llama-debug", "--on", "1x2xcpu", "--batch", "8", "--seq", "64", "--framework", "meshwise"]
    done = run(*asked, "--out", str(path), *more)
    assert done.code == 0, done.err


@pytest.mark.usefixtures("nothing_starts")
def test_refused_where_axes_beside_a_plan_make_another_number_of_devices(run: Run, tmp_path: Path) -> None:
    plan(run, tmp_path / "plan.json", "--fix", "tp=2")
    message = refused(run("run", str(tmp_path / "plan.json"), "--device", "cpu", "--tp", "1"))
    assert "the plan is for 2 devices, but the axes given with it multiply to 1" in message


@pytest.mark.usefixtures("nothing_starts")
def test_refused_where_a_plan_is_for_more_devices_than_there_are(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(run, tmp_path / "plan.json", "--fix", "tp=2")
    monkeypatch.setattr("meshwise.run.train.launch.MAX_PROCESSES_PER_CORE", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert "the layout is for 2 devices" in refused(run("run", str(tmp_path / "plan.json"), "--device", "cpu"))


@pytest.mark.usefixtures("nothing_starts")
def test_refused_where_a_plan_is_for_gpus_and_none_is_here(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwise.catalogue.here.gpus", list)
    done = run(
        "plan",
        "llama-3.2-1b",
        "--on",
        "1xh200",
        "--batch",
        "8x2048",
        "--framework",
        "meshwise",
        "--out",
        str(tmp_path / "p.json"),
    )
    assert done.code == 0, done.err
    message = refused(run("run", str(tmp_path / "p.json")))
    assert "the plan is for 1xh200, but this machine has no GPU; --device cpu trains it on the CPU anyway" in message


@pytest.mark.usefixtures("nothing_starts")
def test_refused_where_a_gpu_is_asked_for_and_none_is_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwise.catalogue.here.gpus", list)
    assert "this machine has no NVIDIA GPU; --device cpu" in refused(run("run", "--device", "cuda"))


@pytest.mark.usefixtures("nothing_starts")
def test_refused_without_torch_with_the_command_that_installs_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs PyTorch, which is not installed: pip install 'torch>=" in refused(run("run", "--device", "cpu"))


def test_a_dry_run_is_short_and_lists_every_weight_when_asked(run: Run) -> None:
    words = ("run", "--device", "cpu", "--dp-shard", "2", "--tp", "2", "--dry-run")
    short, long = run(*words), run(*words, "--verbose")
    assert (short.code, short.err, long.code) == (0, "", 0)
    assert len(short.out.splitlines()) < 40
    assert short.out.count("gate_proj") == 1
    assert long.out.count("gate_proj") == 4


def test_help_fits_a_screen_and_lists_every_flag_when_asked(run: Run) -> None:
    short, long = run("run", "--help"), run("run", "--help-all")
    assert len(short.out.splitlines()) <= 47
    for flag in ("--tp", "--lr", "--data", "--nodes", "--port", "--rdzv-endpoint", "--no-compile", "--no-graph"):
        assert re.search(rf"{flag}\b", long.out), flag


@pytest.mark.slow
def test_a_plan_is_trained_and_compared_with_its_prediction(run: Run, tmp_path: Path) -> None:
    plan(run, tmp_path / "plan.json", "--fix", "tp=2,mbs=4")
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "plan.json"), "--device", "cpu", "--steps", "5", "--save", "--out", str(out)]
    words += ["--profile", "4:1", "--tensorboard"]
    asked = "import sys; from meshwise.ui.cli.main import main; sys.argv[0] = 'meshwise'; main()"
    done = subprocess.run([sys.executable, "-c", asked, *words], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == [f"step {i}/5" for i in range(1, 6)]
    report = done.stdout.split("predicted and measured")[1]
    for words in (
        "tokens/s per device",
        "matrix products",
        "start to the end of the first step",
        "largest over mean",
        "suggested next",
    ):
        assert words in report, words
    assert "the prediction is for a generic 16-core CPU, not for this machine" in report
    assert "| tokens/s per device |" in (out / "report.md").read_text()
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert steps[0]["loss"] == pytest.approx(math.log(512), rel=0.05)  # an untrained model of 512 tokens knows nothing
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    for step in steps:
        assert set(step["phases"]) == {"data", "forward", "backward", "reduce", "optimizer"}
        assert sum(step["phases"].values()) < step["seconds"]
    ranks = [(one["rank"], one["at"]["tp"], one["tokens"]) for one in json.loads((out / "ranks.json").read_text())]
    assert ranks == [(0, 0, 512), (1, 1, 512)]  # tp ranks read the same 8 x 64 tokens
    traced = {event["name"] for event in json.loads((out / "trace-rank0.json").read_text())["traceEvents"]}
    assert {"forward", "backward", "optimizer"} <= traced
    assert list((out / "tensorboard").iterdir())
    row: dict[str, Any] = json.loads((out / "measurement.jsonl").read_text())
    assert (row["n_gpus"], row["tp"], row["global_batch_seqs"], row["micro_batch"], row["gpu"]) == (2, 2, 8, 4, "cpu")
    assert json.loads((out / "config.json").read_text())["layout"]["tp"] == 2
    assert json.loads((out / "environment.json").read_text())["devices"] == 2
    assert (out / "weights" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_users_own_text_is_tokenized_and_trained_on(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"body": f"Ada counts to {i}, and the river turns. " * 9}) + "\n" for i in range(60)))
    words = ["run", "--device", "cpu", "--steps", "4", "--batch", "4", "--seq", "32", "--out", str(tmp_path / "out")]
    words += ["--data", str(text), "--text-key", "body", "--tokenizer", "bpe:300", "--save"]
    asked = "import sys; from meshwise.ui.cli.main import main; sys.argv[0] = 'meshwise'; main()"
    done = subprocess.run([sys.executable, "-c", asked, *words], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(f"learning bpe:300 from {text}")
    steps = [json.loads(line) for line in (tmp_path / "out" / "steps.jsonl").read_text().splitlines()]
    assert steps[-1]["loss"] < steps[0]["loss"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (file,) = config["data"]
    assert Path(file["path"]).is_file()
    assert config["text"] == f"{text}, tokenizer bpe:300"
    kept, beside = tmp_path / "out" / "tokenizer.json", tmp_path / "out" / "weights" / "tokenizer.json"
    assert kept.read_bytes() == beside.read_bytes()


@pytest.mark.slow
def test_conversations_are_packed_and_an_adapter_is_left_for_peft(tmp_path: Path) -> None:
    rows = [{"prompt": f"what is {i} + {i}? ", "completion": f"it is {2 * i}"} for i in range(40)]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [
        sys.executable,
        "-m",
        "meshwise",
        "run",
        "--device",
        "cpu",
        "--finetune",
        "lora:4",
        "--data",
        "chat.jsonl",
        "--pack",
    ]
    done = subprocess.run(
        [*command, "--batch", "4x64", "--steps", "3", "--merge"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "40 conversations in" in done.stdout
    assert "lora of rank 4 and alpha 8 on q_proj" in done.stdout
    assert {path.name for path in (tmp_path / "run" / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert (tmp_path / "run" / "weights" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_loss_of_the_125m_model_falls_on_the_embedded_text(nursery: Nursery, tmp_path: Path) -> None:
    asked = TrainRun("llama-125m", device="cpu", batch=1, seq=32, steps=4, out=str(tmp_path))
    prepare(asked).settings.write(tmp_path / "config.json")
    nursery.run("-m", "meshwise.workers.trainer", str(tmp_path / "config.json"))
    losses = [json.loads(line)["loss"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert losses[0] == pytest.approx(math.log(50257), rel=0.05)  # an untrained model knows nothing
    assert losses[-1] < losses[0] - 2  # that all bytes are letters is soon learned
