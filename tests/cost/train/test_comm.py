"""Communication time: the bytes that a collective moves, and the links that carry them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Tier
from meshwise.cost.layout import Layouts
from meshwise.cost.train.comm import AllToAll, Communicators, Fabric, Group
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


def communicators(**axes: int) -> Communicators:
    return Communicators.of(JEAN_ZAY, Layouts.of(**axes).as_floats())


@given(sizes, st.integers(1, 64), bytes_)
def test_a_ring_all_reduce_moves_all_but_one_part_twice(g: int, stride: int, size: float) -> None:
    """2 (g - 1) / g of the bytes pass through every rank: Patarasuk and Yuan 2009, and NCCL's bus bandwidth."""
    ring = group(JEAN_ZAY, g, stride)
    moved = ring.reduce(np.full(1, size)) * ring.bandwidth
    assert moved == pytest.approx(2 * (g - 1) / g * size)
    assert ring.gather(np.full(1, size)) * 2 == pytest.approx(ring.reduce(np.full(1, size)))


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
    assert bandwidth(fabric, size, stride) <= link
    if size * stride > 8 and size > 8 // min(stride, 8):  # it leaves the node
        assert bandwidth(fabric, size, stride) <= network


@given(sizes, st.integers(1, 512), st.floats(1, 100), st.floats(1, 100), bytes_)
def test_faster_links_never_take_longer(size: int, stride: int, link: float, network: float, moved: float) -> None:
    better = replace(JEAN_ZAY, link=JEAN_ZAY.link * link, network=JEAN_ZAY.network * network)
    assert group(better, size, stride).reduce(np.full(1, moved)) <= group(JEAN_ZAY, size, stride).reduce(np.full(1, moved))


def test_between_nodes_latency_grows_with_the_depth_of_a_tree() -> None:
    def check(size: int, steps: int) -> None:
        slow = replace(JEAN_ZAY, network_latency=1.0)
        assert float(group(slow, size, 8).latency[0]) == steps

    check_every(check, [(2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7)])


def test_inside_a_node_latency_grows_with_the_steps_of_the_ring() -> None:
    assert float(group(replace(JEAN_ZAY, link_latency=1.0), 8, 1).latency[0]) == 7


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
            ("2x(4xrtx3090)@10Gbps", 4, 32e9, 1.25e9),  # PCIe 4.0 x16 between cards
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


def test_only_tree_steps_between_sites_have_the_latency_of_the_line() -> None:
    """48 nodes: six steps of a tree, five of them inside a site."""
    far = replace(found_cluster("jean-zay:48"), tiers=(Tier(name="line", nodes=24, bandwidth=1e12, latency=20e-3),))
    fabric = Fabric.of(far, replace(IDEAL, network_latency=1e-5))
    assert group(fabric, 48, 8).latency.item() == pytest.approx(20e-3 + 5e-5)
    assert group(fabric, 24, 8).latency.item() == pytest.approx(5e-5)


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
