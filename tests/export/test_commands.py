"""The commands of each engine, word for word: what a plan prints is what people paste."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.export import commands, llamacpp, ollama, vllm
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.search import search, weighed
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
    "ollama": {"model": "llama-3-8b:q4_k_m", "engine": "ollama", "kv": "q8_0", "users": 2, "fix": ("cards=2",)},
}


@pytest.mark.parametrize("name", CASES)
def test_commands_are_as_in_the_golden_file(name: str) -> None:
    ask = ServeAsk(**({"model": "llama-3.3-70b:q4_k_m", "on": "4xrtx4060ti-16gb", "context": 16384} | CASES[name]))
    q = ask.question()
    best = search(q).options[0]
    text = "".join(
        f"{engine}:\n" + "".join(f"  {line}\n" for line in lines) for engine, lines in commands(q, best.layout).items()
    )
    assert text == (GOLDEN / f"serve-{name}.txt").read_text(encoding="utf-8")


def test_a_split_by_shares_gets_the_layers_that_it_names() -> None:
    """-ts counts layers, the head as one, so that llama.cpp's own rounding gives what the plan says."""
    answer = found(cluster="2xrtx3090+1xrtx3060-12gb", fix=("split=layer", "cards=3"))
    layout = next(one for one in answer.options if one.layout.shared)
    assert sum(layout.layout.shares) == 81
    layers = [len(load.layers) + load.head for load in layout.placement.devices]
    assert layers == [int(share) for share in layout.layout.shares]
    (line,) = llamacpp.lines(question(cluster="2xrtx3090+1xrtx3060-12gb", fix=("split=layer", "cards=3")), layout.layout)
    assert f"-ts {','.join(map(str, layers))} " in line


def test_a_split_by_free_memory_names_the_same_layers_when_it_is_run() -> None:
    """What is free at the start may be other than planned: -ts then says each card's layers, and they are those of the plan."""
    q = question(fix=("split=layer", "cards=4"))
    best = search(q).options[0]
    named = llamacpp.with_layers(q, best.layout)
    assert weighed(q, named).placement == best.placement
    assert named.shares == (21, 20, 20, 20)


def test_a_host_with_cards_serves_and_reaches_a_processor_over_rpc() -> None:
    """llama.cpp lists RPC devices before its own, so a host without cards comes first, wherever it was named."""
    q = question("llama-3-8b:q4_k_m", "1x(1xrtx3090)+1x(1xcpu)@1Gbps", fix=("hosts=2",))
    rpc, server = llamacpp.lines(q, search(q).options[0].layout)
    assert rpc.startswith("ggml-rpc-server -H host2 ")
    assert server.endswith("# on host 1")
    assert "-ngl 33 --rpc host2:50052" in server


def test_experts_of_all_layers_are_named_by_a_pattern() -> None:
    q = question("qwen3-235b-a22b:q4_k_m", "2xrtx3090", context=8192)
    (line,) = llamacpp.lines(q, ServeLayout(split="layer", cards=(0, 1), shares=(1, 1), expert_layers=94))
    assert "-ot exps=CPU" in line


def test_a_server_for_several_users_has_the_context_of_all() -> None:
    q = question(users=3)
    (line,) = llamacpp.lines(q, split(found(users=3), "layer", 4).layout)
    assert "-c 49152 -np 3" in line


def test_ollama_is_offered_only_where_it_can_do_it() -> None:
    q = question()
    plain = ServeLayout(split="layer", cards=(0, 1, 2, 3), shares=(1, 1, 1, 1))
    assert ollama.can(q, plain)
    for other in (
        replace(plain, split="row"),
        replace(plain, shared="evenly filled"),
        replace(plain, expert_layers=3),
        replace(plain, hosts=2),
        replace(plain, replicas=2),
    ):
        assert not ollama.can(q, other)
    assert not ollama.can(question(kv="q5_0"), plain)


def test_vllm_reads_a_checkpoint_of_a_format_that_it_cannot_make() -> None:
    layout = ServeLayout(split="tensor", cards=(0, 1), tp=2)
    (made,) = vllm.lines(question("llama-3.3-70b:fp8", "8xh100-sxm"), layout)
    (own,) = vllm.lines(question("llama-3.3-70b:gptq", "8xh100-sxm"), layout)
    assert made.startswith("vllm serve meta-llama/Llama-3.3-70B-Instruct ")
    assert own.startswith("vllm serve path/to/llama-3.3-70b-gptq ")
