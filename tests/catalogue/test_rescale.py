"""A cluster with one property changed: its text is read back as the intended cluster."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.rescale import node_size, with_chip, with_devices, with_network, with_nodes
from meshwise.errors import DoesNotFit, UserError

CLUSTERS = (
    "48x8xa100-80gb-sxm",
    "jean-zay:48",
    "4xdgx-h100",
    "2x(4xrtx3090)@10Gbps",
    "8xh100-sxm",
    "p5.48xlarge",
    "16xh200@800Gbps",
)


@given(st.sampled_from(CLUSTERS), st.integers(1, 600))
def test_another_number_of_nodes_is_the_same_node(text: str, nodes: int) -> None:
    before, after = find_cluster(text), find_cluster(with_nodes(text, nodes))
    assert after.node_count == nodes
    assert after.node == before.node
    assert after.prices == before.prices
    if before.network and nodes > 1:
        assert after.network == before.network


def test_a_chip_without_a_count_means_its_vendors_node() -> None:
    assert node_size("h100-sxm") == 8
    assert find_cluster(with_nodes("h100-sxm", 3)).devices == 24
    assert find_cluster(with_nodes("gb200", 2)).devices == 144


def test_pods_are_the_nodes_of_a_torus() -> None:
    found = find_cluster(with_nodes("tpu-v5p:4x4x4", 3))
    assert (found.node_count, found.devices, found.torus) == (3, 192, (4, 4, 4))


@pytest.mark.parametrize(
    ("text", "devices", "nodes"), [("48x8xa100-80gb-sxm", 64, 8), ("h100-sxm", 4, 1), ("jean-zay", 8, 1), ("8xh100-sxm", 2, 1)]
)
def test_devices_are_whole_nodes_or_a_part_of_one(text: str, devices: int, nodes: int) -> None:
    found = find_cluster(with_devices(text, devices))
    assert (found.devices, found.node_count) == (devices, nodes)


@pytest.mark.parametrize("devices", [64, 96, 512, 8960, 17920])
def test_a_slice_of_a_torus_has_as_many_chips_as_asked(devices: int) -> None:
    """16 x 20 x 28 = 8,960 chips are a whole pod of TPU v5p."""
    assert find_cluster(with_devices("tpu-v5p:4x4x4", devices)).devices == devices


def test_a_slice_is_as_compact_as_can_be() -> None:
    assert with_devices("tpu-v5p:4x4x4", 512) == "tpu-v5p:8x8x8"


@pytest.mark.parametrize(
    ("text", "devices", "words"),
    [
        ("48x8xa100-80gb-sxm", 12, "12 devices do not fill whole nodes of 8; expected a multiple of 8"),
        ("tpu-v5p:4x4x4", 37, "no slice of a 16x20x28 pod has 37 chips"),
    ],
)
def test_impossible_numbers_of_devices_are_refused(text: str, devices: int, words: str) -> None:
    with pytest.raises(DoesNotFit, match=words):
        with_devices(text, devices)


def test_another_chip_keeps_the_devices_and_a_given_network() -> None:
    given_network, assumed = with_chip("48x8xa100-80gb-sxm@400Gbps", "h200"), with_chip("48x8xa100-80gb-sxm", "h200")
    assert (given_network, assumed) == ("48x8xh200@400Gbps", "48x8xh200")
    assert find_cluster(with_chip("9x8xh100-sxm", "gb200")).node_count == 1  # 72 to a node
    assert find_cluster(with_chip("64x8xh100-sxm", "tpu-v5p")).torus == (8, 8, 8)
    assert with_chip("2x4xh100-sxm", "h200") == "2x4xh200"  # no vendor's node, so that of the user
    assert with_chip("h100-sxm", "h200") == "h200"
    assert with_chip("jean-zay:4", "a100-80gb") == "jean-zay:4"  # the chip it has


def test_a_chip_whose_nodes_do_not_divide_the_devices_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="512 devices do not fill whole nodes of 72 GB200"):
        with_chip("64x8xh100-sxm", "gb200")


@given(st.floats(1e6, 1e13))
def test_another_network_is_read_back_to_the_last_digit(bandwidth: float) -> None:
    for text in ("48x8xa100-80gb-sxm", "48x8xa100-80gb-sxm@400Gbps", "jean-zay:48"):
        found = find_cluster(with_network(text, bandwidth))
        assert found.network
        assert found.network.bandwidth == bandwidth


def test_a_cluster_from_a_file_cannot_be_varied(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nnodes = 4\nchips = "8xh100-sxm"\n[network]\nname = "IB"\nbandwidth = "400Gbps"\n')
    with pytest.raises(UserError, match="cannot be varied"):
        with_nodes(str(path), 8)
    with pytest.raises(UserError, match="is set in its file"):
        with_network(str(path), 1e9)


@pytest.mark.parametrize("text", ["2xrtx3090+1xrtx3060-12gb", "2x(4xrtx3090)+1x(2xrtx3090)@10Gbps"])
def test_a_mixed_cluster_has_no_one_node_to_vary(text: str) -> None:
    with pytest.raises(UserError, match="mixes chips or nodes"):
        with_nodes(text, 2)
