"""Lengths and users as engines write them, and what several engines share."""

import re
from collections.abc import Iterable
from typing import Any

from meshwise.programs.kinds import Kind
from meshwise.runs.run import Run, Stated

_SIZES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


def _length(value: Any) -> int:
    match = re.fullmatch(r"(\d{1,15})(?:\.0)?|(\d+(?:\.\d+)?)([kKmM])", str(value).strip().replace("_", ""))
    if match is None or isinstance(value, bool):
        raise ValueError(value)
    return int(match[1]) if match[1] else int(float(match[2]) * _SIZES[match[3]])


LENGTH = Kind(_length, int, "a length in tokens")  # vLLM takes 4k for 4,000 and 4K for 4,096, so plain numbers are written
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")


def cache_type(facts: Run, name: str = "kv_type") -> Iterable[Stated]:
    """Turn an engine's type of the KV cache into ours: auto is the type of the weights, 16 bits."""
    stated = facts.get(name)
    if stated is None or stated.value is None:
        return [] if stated is None else [facts.derived("kv", None, stated.note, name)]
    text = str(stated.value).lower()
    plain = ("auto", "bfloat16", "bf16", "fp16", "float16", "half")
    known = "fp8" if text in FP8 else "f16" if text in plain else "int8" if text.startswith("int8") else text
    return [facts.meaning("kv", known, name)]


def weight_format(facts: Run, quantization: str = "quantization", dtype: str = "dtype") -> Iterable[Stated]:
    """Return the format of the weights, from a quantization or a type; where neither is said, the checkpoint decides."""
    for name in (quantization, dtype):
        stated = facts.get(name)
        if stated is None or stated.value in (None, "auto", "none", ""):
            continue
        text = str(stated.value).lower()
        plain = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}.get(text, text)
        short = next((known for known in ("awq", "gptq", "fp8", "int8", "nvfp4") if known in plain), plain)
        yield facts.meaning("weights", short, name)
        return


def hosts(facts: Run) -> Iterable[Stated]:
    """Return the nodes of one engine."""
    nodes = facts.get("engine_nodes")
    return [facts.meaning("nodes", nodes.value, "engine_nodes")] if nodes is not None and nodes.value is not None else []


def totals(facts: Run) -> Iterable[Stated]:
    """Return what follows from a replica: users of all replicas, devices, and its limits, which the file states for each of its `ranks`."""
    copies, ranks = facts.whole("replicas", 1), facts.whole("ranks", 1)
    users, tokens = facts.value("copy_users"), facts.value("batched_tokens")
    if isinstance(users, int):
        of = [f" of each of {number} {word}" for number, word in ((ranks, "ranks"), (copies, "replicas")) if number > 1]
        note = f"{users}{','.join(of)}" if of else "of its only replica"
        yield facts.derived("users", users * copies * ranks, note, "copy_users")
        yield facts.derived("copy_limit", users * ranks, "of one replica", "copy_users")
    if isinstance(tokens, int):
        yield facts.derived("copy_tokens", tokens * ranks, "of one replica", "batched_tokens")
    sizes = [facts.value(name) for name in ("tp", "pp")]
    if all(isinstance(size, int) for size in sizes):
        devices = facts.whole("tp", 1) * facts.whole("pp", 1) * copies
        yield facts.derived("devices", devices, "tp x pp x replicas", "tp")
