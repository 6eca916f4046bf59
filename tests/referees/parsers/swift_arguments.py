"""ms-swift's own parser of `swift sft`. What follows loads the model."""

from typing import Any

import judge
import stubs

stubs.install("torch_musa", "torchada", "json_repair", "aiohttp")
from swift.arguments import SftArguments  # pyright: ignore[reportMissingImports]  # noqa: E402
from transformers import HfArgumentParser  # pyright: ignore[reportMissingImports]  # noqa: E402

SftArguments.__post_init__ = lambda _: None
PARSER = HfArgumentParser([SftArguments])


def take(case: dict[str, Any]) -> dict[str, Any]:
    (read,) = PARSER.parse_args_into_dataclasses(case["words"])
    batch = {"mbs": read.per_device_train_batch_size, "accumulation": read.gradient_accumulation_steps}
    return batch | {"seq": read.max_length}


judge.answer(take)
