"""LLaMA-Factory's own parser of its YAML. Its check that torchrun started it, which follows, needs several processes."""

import os
from typing import Any

os.environ["DISABLE_VERSION_CHECK"] = "1"

import judge
import yaml
from llamafactory.hparams import parser  # pyright: ignore[reportMissingImports]

FILLED = {"dataset": "x", "template": "llama3", "output_dir": "out", "learning_rate": 1e-5, "use_cpu": True}


def take(case: dict[str, Any]) -> dict[str, Any]:
    with open("llama_factory.yaml", encoding="utf-8") as file:
        values = yaml.safe_load(file)
    _, data, training, *_ = parser._parse_train_args(values | (FILLED if case["filled"] else {"use_cpu": True}))
    if not isinstance(training.learning_rate, float):
        raise TypeError(f"learning_rate {training.learning_rate}")
    batch = {"mbs": training.per_device_train_batch_size, "accumulation": training.gradient_accumulation_steps}
    return batch | {"seq": data.cutoff_len}


judge.answer(take)
