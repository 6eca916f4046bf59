"""Launch files as people publish them (rewritten by hand): every stated axis is read, and nothing else is said to be stated."""

from pathlib import Path
from typing import Any

import pytest

from meshwise.programs.read.files import Reading, read_files
from meshwise.runs import derive
from meshwise.runs.fields import BY_NAME
from support.launch_files import FIXTURES

BLOOM: dict[str, Any] = {
    "tp": 4, "pp": 12, "mbs": 2, "batch": 2048, "seq": 2048, "recompute": "full", "precision": "bf16", "layers": 70, "hidden": 14336,
    "heads": 112, "vocab": 250880, "samples": 220_000_000, "position_kind": "alibi", "optimizer": "adamw", "nodes": 48,
    "devices_per_node": 8, "positions": 2048, "seed": 42, "save_every": 100, "ramp": ("192", "16", "9_765_625"), "hours": 100.0,
}  # fmt: skip
GPT3: dict[str, Any] = {
    "tp": 8, "pp": 16, "mbs": 1, "batch": 1536, "seq": 2048, "precision": "fp16", "layers": 96, "hidden": 12288, "heads": 96, "nodes": 16,
    "devices_per_node": 8, "steps": 500_000, "positions": 2048, "ramp": ("16", "16", "5859375"), "save_every": 10000,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "tp": 1, "cp": 1, "mbs": 1, "batch": 128, "seq": 8192, "precision": "fp8", "zero": 1, "layers": 32, "hidden": 4096, "ffn": 14336,
    "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab": 128256, "gated": True, "tied": False, "biased": False, "position_kind": "rope",
    "rope_theta": 1_000_000, "positions": 8192, "samples": 1_953_125_000, "nodes": 1, "devices_per_node": 8,
    "attention": "cudnn", "loss": "compiled", "overlap": "dp", "gradients": "bf16",
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "tp": 1, "pp": 4, "ep": 8, "mbs": 1, "batch": 256, "seq": 4096, "precision": "bf16", "zero": 1, "layers": 32, "hidden": 4096,
    "ffn": 14336, "heads": 32, "kv_heads": 8, "experts": 8, "top_k": 2, "gated": True, "tied": False, "biased": False, "norm": "rmsnorm",
    "position_kind": "rope", "rope_theta": 1_000_000, "positions": 32768, "steps": 500_000, "nodes": 4, "devices_per_node": 8,
    "save_every": 10000, "overlap": "no-ep,dp",
}  # fmt: skip
TITAN: dict[str, Any] = {
    "model": "llama-3.1-70b", "dp_replicate": 1, "tp": 8, "pp": 1, "cp": 1, "mbs": 8, "seq": 8192, "steps": 1000, "recompute": "full",
    "compile": False, "optimizer": "adamw", "save_every": 500,
}  # fmt: skip
TRAINER: dict[str, Any] = {
    "model": "meta-llama/Meta-Llama-3-8B", "mbs": 2, "accumulation": 4, "recompute": "full", "precision": "bf16", "seq": 4096,
    "steps": 2000, "devices_per_node": 8,
}  # fmt: skip
ACCELERATE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "mbs": 1, "accumulation": 8, "seq": 8192, "optimizer": "adamw", "zero": 2, "recompute": "full",
    "precision": "bf16", "nodes": 2, "devices": 16, "devices_per_node": 8, "hours": 12.0,
}  # fmt: skip
AXOLOTL: dict[str, Any] = {
    "model": "NousResearch/Meta-Llama-3-8B", "seq": 8192, "mbs": 1, "accumulation": 8, "optimizer": "adamw-paged-8bit", "recompute": "full",
    "zero": 3, "offload": "parameters", "attention": "fa2",
}  # fmt: skip
FACTORY: dict[str, Any] = {
    "model": "meta-llama/Meta-Llama-3-8B-Instruct", "seq": 2048, "mbs": 1, "accumulation": 2, "precision": "bf16", "save_every": 500,
}  # fmt: skip
NANOTRON: dict[str, Any] = {
    "dp": 4, "tp": 8, "pp": 2, "ep": 1, "schedule": "1f1b", "sp": 1, "mbs": 4, "accumulation": 16, "seq": 4096, "steps": 15000, "zero": 1,
    "optimizer": "adamw", "precision": "bf16", "hidden": 2048, "layers": 24, "heads": 32, "kv_heads": 32, "ffn": 8192, "vocab": 49152,
    "positions": 4096, "norm_eps": 1e-5, "tied": True, "save_every": 10, "seed": 42,
}  # fmt: skip
NEOX: dict[str, Any] = {
    "tp": 2, "pp": 4, "layers": 44, "hidden": 6144, "heads": 64, "seq": 2048, "positions": 2048, "norm": "layernorm",
    "position_kind": "rope", "tied": False, "optimizer": "adamw", "zero": 1, "mbs": 4, "accumulation": 32, "recompute": "none",
    "precision": "fp16", "steps": 150_000, "save_every": 500,
}  # fmt: skip
MAXTEXT: dict[str, Any] = {"model": "llama-3.1-8b", "tp": 1, "seq": 8192, "recompute": "save_qkv_proj", "steps": 30}
CASES: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "BLOOM": (("bloom-176b.slurm",), "megatron-deepspeed", BLOOM),
    "GPT-3": (("gpt3-175b.sh",), "megatron", GPT3),
    "Llama 3 in fp8": (("llama3-8b-fp8.sh",), "megatron", LLAMA),
    "Mixtral": (("mixtral-8x7b.sh",), "megatron", MIXTRAL),
    "torchtitan": (("titan-llama3-70b.toml",), "torchtitan-0.2", TITAN),
    "Trainer without its JSON": (("trainer-zero3.sh",), "trainer", TRAINER),
    "Trainer with its JSON": (
        ("trainer-zero3.sh", "zero3-auto.json"),
        "trainer",
        TRAINER | {"zero": 3, "offload": "optimizer", "overlap": "reduce"},
    ),
    "accelerate": (("accelerate-sft.slurm", "accelerate-fsdp2.yaml"), "trainer", ACCELERATE),
    "Axolotl": (("axolotl-llama3.yml",), "axolotl", AXOLOTL),
    "LLaMA-Factory": (("llama-factory.yaml",), "llama-factory", FACTORY),
    "nanotron": (("nanotron-tiny.yaml",), "nanotron", NANOTRON),
    "NeoX": (("neox-20b.yml",), "neox", NEOX),
    "MaxText": (("maxtext-llama3.sh",), "maxtext", MAXTEXT),
}
UNKNOWN = {"Trainer without its JSON": {"zero"}, "LLaMA-Factory": {"zero"}, "GPT-3": set[str]()}
"""Facts that a file leaves open, which must be said to be unknown."""


