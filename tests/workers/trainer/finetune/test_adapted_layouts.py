"""Adapters have the gradients of one process in every layout, and frozen weights have none."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.nursery import Nursery
from support.tiny_runs import DEEPSEEK, LLAMA, TIED

LORA: dict[str, Any] = {"method": "lora", "rank": 4, "alpha": 8.0, "targets": ["all-linear"]}
DORA = LORA | {"method": "dora"}
QLORA = LORA | {"method": "qlora"}
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 16, "initializer_range": 0.1,
}  # fmt: skip
PHI3 = LLAMA | {"model_type": "phi3"}
LAYOUTS: dict[int, dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {
    2: {
        "LoRA FSDP2": (LLAMA, LORA, {"dp_shard": 2}),
        "LoRA FSDP2, full recompute": (TIED, LORA, {"dp_shard": 2, "recompute": "full"}),
        "LoRA copies": (LLAMA, LORA, {"dp_replicate": 2}),
        "LoRA TP2": (LLAMA, LORA, {"tp": 2}),
        "LoRA of queries and values TP2": (TIED, LORA | {"targets": ["q_proj", "v_proj"]}, {"tp": 2}),
        "LoRA CP2": (LLAMA, LORA, {"cp": 2}),
        "LoRA PP2": (TIED, LORA, {"pp": 2}),
        "DoRA FSDP2": (LLAMA, DORA, {"dp_shard": 2}),
        "DoRA TP2": (LLAMA, DORA, {"tp": 2}),
        "DoRA PP2": (LLAMA, DORA, {"pp": 2}),
        "QLoRA FSDP2": (LLAMA, QLORA, {"dp_shard": 2}),
        "QLoRA copies, full recompute": (LLAMA, QLORA, {"dp_replicate": 2, "recompute": "full"}),
        "QLoRA PP2": (LLAMA, QLORA, {"pp": 2}),
        "packed LoRA TP2": (PHI3, LORA, {"tp": 2}),
        "packed DoRA FSDP2": (PHI3, DORA, {"dp_shard": 2}),
        "GPT-2 LoRA TP2": (GPT2, LORA, {"tp": 2}),
        "GPT-2 LoRA FSDP2": (GPT2, LORA, {"dp_shard": 2}),
        "DeepSeek V3 LoRA TP2": (DEEPSEEK, LORA, {"tp": 2}),
        "frozen layers FSDP2": (LLAMA, {"method": "freeze", "frozen_layers": 2}, {"dp_shard": 2}),
        "frozen layers TP2": (TIED, {"method": "freeze", "frozen_layers": 1}, {"tp": 2}),
    },
    4: {
        "LoRA FSDP2xTP2": (LLAMA, LORA, {"dp_shard": 2, "tp": 2}),
        "DoRA TP2xPP2": (LLAMA, DORA, {"tp": 2, "pp": 2}),
        "packed LoRA FSDP2xTP2": (PHI3, LORA, {"dp_shard": 2, "tp": 2}),
    },
}
Seen = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def measured(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Seen]:
    """Run all layouts of a number of processes in one launch: starting processes takes longer than the layouts do."""

    @cache
    def of(processes: int) -> Seen:
        cases = {
            name: {
                "name": "tiny",
                "model": model,
                "finetune": finetune,
                "layout": {"mbs": 2 if layout.get("pp", 1) * layout.get("dp_shard", 1) == 1 else 1} | layout,
                "batch": 8,
                "seq": 16,
                "precision": "fp32",
                "answers": "LoRA" in name,
            }
            for name, (model, finetune, layout) in LAYOUTS[processes].items()
        }
        worker = Path(__file__).with_name("adapted_layouts_worker.py")
        return nursery.measure(worker, cases, tmp_path_factory.mktemp("layouts"), processes)

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), [(n, name) for n, names in LAYOUTS.items() for name in names])
def test_gradients_loss_and_norm_equal_those_of_one_process(measured: Callable[[int], Seen], processes: int, name: str) -> None:
    seen = measured(processes)[name]
    assert seen["count"] > 0
    assert seen["frozen"] == 0
    assert max(seen["gradients"], seen["loss"], seen["norm"]) < 1e-5, seen
