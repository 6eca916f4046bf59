"""torchtune's `tune validate`: every component exists and takes its arguments."""

from typing import Any

import judge
from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]
from torchtune import config  # pyright: ignore[reportMissingImports]

FILLED = {
    "output_dir": "out", "dataset._component_": "torchtune.datasets.text_completion_dataset", "tokenizer.path": "t",
    "checkpointer.checkpoint_dir": "c", "checkpointer.checkpoint_files": ["a"], "optimizer.lr": 1e-5,
}  # fmt: skip


def take(case: dict[str, Any]) -> dict[str, Any]:
    read = OmegaConf.load("torchtune.yaml")
    for key, value in FILLED.items() if case["filled"] else ():
        OmegaConf.update(read, key, value)
    config.validate(read)
    return {"mbs": read.batch_size, "accumulation": read.gradient_accumulation_steps, "seq": read.tokenizer.max_seq_len}


judge.answer(take)
