"""Make data/programs/torchtitan-0.3.json: the configurations that torchtitan 0.3 registers, as values that differ from its defaults.

    PYTHONPATH=FOLDER python tools/torchtitan_configs.py      FOLDER holds an unpacked torchtitan 0.3 wheel; its requirements are installed

Nothing of torchtitan runs on a device: configurations that ask for a capability of the GPU are told that it is there.
"""

import dataclasses
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src/meshwise/data/programs/torchtitan-0.3.json"
MODULES = ("llama3", "qwen3", "deepseek_v3", "gpt_oss")
RECOMPUTE = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory-budget"}
PRECISIONS = {"MXFP8": "mxfp8", "NVFP4": "nvfp4", "Float8": "fp8"}
"""Words in the description of a converted model, and the precision that they stand for."""


def registered(module: str) -> dict[str, Any]:
    """Return the functions of a module that make a configuration, by name."""
    registry = importlib.import_module(f"torchtitan.models.{module}.config_registry")
    return {
        name: function
        for name, function in vars(registry).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and function.__module__ == registry.__name__
        and not inspect.signature(function).parameters
    }


def values(module: str, config: Any) -> dict[str, Any]:
    """Return what a configuration states, by torchtitan's dotted names."""
    usual = type(config.parallelism)()
    stated = {field.name: getattr(config.parallelism, field.name) for field in dataclasses.fields(usual)}
    changed = {
        f"parallelism.{name}": value
        for name, value in stated.items()
        if value != getattr(usual, name) and isinstance(value, int | str) and name != "spmd_backend"
    }
    training, recompute = config.training, config.activation_checkpoint
    batch = {} if training.global_batch_size == -1 else {"training.global_batch_size": training.global_batch_size}
    converted = str(getattr(config.model_spec, "model", None))
    return {
        "module": module,
        "flavor": getattr(config.model_spec, "flavor", None),
        "training.local_batch_size": training.local_batch_size,
        "training.seq_len": training.seq_len,
        "training.steps": training.steps,
        **batch,
        **changed,
        "activation_checkpoint": RECOMPUTE[type(recompute).__qualname__.split(".")[0]] if recompute is not None else "none",
        "loss": "chunked" if "Chunked" in type(config.loss).__qualname__ else "materialised",
        "compile.enable": config.compile.enable,
        "precision": next((name for word, name in PRECISIONS.items() if word in converted), "bf16"),
    }


def main() -> None:
    setattr(importlib.import_module("torchtitan.tools.utils"), "has_cuda_capability", lambda *_, **__: True)  # noqa: B010
    rows = {name: values(module, make()) for module in MODULES for name, make in registered(module).items()}
    TARGET.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
