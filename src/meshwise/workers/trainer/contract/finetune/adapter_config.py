"""Adapters in PEFT's format, without their values: adapter_config.json, and the names and shapes of the tensors. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from meshwise.workers.trainer.contract.files.safetensors import WeightsError, format_shape, table
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.finetune.targets import Target, chosen, linear_layers

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # PEFT's prefix of the names of a model's modules
A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
MAX_FILE_BYTES = 1 << 20  # bytes of an adapter_config.json, at most


def expected(config: Mapping[str, Any], finetune: FinetuneMethod) -> dict[str, tuple[int, ...]]:
    """Return the tensors of an adapter by PEFT's names, with their shapes."""
    found: dict[str, tuple[int, ...]] = {}
    for target in chosen(config, finetune.targets):
        found[f"{PREFIX}{target.module}.{A}"] = (finetune.rank, target.inputs)
        found[f"{PREFIX}{target.module}.{B}"] = (target.outputs, finetune.rank)
        if finetune.magnitudes:
            found[f"{PREFIX}{target.module}.{MAGNITUDE}"] = (target.outputs,)
    return found


def config_text(config: Mapping[str, Any], finetune: FinetuneMethod, base: str) -> str:
    """Return the adapter_config.json with which PEFT opens an adapter; `base` is the model it belongs to."""
    targets = chosen(config, finetune.targets)
    values: dict[str, Any] = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": finetune.rank,
        "lora_alpha": int(finetune.alpha) if finetune.alpha == int(finetune.alpha) else finetune.alpha,
        "lora_dropout": finetune.dropout, "target_modules": _words(linear_layers(config), targets),
        "fan_in_fan_out": any(target.stored.transposed for target in targets), "use_dora": finetune.magnitudes,
        "use_rslora": False, "bias": "none", "init_lora_weights": True, "inference_mode": True, "modules_to_save": None,
    }  # fmt: skip
    return json.dumps(values, indent=2) + "\n"


def _words(every: list[Target], targets: list[Target]) -> list[str]:
    """Return the last words of the targets' names if they stand for no other layer, else the whole names."""
    words = list(dict.fromkeys(target.word for target in targets))
    return words if sum(target.word in words for target in every) == len(targets) else [target.module for target in targets]


def read_finetune(folder: Path) -> FinetuneMethod:
    """Return the method, rank, scale and targets of an adapter. WeightsError if it is none that the trainer can continue."""
    path = folder / CONFIG
    try:
        with path.open("rb") as file:
            values: object = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        raise WeightsError(f"{folder} holds no adapter of PEFT: it has no readable {CONFIG}") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path} is not a JSON object")
    given = cast("dict[str, Any]", values)
    rank, alpha, targets = given.get("r"), given.get("lora_alpha"), given.get("target_modules")
    if given.get("peft_type") != "LORA" or type(rank) is not int or not 1 <= rank <= 65536 or not _is_number(alpha):
        raise WeightsError(f"{path}: expected peft_type LORA with a rank r and a lora_alpha")
    words = [targets] if isinstance(targets, str) else targets
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in cast("list[object]", words)):
        raise WeightsError(f"{path}: target_modules must be a list of names")
    other = next((key for key in ("use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern") if given.get(key)), "")
    if other or given.get("bias", "none") != "none":
        raise WeightsError(f"{path}: {other or 'bias'} is not supported; the trainer has plain LoRA and DoRA")
    method = "dora" if given.get("use_dora") else "lora"
    return FinetuneMethod(method=method, rank=rank, alpha=float(cast(float, alpha)), targets=tuple(cast("list[str]", words)))


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 < cast(float, value) < 1e9


def check(config: Mapping[str, Any], finetune: FinetuneMethod, label: str, folder: Path) -> None:
    """Refuse an adapter whose tensors are not those of this model and method, by the header of its file."""
    stored, needed = table(folder / TENSORS), expected(config, finetune)
    for name, shape in needed.items():
        if name not in stored:
            raise WeightsError(f"{folder / TENSORS}: lacks {name}, which {finetune.method} of {label} needs")
        if stored[name].shape != shape:
            raise WeightsError(
                f"{folder / TENSORS}: {name} is {format_shape(stored[name].shape)}, but {label} needs {format_shape(shape)}"
            )
    other = next((name for name in stored if name not in needed), "")
    if other:
        raise WeightsError(f"{folder / TENSORS}: holds {other}, which {finetune.method} of {label} does not have")
