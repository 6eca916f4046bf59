"""The layouts of each engine: which cards, which splits, how many replicas, and how much each card gets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import find_engine
from meshwise.cost.serve.layouts import (
    ServeLayout,
    cards_of,
    even_shares,
    fastest_shares,
    layouts,
    subcluster,
    tensor_parallel_sizes,
    with_replicas,
)
from meshwise.errors import UserError
from support.every import check_every
from support.serve_tables import model

LLAMA, VLLM, OLLAMA = (find_engine(name) for name in ("llama.cpp", "vllm", "ollama"))


def layouts_on(rig: str, engine: str, name: str = "Llama 3 70B") -> list[ServeLayout]:
    cards = cards_of(find_cluster(rig))
    return list(layouts(find_engine(engine), model(name), cards, [card.chip.memory for card in cards]))


def cut(layout: ServeLayout) -> tuple[int, int]:
    return layout.tp, layout.pp


def test_llama_cpp_splits_by_layers_on_any_number_of_cards_and_by_rows_on_several() -> None:
    found = layouts_on("5xrtx4060ti-16gb", "llama.cpp")
    assert {len(layout.cards) for layout in found if layout.split == "layer"} == {1, 2, 3, 4, 5}
    assert {len(layout.cards) for layout in found if layout.split == "row"} == {2, 3, 4, 5}


def test_rows_are_split_on_gpus_of_one_host_only() -> None:
    """llama.cpp's split buffers are CUDA's and ROCm's; an RPC device and Metal have none."""
    assert all(layout.hosts == 1 for layout in layouts_on("2x(2xrtx3090)@10Gbps", "llama.cpp") if layout.split == "row")
    assert {layout.split for layout in layouts_on("2x(1xm2-ultra)@10Gbps", "llama.cpp")} == {"layer"}


def test_llama_cpp_splits_layers_over_hosts_by_rpc_and_ollama_does_not() -> None:
    assert [len(layout.cards) for layout in layouts_on("2x(2xrtx3090)@10Gbps", "llama.cpp") if layout.hosts == 2] == [4]
    assert all(layout.hosts == 1 for layout in layouts_on("2x(2xrtx3090)@10Gbps", "ollama"))


def test_ollama_only_splits_by_layers() -> None:
    assert {layout.split for layout in layouts_on("4xrtx3090", "ollama")} == {"layer"}


def test_vllm_splits_64_heads_over_1_2_4_or_8_devices() -> None:
    """physics.md: 64 heads mean 1, 2, 4, 8, not 3, 5 or 6."""

    def check(cards: int, largest: int) -> None:
        found = layouts_on(f"{cards}xrtx3090", "vllm")
        assert max(layout.tp for layout in found) == largest
        assert not {layout.tp for layout in found} & {3, 5, 6, 7}
        assert (1, cards) in map(cut, found)  # any number can be a pipeline

    check_every(check, [(3, 2), (5, 4), (6, 4), (7, 4), (8, 8)])


def test_tensor_parallel_sizes_divide_the_heads() -> None:
    assert tensor_parallel_sizes(model("Llama 3 70B"), 8) == [1, 2, 4, 8]
    assert tensor_parallel_sizes(model("qwen2.5-14b"), 8) == [1, 2, 4, 8]  # 40 heads, but 8 key heads
    assert 5 not in tensor_parallel_sizes(model("qwen2.5-14b"), 8)


