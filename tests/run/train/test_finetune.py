"""Fine-tuning is checked before any process starts: what a model cannot do is refused in one line, and nothing is written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.finetune import trained_note, trained_share
from meshwise.run.train.launch import BrokenRules, prepare
from meshwise.workers.trainer.contract.finetune.adapter_config import CONFIG, config_text
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.recipe import ADAPTER_RATE, FINETUNE_RATE
from meshwise.workers.trainer.contract.rows import run_columns
from meshwise.workers.trainer.contract.settings import Settings


def ready(tmp_path: Path, **options: Any) -> Settings:
    given: dict[str, Any] = {"what": "llama-debug", "device": "cpu", "out": str(tmp_path / "run")} | options
    return prepare(TrainRun(**given)).settings


def test_a_run_trains_adapters_of_every_linear_layer_with_alpha_twice_the_rank(tmp_path: Path) -> None:
    settings = ready(tmp_path, finetune="lora:8")
    assert settings.finetune == FinetuneMethod(method="lora", rank=8, alpha=16.0, targets=("all-linear",))
    assert settings.lr == ADAPTER_RATE
    assert ready(tmp_path, finetune="full").lr == FINETUNE_RATE
    assert ready(tmp_path, finetune="freeze:1").finetune == FinetuneMethod(method="freeze", frozen_layers=1)
    given = ready(tmp_path, finetune="dora:4:q_proj,v_proj", lora_alpha=4, lora_dropout=0.1, merge=True).finetune
    assert given == FinetuneMethod(method="dora", rank=4, alpha=4.0, dropout=0.1, targets=("q_proj", "v_proj"), merge=True)
    assert ready(tmp_path).finetune == FinetuneMethod()


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    settings = replace(ready(tmp_path, finetune="qlora:4:attention"), answers=True)
    settings.write(tmp_path / "config.json")
    assert Settings.read(tmp_path / "config.json") == settings


def test_the_row_of_a_run_says_what_was_trained(tmp_path: Path) -> None:
    assert run_columns(ready(tmp_path, finetune="lora:8:q_proj"), 1)["tune"] == "lora:8:q_proj"
    assert run_columns(ready(tmp_path, finetune="freeze:1"), 1)["tune"] == "freeze:1"
    assert "tune" not in run_columns(ready(tmp_path), 1)


def test_the_note_counts_what_is_trained(tmp_path: Path) -> None:
    settings = ready(tmp_path, finetune="lora:8:q_proj")
    hidden, layers = settings.model["hidden_size"], settings.model["num_hidden_layers"]
    note = trained_note(settings.finetune, settings.model, 1000)
    assert f"on q_proj: {layers * 8 * 2 * hidden:,} parameters are trained" in note
    assert trained_note(FinetuneMethod(), settings.model, 1000) == ""
    assert trained_share(FinetuneMethod(), settings.model) == 1
    assert trained_share(settings.finetune, settings.model) == 2 / 3
    assert trained_share(FinetuneMethod(method="freeze", frozen_layers=layers), settings.model) == 1 / 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"finetune": "lora:8:q_proj,w_pack"}, "the model has no module 'w_pack'; its linear layers are q_proj, k_proj, v_proj, o_proj"),
        ({"finetune": "lora:9999"}, "is above the smallest dimension of"),
        ({"finetune": "freeze:99"}, "freeze:99 leaves none of the"),
        ({"finetune": "lora:8", "save": True}, "--merge adds them to the weights"),
        ({"merge": True}, "--merge applies to adapters"),
        ({"finetune": "full", "lora_alpha": 3}, "--lora-alpha applies to adapters"),
        ({"finetune": "lora:8", "seq": 1 << 22}, "positions of the model"),
        ({"finetune": "lora:8", "train_on": "all"}, "--train-on all applies to conversations"),
        ({"finetune": "lora:8", "adapter": "nowhere"}, "nowhere holds no adapter of PEFT"),
        ({"what": "ttt-linear-125m", "finetune": "lora:8"}, "needs a model with softmax attention"),
        ({"what": "mixtral-8x7b", "finetune": "qlora:8", "dry_run": True, "on": "1x8xh200"}, "not supported for a model with experts"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_refused_in_one_line(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        ready(tmp_path, **options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"finetune": "qlora:4", "tp": 2}, "qlora has whole 4-bit weights on every rank: it needs tp 1"),
        ({"finetune": "lora:4", "tp": 2, "lora_dropout": 0.1}, "dropout of adapters needs tp 1"),
        ({"finetune": "freeze:1", "pp": 2}, "freeze:1 needs pp 1"),
        ({"finetune": "lora:4", "pp": 2, "schedule": "zbv"}, "cannot split"),
    ],
)
def test_layouts_that_cannot_fine_tune_are_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenRules, match=says):
        ready(tmp_path, **options)


def test_an_adapter_brings_its_own_rank_scale_and_targets(tmp_path: Path) -> None:
    model = ready(tmp_path).model
    folder = tmp_path / "adapter"
    folder.mkdir()
    finetune = FinetuneMethod(method="lora", rank=4, alpha=12.0, targets=("q_proj",))
    (folder / CONFIG).write_text(config_text(model, finetune, "base"))
    with pytest.raises(UserError, match="cannot be read"):  # its tensors are missing
        ready(tmp_path, adapter=str(folder))
    with pytest.raises(UserError, match="is lora:4, but --finetune asks for lora:8"):
        ready(tmp_path, adapter=str(folder), finetune="lora:8")
    values = json.loads((folder / CONFIG).read_text())
    assert values["target_modules"] == ["q_proj"]


def test_conversations_take_the_tokenizer_beside_the_weights(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    weights = tmp_path / "weights"
    weights.mkdir()
    Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")).save(str(weights / "tokenizer.json"))
    (tmp_path / "chat.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    )
    with pytest.raises(UserError, match=r"need a chat template, in tokenizer_config.json"):
        ready(tmp_path, finetune="lora:4", weights=str(weights), data=str(tmp_path / "chat.jsonl"))
