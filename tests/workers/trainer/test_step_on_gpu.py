"""A step replayed as a CUDA graph trains every family as a step that is launched kernel by kernel; skipped without a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwise.workers.trainer.settings import Layout, Settings
from support.nursery import Nursery
from support.tiny_runs import losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4},
    "bloom": {"hidden_size": 128, "n_layer": 2, "n_head": 4},
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "ttt": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_step_computes_the_same_losses(nursery: Nursery, tmp_path: Path, family: str) -> None:
    model = {"model_type": family, "vocab_size": 256} | FAMILIES[family]
    captured = Settings(name="tiny", model=model, layout=Layout(mbs=4), batch=8, seq=64, steps=8, device="cuda")
    launched = replace(captured, graph=False)
    ours, theirs = (losses(nursery, one, tmp_path / str(one.graph)) for one in (captured, launched))
    assert len(ours) == captured.steps
    assert ours == pytest.approx(theirs, rel=2e-3)
