"""Runs of experts, 8 bits, windows and documents that cannot work are refused in one line before a process starts."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue import here
from meshwise.catalogue.chips import find_chip
from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from support.command import one_line
from support.tiny_runs import LLAMA

SIZES = LLAMA | {"max_position_embeddings": 64, "rms_norm_eps": 1e-5}
MIXTRAL = SIZES | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "more choices than experts": (
        MIXTRAL | {"num_experts_per_tok": 5}, {}, "the router chooses 5 experts per token, but a layer has 4; lower num_experts_per_tok",
    ),
    "ep that does not divide the experts": (MIXTRAL, {"ep": 3, "dp_shard": 3, "batch": 6}, "ep (3) must divide the experts (4)"),
    "ep that does not divide the ranks": (MIXTRAL, {"ep": 4, "dp_shard": 2}, "ep (4) must divide dp_shard x cp x tp (2 x 1 x 1)"),
    "ep without experts": (SIZES, {"ep": 2, "dp_shard": 2}, "ep (2) above 1 needs a model with experts"),
    "8 bits on a CPU": (SIZES, {"precision": "fp8"}, "--precision fp8 needs a GPU with 8-bit products, such as an H100 or newer"),
    "8 bits with a scale per row on a CPU": (SIZES, {"precision": "fp8-row"}, "--precision fp8-row needs a GPU with 8-bit products"),
    "documents without ends": (SIZES, {"pack": True}, "--pack: the embedded text has no documents"),
    "validation without a text": (SIZES, {"eval_data": "nowhere.txt"}, "--eval-data 'nowhere.txt': no such file"),
    "a dashboard that is not installed": (SIZES, {"track": "wandb"}, "--track wandb needs wandb, which is not installed"),
    "metrics in place of a folder": (SIZES, {"metrics_file": "."}, "is a folder; expected the path of a file, such as run.prom"),
    "metrics in a folder that does not exist": (SIZES, {"metrics_file": "nowhere/run.prom"}, "nowhere does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked, words = REFUSED[name]
    (tmp_path / "tiny.json").write_text(json.dumps(model), encoding="utf-8")
    for starter in ("run", "Popen"):
        monkeypatch.setattr(subprocess, starter, lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(UserError) as error:
        prepare(TrainRun(str(tmp_path / "tiny.json"), device="cpu", **asked))
    assert words in one_line(error.value)


@pytest.mark.parametrize("precision", ["fp8", "fp8-row"])
def test_8_bits_are_refused_on_a_gpu_without_them(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA A100-SXM4-80GB"])
    with pytest.raises(UserError) as error:
        prepare(TrainRun("llama-125m", precision=precision, batch=8, seq=64))
    assert f"--precision {precision} needs a GPU with 8-bit products" in one_line(error.value)
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA H200"])
    made = prepare(TrainRun("llama-125m", precision=precision, batch=8, seq=64)).settings
    assert made.split_weights
    assert made.facts["peak"] == find_chip("h200").flops["fp8"]  # of which the report states a share


def test_moments_of_16_bits_are_refused_where_no_kernel_updates_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"batch": 8, "seq": 64, "moments": "bf16"}
    with pytest.raises(UserError) as error:
        prepare(TrainRun("llama-125m", device="cpu", **asked))
    assert "moments in bf16 need precision bf16 or fp8 and one GPU (given: fp32 on 1 x cpu)" in one_line(error.value)
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA H200", "NVIDIA H200"])
    with pytest.raises(UserError) as error:
        prepare(TrainRun("llama-125m", dp_shard=2, **asked))
    assert "(given: bf16 on 2 x cuda)" in one_line(error.value)
    short = prepare(TrainRun("llama-125m", **asked))
    asked["moments"] = ""
    long = prepare(TrainRun("llama-125m", **asked))
    assert (short.settings.moments, long.settings.moments) == ("bf16", "fp32")
    saved = long.predicted().memory["optimizer"] - short.predicted().memory["optimizer"]
    assert saved == pytest.approx(4 * short.model.params, rel=0.01)
    assert short.predicted().step < long.predicted().step


def test_dashboards_and_schedules_are_checked_by_name() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"track": "mlflow"}, "wandb or trackio"),
        ({"lr_schedule": "steps"}, "cosine"),
        ({"eval_every": 5}, "--eval-data"),
    ]
    for asked, words in cases:
        with pytest.raises(UserError) as error:
            TrainRun(**asked)
        assert words in one_line(error.value)


def test_a_window_longer_than_the_sequence_is_said(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(SIZES | {"model_type": "mistral", "sliding_window": 48}), encoding="utf-8")
    short, long = (prepare(TrainRun(str(tmp_path / "tiny.json"), device="cpu", seq=seq)).notes for seq in (32, 64))
    assert short == ["the model's window of 48 tokens covers the whole sequence of 32: no token is left out"]
    assert long == []
