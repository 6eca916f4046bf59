"""Run on a GPU with the name of a method: losses of a few steps, launched kernel by kernel and captured with compiled blocks, as JSON."""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.data.samples import batch_of
from meshwise.workers.trainer.gradients import trained_parameters
from meshwise.workers.trainer.optimizer import make_optimizer
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.passes import Passes
from meshwise.workers.trainer.step import Stepper

SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.1,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES | {"model_type": "llama"},
    "qwen2": SIZES | {"model_type": "qwen2"},
    "phi3": SIZES | {"model_type": "phi3"},
    "gpt2": {"model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128},
}
RATES = {"gpt2": 2e-3}
"""Learning rates of families that diverge at 1e-2: GPT-2's loss rose from 4.9 to 6.1 in its fifth step there, and differences of rounding
grew to 1.2% (H200, 2026-11-18)."""


def losses(model: dict[str, Any], finetune: FinetuneMethod, **options: Any) -> list[float]:
    layout = Layout(mbs=4, recompute="full" if options.pop("checkpoint", False) else "none")
    settings = Settings(
        name="tiny",
        model=model,
        layout=layout,
        batch=4,
        seq=128,
        steps=8,
        warmup=1,
        device="cuda",
        lr=RATES.get(str(model["model_type"]), 1e-2),
        finetune=finetune,
        **options,
    )
    ranks = Ranks.of(layout, "cuda")
    passes = Passes(settings, ranks, torch.device("cuda"))
    parameters = trained_parameters(passes.models)
    stepper = Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)
    found = [stepper.launch(step, *(part.pin_memory() for part in batch_of(settings, 0))).numbers for step in range(8)]
    torch.cuda.synchronize()
    return [float(numbers[0]) for numbers in found]


def main(method: str) -> None:
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{29500 + os.getpid() % 500}", rank=0, world_size=1)
    finetune = (
        FinetuneMethod(method=method, frozen_layers=1)
        if method == "freeze"
        else FinetuneMethod(method=method, rank=16, alpha=32.0, targets=("all-linear",))
    )
    rows: dict[str, Any] = {}
    for name, model in FAMILIES.items() if method == "lora" else [("llama", FAMILIES["llama"])]:
        plain = losses(model, finetune, compile=False, graph=False)
        rows[name] = {"plain": plain, "captured": losses(model, finetune, compile=True, graph=True)}
    recomputed = losses(FAMILIES["llama"], finetune, compile=True, graph=True, checkpoint=True)
    rows["recomputed"] = {"plain": rows["llama"]["plain"], "captured": recomputed}
    print(json.dumps(rows))


main(sys.argv[1])
