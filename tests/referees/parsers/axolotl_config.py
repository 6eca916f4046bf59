"""Axolotl's own schemas, on a machine of 64 H100."""

from typing import Any

import judge
import stubs
import yaml

stubs.install()
from axolotl.utils.schemas.config import AxolotlConfigWCapabilities, AxolotlInputConfig  # pyright: ignore[reportMissingImports]  # noqa: E402

MACHINE = {"bf16": True, "fp8": True, "tf32": True, "n_gpu": 64, "n_node": 8, "compute_capability": "sm_90"}
FILLED = {"datasets": [{"path": "x", "type": "alpaca"}], "output_dir": "out", "learning_rate": 1e-5, "num_epochs": 1}


def take(case: dict[str, Any]) -> dict[str, Any]:
    with open("axolotl.yaml", encoding="utf-8") as file:
        values = yaml.safe_load(file)
    values |= FILLED if case["filled"] else {}
    unknown = set(values) - set(AxolotlInputConfig.model_fields)
    if unknown:
        raise ValueError(f"no such keys: {sorted(unknown)}")
    read = AxolotlConfigWCapabilities(**values, capabilities=MACHINE, env_capabilities={"torch_version": "2.13.0"})
    return {
        "tp": read.tensor_parallel_size or 1, "cp": read.context_parallel_size or 1, "mbs": read.micro_batch_size,
        "accumulation": read.gradient_accumulation_steps, "seq": read.sequence_len,
    }  # fmt: skip


judge.answer(take)
