"""A TrainRun as a Launch: this machine's chip, a divided batch, and the planner's own prediction."""

from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue import here
from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from meshwise.workers.trainer.contract.settings import Layout
from support.command import Run, one_line


@pytest.fixture
def eight_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA H200"] * 8)


@pytest.mark.usefixtures("eight_h200")
def test_a_gpu_is_found_in_the_catalogue_for_mfu_and_the_prediction() -> None:
    ready = prepare(TrainRun(what="llama-3.2-1b", dp_shard=8, batch=64, seq=2048))
    assert (ready.settings.device, ready.settings.precision, ready.on) == ("cuda", "bf16", "1x8xh200")
    # NVIDIA's datasheet: 989 TFLOP/s in bf16 without sparsity, 141 GB
    assert ready.settings.facts["peak"] == pytest.approx(989e12, rel=1e-2)
    assert ready.settings.facts["capacity"] == pytest.approx(141e9, rel=0.08)
    assert ready.settings.facts["params"] == 1_235_814_400  # HF's model card of Llama-3.2-1B: 1.23B


@pytest.mark.usefixtures("eight_h200")
def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(UserError) as error:
        prepare(TrainRun(dp_shard=16, batch=16))
    assert "the layout is for 16 devices, but this machine has 8 GPUs" in one_line(error.value)


@pytest.mark.usefixtures("eight_h200")
def test_the_prediction_equals_that_of_plan_for_the_same_layout(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    asked = ["llama-3.2-1b", "--on", "1x8xh200", "--batch", "64x2048", "--framework", "meshwise", "--out", path]
    assert run("plan", *asked).code == 0
    from meshwise.plan.train.plan import read

    best = read(Path(path)).choices[0]
    assert prepare(TrainRun(what=path)).predicted().step == pytest.approx(best.step)


@pytest.mark.parametrize(
    ("axes", "batch", "mbs"),
    [
        ({}, 8, 8),
        ({"dp_shard": 2}, 8, 4),
        ({"pp": 2}, 8, 2),
        ({"pp": 2}, 2, 1),
        ({"pp": 2, "dp_shard": 2, "tp": 2}, 8, 1),
        ({"mbs": 2}, 8, 2),
    ],
)
def test_a_micro_batch_left_open_gives_a_pipeline_two_rounds_where_the_batch_has_them(axes: Any, batch: int, mbs: int) -> None:
    settings = prepare(TrainRun(**axes, batch=batch, device="cpu")).settings
    assert settings.layout == Layout(**(axes | {"mbs": mbs}))


def test_a_plan_for_another_precision_is_refused(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    asked = [
        "llama-debug",
        "--on",
        "1x2xh200",
        "--batch",
        "8x64",
        "--framework",
        "meshwise",
        "--precision",
        "mxfp8",
        "--out",
        path,
    ]
    assert run("plan", *asked).code == 0
    with pytest.raises(UserError, match="is for mxfp8 and adamw"):
        prepare(TrainRun(what=path, device="cpu"))


def test_a_text_is_checked_first_and_tokenized_only_when_the_run_starts(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Ada waits for the baker. " * 50)
    ready = prepare(TrainRun(device="cpu", data=str(text), out=str(tmp_path / "out")))
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    lines: list[str] = []
    (file,) = ready.tokenize(lines.append).settings.data
    assert (file.count, file.width) == (50 * 25 + 1, 2)
    assert f"{text}, tokenizer bytes: 1,251 tokens, 19 sequences of 64" in lines


def test_ignored_dropout_is_reported() -> None:
    # HF's config of gpt2 asks for 0.1 of everything
    assert prepare(TrainRun(what="gpt2", device="cpu")).notes == [
        "the config has dropout 0.1, which the trainer does not support: it trains without"
    ]
    assert prepare(TrainRun(device="cpu")).notes == []


TWO: dict[str, Any] = {"nodes": 2, "node_rank": 0, "rendezvous": "127.0.0.1:29500"}


def test_cpus_of_several_nodes_are_predicted_over_a_network_that_is_reported_as_assumed() -> None:
    ready = prepare(TrainRun(dp_shard=2, device="cpu", **TWO))
    assert ready.on == "2x1xcpu@10Gbps"
    (note,) = ready.notes
    assert "10Gbps between nodes" in note
    hint = note.split("--on ")[1].split()[0]
    named = prepare(TrainRun(dp_shard=2, device="cpu", on=hint, **TWO))
    assert named.notes == []
    assert named.predicted().step < ready.predicted().step  # more Gbps


def test_gpus_without_a_vendor_network_get_the_assumed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA GeForce RTX 4090"])
    assert prepare(TrainRun(dp_shard=2, **TWO)).on == "2x1xrtx4090@10Gbps"
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA H200"])
    assert prepare(TrainRun(dp_shard=2, **TWO)).on == "2x1xh200"


def test_a_model_whose_weights_exceed_the_memory_of_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "host_memory", lambda: 24 * 2**30)
    # 8,030,261,248 parameters of 4 + 4 + 8 bytes are 119.7 GiB, of which five machines of 24 GiB hold a share each
    words = "of llama-3.1-8b need 119.7 GiB on this machine's CPU, which has 24.0 GiB; 5 such machines hold it with --nodes 5 --dp-shard 5"
    with pytest.raises(UserError, match=words):
        prepare(TrainRun(what="llama-3.1-8b", dp_shard=8, device="cpu"))
    prepare(TrainRun(what="llama-3.1-8b", dp_shard=8, device="cpu", dry_run=True))  # nothing starts
    # two copies of 1,235,814,400 x 16 bytes: shared out instead, they fit
    with pytest.raises(UserError, match=r"need 36\.8 GiB .*--dp-shard 2 instead of --dp-replicate needs 18\.4 GiB"):
        prepare(TrainRun(what="llama-3.2-1b", dp_replicate=2, device="cpu"))
    prepare(TrainRun(what="llama-3.2-1b", dp_shard=2, device="cpu"))


def test_a_container_has_the_memory_that_it_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n", encoding="ascii")
    (tmp_path / "unlimited").write_text("max\n", encoding="ascii")
    monkeypatch.setattr(here, "LIMITS", (str(tmp_path / "memory.max"), str(tmp_path / "unlimited")))
    assert here.host_memory() == 2**30
    monkeypatch.setattr(here, "LIMITS", (str(tmp_path / "unlimited"), str(tmp_path / "nowhere")))
    assert here.host_memory() > 2**30
