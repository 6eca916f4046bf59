"""Communication time: the bytes that a collective moves, and the links that carry them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Tier
from meshwise.cost.layout import Layouts
from meshwise.cost.train.comm import HOP_SECONDS, AllToAll, Communicators, Fabric, Group
from support.every import check_every
from support.train_questions import found_cluster

IDEAL = Calibration(link=1.0, network=1.0, link_latency=0.0, network_latency=0.0)
JEAN_ZAY = Fabric.of(found_cluster("jean-zay"), IDEAL)
"""Nodes of 8 A100 on NVLink at 300 GB/s a device, and 4 Omni-Path links of 100 Gb/s, 50 GB/s together, for each node."""
NVLINK, OMNI_PATH = 300e9, 50e9

sizes = st.integers(2, 4096)
bytes_ = st.floats(1, 1e12)


def group(fabric: Fabric, size: float, stride: float) -> Group:
    return Group.of(fabric, np.full(1, float(size)), np.full(1, float(stride)))


def bandwidth(fabric: Fabric, size: float, stride: float) -> float:
    return float(group(fabric, size, stride).bandwidth[0])


def communicators(**axes: Any) -> Communicators:
    return Communicators.of(JEAN_ZAY, Layouts.of(**axes).as_floats())


@given(sizes, st.integers(1, 64), bytes_)
def test_a_ring_all_reduce_moves_all_but_one_part_twice(g: int, stride: int, size: float) -> None:
    """2 (g - 1) / g of the bytes pass through every rank: Patarasuk and Yuan 2009, and NCCL's bus bandwidth."""
    ring = group(JEAN_ZAY, g, stride)
    moved = ring.reduce(np.full(1, size)) * ring.bandwidth
    assert moved == pytest.approx(2 * (g - 1) / g * size)
    assert (ring.gather(np.full(1, size)) - ring.latency) * ring.bandwidth == pytest.approx(moved / 2, rel=1e-3)


@given(sizes, bytes_)
def test_a_reduce_scatter_of_cpus_is_an_all_reduce(g: int, size: float) -> None:
    """Gloo: the bytes on the cables of two and four hosts were those of an all-reduce (docs/reports/slow-cables.md); NCCL has half."""
    whole = np.full(1, size)
    cpus = group(Fabric.of(found_cluster("4096x1xcpu@1Gbps"), IDEAL), g, 1)
    assert cpus.reduce_scatter(whole) == pytest.approx(cpus.reduce(whole))
    assert cpus.reduce_scatter(whole) == pytest.approx(2 * cpus.gather(whole))
    assert cpus.split_reduce(whole, np.ones(1)) == pytest.approx(1.5 * cpus.split_reduce(whole, np.zeros(1)))
    gpus = group(JEAN_ZAY, g, 1)
    assert gpus.reduce_scatter(whole) == pytest.approx(gpus.gather(whole))
    assert gpus.split_reduce(whole, np.ones(1)) == gpus.split_reduce(whole, np.zeros(1)) == gpus.reduce(whole)


def test_segments_of_gloo_wait_for_a_round_trip() -> None:
    """At 1 Gbps with 20 ms per step, measured between two hosts: an all-gather of 24 MiB reached 83% of the cable, an all-reduce 51%."""
    far = replace(IDEAL, network_latency=20e-3)
    two, whole = group(Fabric.of(found_cluster("2x1xcpu@1Gbps"), far), 2, 1), np.full(1, 24.0 * 2**20)
    cable = (whole / 2 / 125e6).item()
    assert cable / two.gather(whole).item() == pytest.approx(0.83, abs=0.03)
    assert 2 * cable / two.reduce(whole).item() == pytest.approx(0.51, abs=0.1)
    near = group(Fabric.of(found_cluster("2x1xcpu@1Gbps"), IDEAL), 2, 1)
    assert near.reduce(whole).item() == pytest.approx(2 * cable)


