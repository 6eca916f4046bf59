"""The commands of each engine, word for word, since people paste them. Engines are plugins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue.engines import find_engine
from meshwise.catalogue.files import BUILT_IN
from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.search import search
from meshwise.programs.engines import commands, writers
from support.every import check_every
from support.serve_questions import found, question, split

GOLDEN = Path(__file__).parents[1] / "golden"

CASES: dict[str, dict[str, Any]] = {
    "layer": {"fix": ("split=layer", "cards=4")},
    "row": {"fix": ("split=row", "cards=4"), "kv": "q8_0"},
    "three-of-four": {"model": "llama-3-8b:q4_k_m", "fix": ("split=layer", "cards=3")},
    "amd": {"model": "llama-3-8b:q8_0", "on": "2xrx7900xtx", "fix": ("cards=1",)},
    "apple": {"on": "m2-ultra"},
    "cpu": {"model": "llama-3-8b:q4_k_m", "on": "epyc-9654"},
    "offload": {"on": "2xrtx4060ti-16gb"},
    "experts": {"model": "qwen3-235b-a22b:q4_k_m", "on": "2xrtx3090", "context": 8192},
    "unequal": {"on": "2xrtx3090+1xrtx3060-12gb", "fix": ("split=layer", "cards=3")},
    "rpc": {"on": "2x(2xrtx4060ti-16gb)@1Gbps"},
    "rpc-on-processors": {"model": "llama-3-8b:q4_k_m", "on": "3x(1xcpu)@1Gbps", "fix": ("hosts=3",)},
    "copies": {"model": "llama-3-8b:q4_k_m", "users": 8, "context": 4096, "fix": ("replicas=2", "cards=2", "split=layer")},
    "copies-on-hosts": {
        "model": "llama-3-8b:q4_k_m",
        "on": "2x(2xrtx3090)@10Gbps",
        "users": 8,
        "context": 4096,
        "fix": ("replicas=4",),
    },
    "vllm-tp": {"model": "llama-3.3-70b:bf16", "on": "8xh100-sxm", "users": 16, "fix": ("tp=8",)},
    "vllm-awq": {"model": "llama-3.3-70b:awq", "kv": "fp8", "fix": ("tp=2", "pp=2")},
    "vllm-hosts": {"model": "llama-3.1-405b:fp8", "on": "2x8xh100-sxm", "fix": ("tp=8", "pp=2")},
    "vllm-copies": {"model": "llama-3-8b:bf16", "on": "8xh100-sxm", "users": 64, "fix": ("tp=2", "pp=1", "replicas=4")},
    "vllm-copies-on-hosts": {
        "model": "llama-3-8b:fp16",
        "on": "2x8xh100-sxm",
        "users": 64,
        "fix": ("tp=4", "pp=1", "replicas=4"),
    },
    "vllm-rate": {"model": "llama-3-8b:fp8", "on": "1xh100-sxm", "rate": 12, "prefix": 0.5},
    "vllm-experts": {"model": "deepseek-v3", "on": "2x8xh200", "users": 512, "draft": 2, "accept": 0.8, "fix": ("ep=16",)},
    "vllm-expert-copies": {"model": "qwen3-30b-a3b", "on": "8xh100-sxm", "users": 512, "fix": ("ep=4", "replicas=2")},
    "sglang-experts": {"model": "deepseek-v3", "on": "2x8xh200", "users": 512, "engine": "sglang", "fix": ("ep=16",)},
    "sglang-drafts": {"model": "llama-3-8b", "on": "2xh100-sxm", "engine": "sglang", "draft": 3, "accept": 0.7, "fix": ("tp=2",)},
    "tensorrt-llm-experts": {"model": "deepseek-v3", "on": "2x8xh200", "users": 512, "engine": "tensorrt-llm", "fix": ("ep=16",)},
    "tensorrt-llm-copies": {
        "model": "llama-3-8b:fp8",
        "on": "4xh100-sxm",
        "users": 600,
        "kv": "fp8",
        "engine": "tensorrt-llm",
        "fix": ("tp=2", "pp=1", "replicas=2"),
    },
    "vllm-pools": {"model": "llama-3.3-70b:fp8", "on": "8xh100-sxm", "users": 64, "fix": ("prefill=1", "tp=2", "replicas=2")},
    "sglang-pools": {
        "model": "llama-3.3-70b:fp8",
        "on": "2x2xh100-sxm",
        "users": 64,
        "engine": "sglang",
        "fix": ("prefill=1", "tp=2", "replicas=1"),
    },
    "tensorrt-llm-pools": {
        "model": "llama-3.3-70b:fp8",
        "on": "8xh100-sxm",
        "users": 64,
        "engine": "tensorrt-llm",
        "fix": ("prefill=2", "tp=2", "replicas=2"),
    },
    "mlx": {"model": "llama-3-8b", "on": "m2-ultra", "users": 4, "kv": "int8", "engine": "mlx"},
    "drafts": {"model": "llama-3-8b:q4_k_m", "on": "1xrtx3090", "draft": 4, "accept": 0.6},
    "ollama": {"model": "llama-3-8b:q4_k_m", "engine": "ollama", "kv": "q8_0", "users": 2, "fix": ("cards=2",)},
}


def test_commands_are_as_in_the_golden_files() -> None:
    def check(name: str) -> None:
        ask = ServeAsk(**({"model": "llama-3.3-70b:q4_k_m", "on": "4xrtx4060ti-16gb", "context": 16384} | CASES[name]))
        q = lookup.question(ask)
        best = search(q).options[0]
        written = commands(q, best.layout)
        text = "".join(f"{engine}:\n" + "".join(f"  {line}\n" for line in lines) for engine, lines in written.items())
        assert text == (GOLDEN / f"serve-{name}.txt").read_text(encoding="utf-8")

    check_every(check, [(name,) for name in CASES])


def test_every_engine_that_meshwise_starts_has_commands() -> None:
    engines = {find_engine(path.stem).name for path in (BUILT_IN / "engines").glob("*.toml")}
    assert engines <= set(writers())


def test_an_engine_of_another_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written for its own plans, and offered for layouts of llama.cpp that it can run."""
    (tmp_path / "acme_engine-1.dist-info").mkdir()
    (tmp_path / "acme_engine-1.dist-info" / "METADATA").write_text("Name: acme-engine\nVersion: 1\n")
    (tmp_path / "acme_engine-1.dist-info" / "entry_points.txt").write_text("[meshwise.programs]\nacme = acme_engine\n")
    (tmp_path / "acme_engine.py").write_text(
        "RUNS_LAYOUTS_OF = 'llama.cpp'\n"
        "def lines(q, layout): return [f'acme {q.model.name} --cards {len(layout.cards)}']\n"
        "def can(q, layout): return layout.split == 'layer'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    q, answer = question(), found()
    own = commands(replace(q, engine=replace(q.engine, name="acme")), split(answer, "tensor", 4).layout)
    assert own == {"acme": ("acme llama-3.3-70b --cards 4",)}
    assert "acme" in commands(q, split(answer, "layer", 4).layout)
    assert "acme" not in commands(q, split(answer, "tensor", 4).layout)


def test_an_engine_without_a_plugin_is_refused() -> None:
    q = question()
    with pytest.raises(UserError, match=r"no commands are known for the engine 'acme'; expected one of llama.cpp, mlx, ollama, "):
        commands(replace(q, engine=replace(q.engine, name="acme")), split(found(), "layer", 4).layout)
