"""Clusters of the user: TOML files with networks, tiers and tori, and mistakes in them."""

from pathlib import Path

import pytest

from meshwise.catalogue.chips import Cluster
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import UserError
from support.command import one_line

CLUSTER = """
name = "My rig"
nodes = 2
chips = "4xrtx3090"
[network]
name = "10GbE"
bandwidth = "10Gbps"
latency = "30us"
[host]
memory = "128GiB"
"""


def refused(text: str) -> str:
    with pytest.raises(UserError) as caught:
        find_cluster(text)
    return one_line(caught.value)


def bandwidth(cluster: Cluster) -> float:
    assert cluster.network is not None
    return cluster.network.bandwidth


@pytest.mark.parametrize("name", ["rig.toml", "me@home.toml", "RIG X.toml"])
def test_a_cluster_is_read_from_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(CLUSTER)
    cluster = find_cluster(str(path))
    assert (cluster.name, cluster.devices, cluster.node_count) == ("My rig", 8, 2)
    assert cluster.network is not None
    assert (cluster.network.bandwidth, cluster.network.latency) == (1.25e9, pytest.approx(30e-6))
    assert cluster.node.host.memory == 128 * 2**30


def test_the_network_of_a_file_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    path.write_text(CLUSTER)
    assert bandwidth(find_cluster(f"{path}@100Gbps")) == 12.5e9


def test_a_torus_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "slices.toml"
    path.write_text('name = "Mine"\ntorus = "tpu-v5p:4x4x4"\npods = 3\n[host]\nmemory = "1TB"')
    cluster = find_cluster(str(path))
    assert (cluster.devices, cluster.node_count, cluster.torus) == (192, 3, (4, 4, 4))
    assert cluster.node.host.memory == 1e12


TIERS = """
[[tiers]]
name = "spine"
nodes = 64
bandwidth = "1TB/s"
latency = "5us"
[[tiers]]
name = "leaf"
nodes = 16
oversubscription = 2
"""


def test_tiers_are_read_from_a_file_from_the_inside_out(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    path.write_text(CLUSTER + TIERS)
    leaf, spine = find_cluster(str(path)).tiers
    assert (leaf.name, spine.name) == ("leaf", "spine")
    assert leaf.leaving(find_cluster(str(path)).network) == 16 * 1.25e9 / 2
    assert leaf.leaving(find_cluster(f"{path}@100Gbps").network) == 16 * 12.5e9 / 2  # a share of whatever the nodes have
    assert (spine.leaving(None), spine.latency) == (1e12, pytest.approx(5e-6))


def test_a_leaf_does_not_span_two_sites(home: Path) -> None:
    (home / "clusters" / "mine.toml").write_text(CLUSTER.replace("nodes = 2", "nodes = 32") + TIERS)
    assert [tier.nodes for tier in find_cluster("2x(mine)@10Gbps").tiers] == [16, 32]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("oversubscription = 2", "", "the tier 'leaf' needs 'nodes', and either 'oversubscription' or 'bandwidth'"),
        ("oversubscription = 2", 'oversubscription = 2\nbandwidth = "1GB/s"', "the tier 'leaf' needs 'nodes', and either"),
        ("oversubscription = 2", "oversubscription = 0", "the tier 'leaf' needs 'nodes', and either"),
        ("oversubscription = 2", "oversubscription = -2", "must be finite and not negative"),
        ("nodes = 16", "", "the key 'nodes' is missing"),
        ("nodes = 16", "nodes = 0", "expected a whole number from 1"),
        ('latency = "5us"', 'latency = "5"', "'5' is not a time"),
        ('name = "spine"', "", "the key 'name' is missing"),
        ("oversubscription", "oversubscribed", "unknown key 'oversubscribed'; did you mean 'oversubscription'?"),
    ],
)
def test_a_mistake_in_a_tier_is_reported_with_file_and_key(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    assert right in TIERS
    path = tmp_path / "mine.toml"
    path.write_text(CLUSTER + TIERS.replace(right, wrong))
    error = refused(str(path))
    assert error.startswith("mine.toml: tiers")
    assert message in error


def test_a_users_cluster_comes_before_the_built_in_one(home: Path) -> None:
    (home / "clusters" / "jean-zay.toml").write_text(CLUSTER)
    assert find_cluster("jean-zay").chips == {"rtx3090": 8}
    assert find_cluster("jean-zay:3").devices == 12
    assert find_cluster("my rig").devices == 8


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("chips =", "chip =", "mine.toml: unknown key 'chip'; did you mean 'chips'?"),
        ('name = "My rig"', "", "mine.toml: the key 'name' is missing"),
        ("nodes = 2", "nodes = 0", "mine.toml: nodes: expected a whole number from 1 to 1e9, found 0"),
        ("nodes = 2", 'nodes = "2"', "mine.toml: nodes: expected a whole number, found '2'"),
        ('"10Gbps"', '"10Gb"', "mine.toml: network: bandwidth: '10Gb' is not a bandwidth"),
        ('"10Gbps"', '"0Gbps"', "mine.toml: network: the link '10GbE' has no bandwidth"),
        ("rtx3090", "rtx3900", "mine.toml: unknown chip 'rtx3900'; did you mean 'rtx3090'?"),
        ("4xrtx3090", "0xrtx3090", "mine.toml: cluster '0xrtx3090': '0' is not a number of devices"),
        ('chips = "4xrtx3090"', "", "mine.toml: give either 'chips'"),
        ('chips = "4xrtx3090"', 'chips = "4xrtx3090"\ntorus = "tpu-v5p"', "mine.toml: give either 'chips'"),
        ("nodes = 2", "pods = 2", "mine.toml: 'nodes' goes with 'chips', 'pods' with 'torus'"),
        ('nodes = 2\nchips = "4xrtx3090"', 'torus = "rtx3090"', "mine.toml: torus: 'rtx3090' is not one torus"),
        (
            'nodes = 2\nchips = "4xrtx3090"',
            'torus = "2 pods of tpu-v5p"',
            "mine.toml: torus: '2 pods of tpu-v5p' is not one torus",
        ),
        ("nodes = 2", "nodes = 1000000000", "has 4,000,000,000 devices; at most 10,000,000 can be planned"),
    ],
)
def test_a_mistake_in_a_cluster_file_is_reported_with_file_and_key(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    assert right in CLUSTER
    path = tmp_path / "mine.toml"
    path.write_text(CLUSTER.replace(right, wrong))
    assert message in refused(str(path))


def test_a_broken_file_of_the_user_is_named_when_the_catalogue_is_read(home: Path) -> None:
    (home / "clusters" / "broken.toml").write_text("name = ")
    assert "broken.toml" in refused("dgx-h10")


def test_the_example_of_a_cluster_file_in_the_docs_is_read_as_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/use/cli.md").read_text(encoding="utf-8")
    (tmp_path / "my-cluster.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    cluster = find_cluster(str(tmp_path / "my-cluster.toml"))
    assert (cluster.node_count, cluster.devices) == (64, 512)
    assert cluster.network
    assert cluster.network.bandwidth == 400e9
    assert cluster.tiers[0].oversubscription == 2
    assert cluster.rent == pytest.approx(64 * 20 / 3600)
    assert cluster.priced_by == "our own books, 2026-11-01"