def test_a_single_rank_sends_nothing() -> None:
    alone = Group.of(replace(JEAN_ZAY, link_latency=1e-5, network_latency=1e-5), np.ones(1), np.ones(1))
    exchange = AllToAll.of(replace(JEAN_ZAY, link_latency=1e-5, network_latency=1e-5), np.ones(1), np.ones(1))
    for collective in (alone.gather, alone.reduce, exchange.seconds):
        assert collective(np.full(1, 1e9)).item() == 0


def test_ranks_share_the_network_of_their_node() -> None:
    def check(size: int, stride: int, expected: float) -> None:
        assert bandwidth(JEAN_ZAY, size, stride) == expected

    check_every(
        check,
        [
            (8, 1, NVLINK),  # tp 8: a whole node
            (4, 1, NVLINK),
            (2, 4, NVLINK),  # dp 2 over tp 4: still one node
            (48, 8, OMNI_PATH / 8),  # dp over tp 8: eight rings share what leaves a node
            (96, 4, OMNI_PATH / 4),  # dp over tp 4: four rings, each with two ranks of the node: twice the share of a rank
            (384, 1, OMNI_PATH),  # one ring of all devices has a node's network to itself
            (16, 1, OMNI_PATH),  # tp 16 leaves the node
            (2, 48, OMNI_PATH / 8),  # stages are on different nodes
        ],
    )