def read(name: str) -> Reading:
    return read_files([FIXTURES / file for file in CASES[name][0]])


@pytest.mark.parametrize("name", CASES)
def test_what_is_stated_is_read_and_nothing_is_invented(name: str) -> None:
    reading = read(name)
    said = {one.fact: one.value for one in reading.facts if one.how == "said" and one.value is not None and one.fact in BY_NAME}
    assert (reading.program.name, said) == CASES[name][1:]
    unknown = {
        one.fact for one in reading.facts if one.how == "unknown" and one.fact in BY_NAME and BY_NAME[one.fact].group == "layout"
    }
    assert unknown == UNKNOWN.get(name, set())


@pytest.mark.parametrize("name", CASES)
def test_every_statement_has_a_line_where_its_value_is(name: str) -> None:
    for one in read(name).facts:
        if one.how != "said" or one.fact not in BY_NAME:
            continue
        assert one.span is not None, one
        lines = Path(one.span.file).read_text(encoding="utf-8").splitlines()
        assert 1 <= one.span.line <= len(lines), one
        if (
            isinstance(one.value, int)
            and not isinstance(one.value, bool)
            and one.span.writable
            and one.fact not in ("zero", "sp", "dp")
        ):
            text = Path(one.span.file).read_text(encoding="utf-8")[one.span.start : one.span.end]
            assert text.replace("_", "").isdecimal(), (one, text)
            assert int(text.replace("_", "")) == one.value


def test_data_ranks_follow_from_the_machines() -> None:
    facts = derive.complete(read("BLOOM").facts)
    assert {name: facts.value(name) for name in ("devices", "dp", "zero", "accumulation")} == {
        "devices": 384, "dp": 8, "zero": 1, "accumulation": 128,
    }  # fmt: skip
    assert facts.value("tokens") == 220_000_000 * 2048
