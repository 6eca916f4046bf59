"""llama-server's flags for a planned split."""

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.plan.serve.search import search, with_memory
from meshwise.programs.serve import llamacpp
from support.serve_questions import found, question, split


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
    """Free memory at the start may differ from the plan, so -ts gives each card the layers that the plan gave it."""
    q = question(fix=("split=layer", "cards=4"))
    best = search(q).options[0]
    named = llamacpp.with_layers(q, best.layout)
    assert with_memory(q, named).placement == best.placement
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