@given(sizes, st.integers(1, 512), st.floats(1e9, 1e12), st.floats(1e9, 1e12))
def test_no_group_is_faster_than_its_links(size: int, stride: int, link: float, network: float) -> None:
    fabric = Fabric(8, link, network, 0.0, 0.0)
    found, inside = bandwidth(fabric, size, stride), min(size, max(1, 8 // stride))
    assert inside == 1 or found <= link  # a rank that is alone in its node uses the network only
    if inside < size:
        assert found <= network * inside / 8


@given(sizes, st.integers(1, 512), st.floats(1, 100), st.floats(1, 100), bytes_)
def test_faster_links_never_take_longer(size: int, stride: int, link: float, network: float, moved: float) -> None:
    better = replace(JEAN_ZAY, link=JEAN_ZAY.link * link, network=JEAN_ZAY.network * network)
    assert group(better, size, stride).reduce(np.full(1, moved)) <= group(JEAN_ZAY, size, stride).reduce(np.full(1, moved))


def latencies(fabric: Fabric, size: int, stride: int) -> tuple[float, float]:
    """Return the seconds without bytes of a ring, for a gather, and of half an all-reduce."""
    found = group(fabric, size, stride)
    return found.gather(np.zeros(1)).item(), found.reduce(np.zeros(1)).item() / 2


def test_between_nodes_a_ring_has_a_step_for_every_other_node_and_a_tree_for_every_doubling() -> None:
    """NCCL has no tree for all-gather and reduce-scatter, which pass every part on to all others: one step less than there are ranks. An
    all-reduce has the choice."""

    def check(size: int, depth: int) -> None:
        slow = replace(JEAN_ZAY, network_latency=1.0)
        assert latencies(slow, size, 8) == (size - 1, depth)

    check_every(check, [(2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7)])


def test_inside_a_node_latency_grows_with_the_steps_of_the_ring() -> None:
    assert latencies(replace(JEAN_ZAY, link_latency=1.0), 8, 1) == (7, 7)


def test_a_ring_of_several_ranks_a_node_waits_for_stragglers_in_one_node_only() -> None:
    """16 ranks, 2 in each of 8 nodes: 8 steps between nodes, 1 with the link's latency, and the 6 others inside nodes take HOP_SECONDS
    each: 15 steps."""
    slow = replace(JEAN_ZAY, network_latency=1.0, link_latency=0.1)
    assert group(slow, 16, 4).latency.item() == pytest.approx(8 + 0.1 + (16 - 8 - 2) * HOP_SECONDS)


@given(st.integers(2, 2048), st.integers(1, 64), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_latency_grows_with_ranks_and_an_all_reduce_takes_the_shorter_way(
    size: int, stride: int, link: float, network: float
) -> None:
    fabric = replace(JEAN_ZAY, link_latency=link, network_latency=network)
    ring, reduced = latencies(fabric, size, stride)
    larger = latencies(fabric, 2 * size, stride)
    assert larger[0] >= ring
    assert larger[1] >= reduced
    assert reduced <= ring
    assert reduced == min(ring, group(fabric, size, stride).tree.item())


def test_context_ranks_hold_the_same_weights_as_data_ranks() -> None:
    cut = communicators(dp_shard=4, cp=2, tp=4)
    assert (cut.shard.size.item(), cut.cp.size.item(), cut.tp.size.item()) == (8, 2, 4)


def test_groups_stride_over_tensor_parallel_ranks() -> None:
    """tp 4, cp 2: a context group is inside a node of 8, the data group is not, stages are a node or more apart."""
    cut = communicators(dp_shard=4, cp=2, tp=4, pp=2, ep=4)
    assert cut.tp.bandwidth.item() == cut.cp.bandwidth.item() == NVLINK
    assert cut.shard.bandwidth.item() == OMNI_PATH / 4
    assert cut.stage.bandwidth.item() == OMNI_PATH / 8


def test_a_fabric_has_the_links_of_its_cluster() -> None:
    def check(cluster: str, node: int, link: float | None, network: float | None) -> None:
        found = Fabric.of(found_cluster(cluster), IDEAL)
        assert found.node == node
        assert link is None or found.link == pytest.approx(link)
        assert network is None or found.network == pytest.approx(network)

    check_every(
        check,
        [
            ("1x8xh100-sxm", 8, 450e9, 450e9),  # no network: nothing leaves the node
            ("2x(4xrtx3090)@10Gbps", 4, 8e9, 1.25e9),  # PCIe 4.0, half of its lanes, through the host: no peer access
            ("jean-zay:4", 8, NVLINK, OMNI_PATH),
            ("tpu-v5p:4x4x4", 64, 3 * 90e9, None),  # a torus is one node whose every axis carries bytes
        ],
    )


# What lies above a node.


def under(*tiers: Tier, nodes: int = 48) -> Fabric:
    """Jean Zay with more network above its nodes."""
    return Fabric.of(replace(found_cluster(f"jean-zay:{nodes}"), tiers=tiers), IDEAL)


def leaf(oversubscription: float, nodes: int = 16) -> Tier:
    return Tier(name="leaf", nodes=nodes, oversubscription=oversubscription)


@pytest.mark.parametrize(("size", "stride"), [(3, 128), (2, 128), (2, 192)])
def test_a_leaf_oversubscribed_twice_halves_the_bandwidth_across_it(size: int, stride: int) -> None:
    """Stages or copies in different leaves of 16 nodes: every device of the leaf sends at once."""
    assert bandwidth(under(leaf(2)), size, stride) == OMNI_PATH / 8 / 2
    assert bandwidth(under(leaf(1)), size, stride) == OMNI_PATH / 8


def test_a_ring_crosses_a_leaf_once_and_an_all_to_all_with_every_rank() -> None:
    """48 ranks over tp 8, 16 to a leaf: eight rings share what leaves it, 400 GB/s, and each node's share is what binds. In an all-to-all
    of all 384, two thirds of the bytes leave a leaf, at 400 GB/s for 128 devices."""
    assert bandwidth(under(leaf(2)), 48, 8) == bandwidth(JEAN_ZAY, 48, 8) == OMNI_PATH / 8
    assert exchange(under(leaf(2)), 384).far.item() == pytest.approx(2 / 3 * 128 / 400e9)
    assert exchange(under(leaf(4)), 384).far.item() == pytest.approx(2 / 3 * 128 / 200e9)


def test_the_uplink_of_a_leaf_does_not_affect_groups_inside_it() -> None:
    def check(size: int, stride: int) -> None:
        assert bandwidth(under(leaf(16)), size, stride) == bandwidth(JEAN_ZAY, size, stride)

    check_every(check, [(8, 1), (16, 8), (128, 1), (2, 64)])


def test_a_slow_line_between_sites_limits_groups_that_span_them() -> None:
    """24 nodes of 8 on either side of 10 GB/s: 192 devices reduce over it, and each ring has the share of its ranks there."""
    line = Tier(name="line", nodes=24, bandwidth=10e9)
    assert bandwidth(under(line), 48, 8) == 24 / 192 * 10e9
    assert bandwidth(under(line), 2, 192) == 10e9 / 192
    assert bandwidth(under(line), 24, 8) == OMNI_PATH / 8


def test_the_narrowest_of_several_tiers_limits_the_bandwidth() -> None:
    line = Tier(name="line", nodes=24, bandwidth=10e9)
    both, one = under(leaf(2, nodes=8), line), under(line)
    assert bandwidth(both, 2, 192) == bandwidth(one, 2, 192) == 10e9 / 192
    assert bandwidth(both, 2, 64) == bandwidth(one, 2, 64) / 2  # two leaves of one site


def test_only_steps_between_sites_have_the_latency_of_the_line() -> None:
    """48 nodes: a ring has 2 steps between the sites and 45 inside; a tree one of six. Two stages are one message apart."""
    far = replace(found_cluster("jean-zay:48"), tiers=(Tier(name="line", nodes=24, bandwidth=1e12, latency=20e-3),))
    fabric = Fabric.of(far, replace(IDEAL, network_latency=1e-5))
    assert latencies(fabric, 48, 8) == pytest.approx((2 * 20e-3 + 45e-5, 20e-3 + 5e-5))
    assert latencies(fabric, 24, 8) == pytest.approx((23e-5, 5e-5))
    assert latencies(fabric, 2, 192) == pytest.approx((20e-3, 20e-3))


@given(sizes, st.integers(1, 512), st.floats(1, 16), st.floats(1, 16), st.floats(1e8, 1e12), st.floats(1, 100), bytes_)
def test_better_tiers_are_never_slower(
    size: int, stride: int, less: float, more: float, line: float, times: float, moved: float
) -> None:
    worse = under(leaf(less * more), Tier(name="line", nodes=24, bandwidth=line, latency=2e-3))
    better = under(leaf(less), Tier(name="line", nodes=24, bandwidth=line * times, latency=1e-3))
    slow, fast = (group(fabric, size, stride).reduce(np.full(1, moved)).item() for fabric in (worse, better))
    assert fast <= slow
    assert group(JEAN_ZAY, size, stride).reduce(np.full(1, moved)).item() <= fast
    spread = [
        AllToAll.of(f, np.full(1, float(size)), np.full(1, float(stride))).seconds(np.full(1, moved)).item()
        for f in (better, worse)
    ]
    assert spread == sorted(spread)


def test_a_tier_above_a_single_node_without_a_network_is_never_crossed() -> None:
    alone = Fabric.of(replace(found_cluster("1x8xh100-sxm"), tiers=(leaf(2),)), IDEAL)
    assert bandwidth(alone, 8, 1) == 450e9
    assert AllToAll.of(alone, np.full(1, 8.0), np.ones(1)).far.item() == 0


# All-to-all.


def exchange(fabric: Fabric, size: float, stride: float = 1.0) -> AllToAll:
    return AllToAll.of(fabric, np.full(1, float(size)), np.full(1, float(stride)))


def test_in_an_all_to_all_each_device_has_its_own_share_of_the_network() -> None:
    """16 ranks on two nodes: half of the bytes leave the node, at an eighth of its 50 GB/s; a ring would have all of it."""
    found = exchange(JEAN_ZAY, 16)
    assert found.far.item() == pytest.approx(0.5 / (OMNI_PATH / 8))
    assert found.seconds(np.full(1, 1e9)).item() == pytest.approx(0.5e9 / (OMNI_PATH / 8))
    assert group(JEAN_ZAY, 16, 1).bandwidth.item() == OMNI_PATH


def test_inside_a_node_an_all_to_all_uses_the_link() -> None:
    found = exchange(JEAN_ZAY, 8)
    assert (found.far.item(), found.nodes.item()) == (0, 1)
    assert found.seconds(np.full(1, 8e9)).item() == pytest.approx(7e9 / NVLINK)


def test_sending_a_token_to_a_node_once_saves_network_bytes_only() -> None:
    far, near = exchange(JEAN_ZAY, 64), exchange(JEAN_ZAY, 8)
    size = np.full(1, 1e9)
    assert far.seconds(size, 0.5).item() == pytest.approx(far.seconds(size).item() / 2)
    assert near.seconds(size, 0.5).item() == near.seconds(size).item()


# Groups that share out one copy, and copies of them.


def test_replicas_of_a_sharded_group_are_a_group_apart() -> None:
    """Two nodes of 8, tp 2, dp_shard 4: a copy is a node, and each of its 8 devices has an eighth of the network to the other."""
    cut = communicators(dp_replicate=2, dp_shard=4, tp=2)
    assert cut.shard.bandwidth.item() == NVLINK
    assert (cut.replicate.size.item(), cut.replicate.bandwidth.item()) == (2, OMNI_PATH / 8)


def test_ranks_with_the_same_experts_are_fewer_and_further_apart() -> None:
    cut = communicators(dp_shard=16, ep=8)
    assert (cut.experts.size.item(), cut.experts.bandwidth.item()) == (2, OMNI_PATH / 8)
    dense = communicators(dp_shard=16)
    assert dense.experts.size.item() == dense.shard.size.item() == 16


def test_whole_experts_are_held_by_tensor_parallel_ranks_too() -> None:
    """16 devices, tp 4: with etp 1, experts are on all 16 and ep 8 leaves 2 holders a node apart; with etp 4, ep 2 leaves 2 of 4 ranks."""
    whole, cut = communicators(dp_shard=4, tp=4, ep=8, etp=1), communicators(dp_shard=4, tp=4, ep=2, etp=4)
    assert (whole.experts.size.item(), whole.experts.bandwidth.item()) == (2, OMNI_PATH / 8)
    assert (cut.experts.size.item(), cut.shard.size.item()) == (2, 4)
    alone = communicators(dp_shard=4, tp=4, ep=1, etp=1)
    assert (alone.experts.size.item(), alone.shard.size.item()) == (16, 4)


def test_groups_of_experts_do_not_depend_on_other_layouts_of_the_block() -> None:
    pair = communicators(dp_shard=np.array([4, 4]), tp=np.array([4, 4]), ep=np.array([1, 8]), etp=np.array([1, 1]))
    assert pair.experts.size.tolist() == [16, 2]


# A mesh of links, without a switch.

MI300X = Fabric.of(found_cluster("2x8xmi300x"), IDEAL)
"""Seven links of 64 GB/s, one to each other device of the node."""


def test_a_pair_on_a_mesh_has_one_link_and_a_whole_node_all_of_them() -> None:
    def check(size: int, links: int) -> None:
        assert bandwidth(MI300X, size, 1) == pytest.approx(links * 64e9)

    check_every(check, [(2, 1), (4, 3), (8, 7)])
    assert bandwidth(replace(MI300X, peers=0), 2, 1) == pytest.approx(448e9)  # through a switch, any pair has them all


def test_an_all_to_all_on_a_mesh_sends_each_part_over_its_own_link() -> None:
    """Of 2 ranks, half of the bytes cross one link; of 8, an eighth crosses each of seven."""
    pair, node = (exchange(MI300X, n).seconds(np.full(1, 64e9)).item() for n in (2, 8))
    assert (pair, node) == pytest.approx((1 / 2, 1 / 8))


@given(st.sampled_from((2, 4, 8)), bytes_)
def test_a_mesh_is_never_faster_than_a_switch_of_the_same_bandwidth(size: int, moved: float) -> None:
    switch = replace(MI300X, peers=0)
    mesh, switched = (group(f, size, 1).reduce(np.full(1, moved)).item() for f in (MI300X, switch))
    assert mesh >= switched
    assert size < 8 or mesh == switched
