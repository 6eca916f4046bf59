"""`run --save` writes a folder that transformers opens unchanged, with the numbers of the trained model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.generate import load
from support.nursery import Nursery
from support.trainer_process import TINY

BLOOM: dict[str, Any] = {"model_type": "bloom", "vocab_size": 256, "hidden_size": 32, "n_layer": 2, "n_head": 4}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
ROPE = {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, int | str]]] = {
    "Llama, tied, of two stages": (TINY, {"pp": 2}),
    "Llama with stretched positions": (
        TINY | {"tie_word_embeddings": False, "rope_scaling": ROPE | {"original_max_position_embeddings": 8}},
        {},
    ),
    "BLOOM": (BLOOM, {}),
    "GPT-2": (GPT2, {}),
}


def trained(nursery: Nursery, folder: Path, config: dict[str, Any], axes: dict[str, int | str]) -> Settings:
    (folder / "model.json").write_text(json.dumps(config), encoding="utf-8")
    run = TrainRun(str(folder / "model.json"), device="cpu", seq=16, steps=2, save=True, out=str(folder), **axes)  # pyright: ignore[reportArgumentType]
    asked = prepare(run).settings
    asked.write(folder / "config.json")
    nursery.run("-m", "meshwise.workers.trainer", str(folder / "config.json"), processes=asked.layout.devices)
    return asked


@pytest.mark.parametrize("name", CASES)
def test_transformers_opens_the_folder_and_computes_the_same(name: str, nursery: Nursery, tmp_path: Path) -> None:
    config, axes = CASES[name]
    trained(nursery, tmp_path, config, axes)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "weights").eval()
    ours = load(config, tmp_path / "weights", torch.device("cpu"))
    tokens = torch.randint(0, 256, (2, 24))
    assert theirs.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_saving_again_leaves_nothing_of_other_weights(nursery: Nursery, tmp_path: Path) -> None:
    """Two files and their index from one run, and one file from the next: both would be read."""
    trained(nursery, tmp_path, TINY, {"pp": 2})
    assert len([*(tmp_path / "weights").glob("model-*")]) == 2
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    asked = replace(trained(nursery, tmp_path, TINY, {}), tokenizer=True, seed=1)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"config.json", "model.safetensors"}
    asked.write(tmp_path / "config.json")
    nursery.run("-m", "meshwise.workers.trainer", str(tmp_path / "config.json"))
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