def test_a_tensor_parallel_group_is_inside_one_host_or_spans_whole_hosts() -> None:
    for layout in layouts_on("2x(4xrtx3090)@10Gbps", "vllm"):
        groups = [layout.cards[i : i + layout.tp] for i in range(0, len(layout.cards), layout.tp)]
        assert all(len({card // 4 for card in group}) == max(1, layout.tp // 4) for group in groups)


def test_a_group_that_does_not_fit_into_a_host_starts_on_the_next() -> None:
    """A host of 3 cards holds one group of 2; the third card is unused."""
    found = next(layout for layout in layouts_on("2x(3xrtx3090)@10Gbps", "vllm") if cut(layout) == (2, 2))
    assert found.cards == (0, 1, 3, 4)


def test_replicas_fill_the_cards_and_need_concurrent_requests() -> None:
    cards = cards_of(find_cluster("5xrtx3090"))
    pair = ServeLayout(split="layer", cards=(0, 1), shares=(1, 1))
    assert [layout.replicas for layout in with_replicas(pair, cards, 8)] == [2]
    assert [layout.replicas for layout in with_replicas(ServeLayout(split="layer", cards=(0,), shares=(1,)), cards, 3)] == [2]
    assert not list(with_replicas(pair, cards, 1))
    assert not list(with_replicas(pair, cards_of(find_cluster("2xrtx3090+2xrtx3060-12gb")), 8))


def test_a_replica_stays_inside_a_host() -> None:
    """A host of 3 holds one pair, so two hosts hold two and not three."""
    cards = cards_of(find_cluster("2x(3xrtx3090)@10Gbps"))
    assert (
        max(layout.replicas for layout in with_replicas(ServeLayout(split="layer", cards=(0, 1), shares=(1, 1)), cards, 99)) == 2
    )


def test_the_fastest_of_unequal_cards_are_used_first() -> None:
    found = layouts_on("1xrtx3060-12gb+2xrtx3090", "llama.cpp")
    assert [layout.cards for layout in found if layout.split == "layer"] == [(1,), (1, 2), (0, 1, 2)]


def test_a_subcluster_keeps_its_hosts_and_links() -> None:
    rig = find_cluster("2x(2xrtx3090)@10Gbps")
    cards = cards_of(rig)
    assert subcluster(rig, cards).devices == 4
    less = subcluster(rig, [cards[0], cards[2], cards[3]])
    assert [node.devices for _, node in less.nodes] == [1, 2]
    assert less.network == rig.network


def test_the_name_of_a_layout_states_its_split_cards_and_replicas() -> None:
    assert ServeLayout(split="layer", cards=(0, 1, 2)).name == "layer split, 3 cards"
    assert ServeLayout(split="layer", cards=(0,)).name == "1 card"
    assert ServeLayout(split="tensor", cards=(0, 1, 2, 3), tp=2, pp=2, replicas=2).name == "2 x (tp2 pp2)"
    assert ServeLayout(split="layer", cards=(0,), replicas=4).name == "4 x 1 card"
    assert ServeLayout(split="layer", cards=(0, 1), gpu_layers=30).name == "layer split, 2 cards, 30 layers on cards"


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UserError,
        match=r"unknown engine 'vlm'; did you mean 'vllm'\? Known: llama.cpp, mlx, ollama, sglang, tensorrt-llm, transformers, vllm",
    ):
        find_engine("vlm")
    assert find_engine("LlamaCpp") == LLAMA


sizes = st.lists(st.floats(1, 100), min_size=2, max_size=40)
rooms = st.lists(st.floats(0, 2000), min_size=1, max_size=6)


@given(sizes, rooms)
def test_even_shares_place_every_layer_within_the_memory_of_its_card(layers: list[float], room: list[float]) -> None:
    found = even_shares(layers, room)
    if found is None:
        assert sum(layers) > sum(room) or len(room) > 1
        return
    assert sum(found) == len(layers)
    start = 0
    for count, most in zip(found, room, strict=True):
        assert sum(layers[start : start + int(count)]) <= most * (1 + 1e-9)
        start += int(count)


@given(sizes, rooms, st.data())
def test_the_fastest_cards_are_filled_before_a_slower_one_gets_a_layer(
    layers: list[float], room: list[float], data: st.DataObject
) -> None:
    speeds = data.draw(st.lists(st.floats(1, 100), min_size=len(room), max_size=len(room), unique=True))
    found = fastest_shares(layers, room, speeds)
    if found is None:
        return
    assert sum(found) == len(layers)
    largest = max(layers[:-1])
    order = sorted(range(len(room)), key=lambda i: -speeds[i])
    for before, after in pairwise(order):
        if found[after]:
            assert (found[before] + 1) * largest + max(0.0, layers[-1] - largest) > room[before] * (1 - 1e-9)
