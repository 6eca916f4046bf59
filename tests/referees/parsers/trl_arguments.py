"""TRL's own parser, with SFTConfig (which is the Trainer's TrainingArguments) and ModelConfig."""

from typing import Any

import judge
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser  # pyright: ignore[reportMissingImports]


def take(case: dict[str, Any]) -> dict[str, Any]:
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    words = [*case["words"], "--use_cpu", "true", "--dataset_name", "x"]
    _, training, _ = parser.parse_args_and_config(args=words)
    batch = {"mbs": training.per_device_train_batch_size, "accumulation": training.gradient_accumulation_steps}
    return batch | {"seq": training.max_length}


judge.answer(take)
