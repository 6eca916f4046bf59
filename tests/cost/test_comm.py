"""Time between devices: what a collective moves, and over which wires."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.calibration import Calibration
from meshwise.cost.comm import Exchange, Fabric, Group, Wires
from meshwise.layout import Layouts
from planning import found_cluster

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


def wires(**axes: int) -> Wires:
    return Wires.of(JEAN_ZAY, Layouts.of(**axes).as_floats())


@given(sizes, st.integers(1, 64), bytes_)
def test_a_ring_all_reduce_moves_all_but_one_part_twice(g: int, stride: int, size: float) -> None:
    """2 (g - 1) / g of the bytes pass through every rank: Patarasuk and Yuan 2009, and NCCL's bus bandwidth."""
    ring = group(JEAN_ZAY, g, stride)
    moved = ring.reduce(np.full(1, size)) * ring.bandwidth
    assert moved == pytest.approx(2 * (g - 1) / g * size)
    assert ring.gather(np.full(1, size)) * 2 == pytest.approx(ring.reduce(np.full(1, size)))


def test_a_rank_alone_sends_nothing() -> None:
    alone = Group.of(replace(JEAN_ZAY, link_latency=1e-5, network_latency=1e-5), np.ones(1), np.ones(1))
    exchange = Exchange.of(replace(JEAN_ZAY, link_latency=1e-5, network_latency=1e-5), np.ones(1), np.ones(1))
    for collective in (alone.gather, alone.reduce, exchange.seconds):
        assert collective(np.full(1, 1e9)).item() == 0


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
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
def test_ranks_share_the_network_of_their_node(size: int, stride: int, expected: float) -> None:
    assert bandwidth(JEAN_ZAY, size, stride) == expected


@given(sizes, st.integers(1, 512), st.floats(1e9, 1e12), st.floats(1e9, 1e12))
def test_no_group_is_faster_than_its_links(size: int, stride: int, link: float, network: float) -> None:
    fabric = Fabric(8, link, network, 0.0, 0.0)
    assert bandwidth(fabric, size, stride) <= link
    if size * stride > 8 and size > 8 // min(stride, 8):  # it leaves the node
        assert bandwidth(fabric, size, stride) <= network


@given(sizes, st.integers(1, 512), st.floats(1, 100), st.floats(1, 100), bytes_)
def test_better_wires_never_take_longer(size: int, stride: int, link: float, network: float, moved: float) -> None:
    better = replace(JEAN_ZAY, link=JEAN_ZAY.link * link, network=JEAN_ZAY.network * network)
    assert group(better, size, stride).reduce(np.full(1, moved)) <= group(JEAN_ZAY, size, stride).reduce(np.full(1, moved))


@pytest.mark.parametrize(("size", "steps"), [(2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7)])
def test_between_nodes_latency_grows_with_the_depth_of_a_tree(size: int, steps: int) -> None:
    slow = replace(JEAN_ZAY, network_latency=1.0)
    assert float(group(slow, size, 8).latency[0]) == steps


def test_inside_a_node_latency_grows_with_the_steps_of_the_ring() -> None:
    assert float(group(replace(JEAN_ZAY, link_latency=1.0), 8, 1).latency[0]) == 7


def test_context_ranks_hold_the_same_weights_as_data_ranks() -> None:
    cut = wires(dp_shard=4, cp=2, tp=4)
    assert (cut.shard.size.item(), cut.cp.size.item(), cut.tp.size.item()) == (8, 2, 4)


def test_groups_step_over_tensor_parallel_ranks() -> None:
    """tp 4, cp 2: a context group is inside a node of 8, the data group is not, stages are a node or more apart."""
    cut = wires(dp_shard=4, cp=2, tp=4, pp=2, ep=4)
    assert cut.tp.bandwidth.item() == cut.cp.bandwidth.item() == NVLINK
    assert cut.shard.bandwidth.item() == OMNI_PATH / 4
    assert cut.stage.bandwidth.item() == OMNI_PATH / 8


@pytest.mark.parametrize(
    ("cluster", "node", "link", "network"),
    [
        ("1x8xh100-sxm", 8, 450e9, 450e9),  # no network: nothing leaves the node
        ("2x(4xrtx3090)@10Gbps", 4, 32e9, 1.25e9),  # PCIe 4.0 x16 between cards
        ("jean-zay:4", 8, NVLINK, OMNI_PATH),
        ("tpu-v5p:4x4x4", 64, 3 * 90e9, None),  # a torus is one node whose every axis carries bytes
    ],
)
def test_a_cluster_as_collectives_see_it(cluster: str, node: int, link: float | None, network: float | None) -> None:
    found = Fabric.of(found_cluster(cluster), IDEAL)
    assert found.node == node
    assert link is None or found.link == pytest.approx(link)
    assert network is None or found.network == pytest.approx(network)
