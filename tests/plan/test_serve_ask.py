"""The words of a serving question: their meaning, and the errors for mistakes."""

from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import spread_of
from meshwise.plan.serve.search import search
from support.command import one_line
from support.gguf_files import LLAMA
from support.serve_questions import question


@pytest.mark.parametrize(
    ("model", "cluster", "engine", "stored"),
    [
        ("llama-3-8b:q4_k_m", "8xh100-sxm", "llama.cpp", "Q4_K_M"),
        ("llama-3-8b:awq", "rtx3090", "vllm", "awq"),
        ("llama-3-8b", "rtx3090", "llama.cpp", "Q4_K_M"),
        ("llama-3-8b", "8xh100-sxm", "vllm", "bf16"),
        ("llama-3-8b:bf16", "rtx3090", "llama.cpp", "BF16"),
        ("llama-3-8b", "m2-ultra", "llama.cpp", "Q4_K_M"),
    ],
)
def test_the_engine_and_format_that_are_assumed(model: str, cluster: str, engine: str, stored: str) -> None:
    q = question(model, cluster)
    assert (q.engine.name, q.weights.format) == (engine, stored)


def test_the_weights_of_a_gguf_file_have_its_own_bytes(tmp_path: Path) -> None:
    file = LLAMA.write(tmp_path / "tiny.gguf")
    ask = ServeAsk(model=str(file), on="rtx3090", context=64, prompt=32, output=32)
    q = lookup.question(ask)
    assert q.engine.name == "llama.cpp"
    assert q.weights.bytes == q.model.stored_bytes
    with pytest.raises(UserError, match=r"vllm does not read GGUF files; llama\.cpp and ollama do"):
        lookup.question(ServeAsk(model=str(file), on="rtx3090", engine="vllm"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": "llama-3.3-70b:q4_k_x"}, "unknown quantization 'q4_k_x'; did you mean"),
        ({"engine": "vllm"}, "vllm does not run Q4_K_M; awq is the nearest"),
        ({"model": "llama-3.3-70b:awq", "engine": "llama.cpp"}, "llama.cpp does not run awq"),
        ({"model": "llama-3.3-70b:awq", "fix": ("tp=3",)}, "64 heads cannot be split over 3 devices; choose 1, 2, 4, 8, 16"),
        ({"fix": ("split=tensor",), "engine": "ollama"}, "ollama cannot do a tensor split; it can do layer"),
        ({"fix": ("tp=2",), "engine": "ollama"}, "ollama has no tensor or pipeline parallelism; it can split by layer"),
        ({"fix": ("prefill=1",)}, "llama.cpp cannot compute prompts on other devices than outputs"),
        ({"lora": "8"}, "--lora '8': expected a number of adapters and their rank"),
        ({"lora": "8:4096"}, "--lora '8:4096': expected a number of adapters and their rank, at most 1,024"),
        ({"lora": "8:16", "engine": "ollama"}, "ollama serves no LoRA adapters beside a model"),
        ({"draft": 3, "accept": 0.7, "engine": "ollama"}, "ollama has no speculative decoding"),
        (
            {"model": "llama-3-8b:bf16", "on": "h200", "prefix": 0.5, "engine": "transformers"},
            "transformers finds no prefixes in its cache",
        ),
        ({"fix": ("cards=5",)}, "--fix needs 5 cards, but 4xrtx4060ti-16gb has 4"),
        ({"fix": ("replicas=2",)}, "2 replicas need as many concurrent requests; give --users 2 or more"),
        ({"fix": ("replicas=2",), "users": 4, "engine": "ollama"}, "ollama cannot run several replicas of a model"),
        ({"fix": ("tensor=2",)}, "expected split, cards, tp, pp, ep, replicas, hosts, prefill and a value"),
        ({"fix": ("cards=x",)}, "cards is a whole number, 1 or more"),
        ({"on": "tpu-v5e:4x4"}, "llama.cpp runs on GPUs, Apple chips and CPUs, not on TPU v5e; --engine vllm"),
        ({"on": "64x100xrtx3090@10Gbps"}, "serving is planned on at most 4,096"),
        ({"on": "0xrtx3090"}, "'0' is not a number of devices"),
        (
            {"model": "llama-3-8b:bf16", "on": "m2-ultra", "engine": "vllm"},
            "vllm runs on GPUs, TPUs and NPUs, not on M2 Ultra; --engine llama.cpp runs there",
        ),
        ({"kv": "fp8"}, "llama.cpp has no KV type 'fp8'"),
        ({"prompt": 20000}, "a context of 16,384 does not hold a prompt of 20,000"),
    ],
)
def test_bad_questions_are_one_line(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        lookup.question(ServeAsk(**({"model": "llama-3.3-70b:q4_k_m", "on": "4xrtx4060ti-16gb", "context": 16384} | more)))
    assert words in one_line(refusal.value)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("cluster", ["tpu-v6e:2x4", "8xgaudi3", "16xtrn2", "inf2"])
def test_accelerators_that_are_no_gpus_get_vllm_with_wide_intervals(cluster: str) -> None:
    q = lookup.question(ServeAsk(model="llama-3.1-8b", on=cluster, users=16))
    best = search(q).options[0]
    assert q.engine.name == "vllm"
    assert best.report
    assert spread_of(q, best) >= 0.4
