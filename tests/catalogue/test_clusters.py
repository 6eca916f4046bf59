"""Clusters as text: every form of the grammar is read, and anything else is refused in one line."""

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwise.catalogue import files
from meshwise.catalogue.chips import Cluster, chips, find_chip
from meshwise.catalogue.clusters import cluster_files, filter_clusters, find_cluster, with_link
from meshwise.catalogue.pods import MAX_DEVICES, slices_in_text
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every

GPUS = sorted(chip.key for chip in chips() if chip.kind != "tpu")
TPUS = sorted(chip.key for chip in chips() if chip.kind == "tpu")


def refused(text: str) -> str:
    with pytest.raises(UserError) as caught:
        find_cluster(text)
    return one_line(caught.value)


def bandwidth(cluster: Cluster) -> float:
    assert cluster.network is not None
    return cluster.network.bandwidth


FORMS = [
    ("48x8xa100-80gb", 48, {"a100-80gb-sxm": 384}),
    ("48X8XA100-80GB", 48, {"a100-80gb-sxm": 384}),
    ("48 × 8 × A100 80GB", 48, {"a100-80gb-sxm": 384}),
    ("64xh100-sxm", 8, {"h100-sxm": 64}),
    ("144xgb200", 2, {"gb200": 144}),  # 72 share one NVLink domain
    ("h200", 1, {"h200": 1}),
    ("jean-zay", 52, {"a100-80gb-sxm": 416}),  # idris.fr: 52 nodes of 8
    ("jean-zay:48", 48, {"a100-80gb-sxm": 384}),
    ("Jean Zay: 48 nodes", 48, {"a100-80gb-sxm": 384}),
    ("2xjean-zay", 104, {"a100-80gb-sxm": 832}),
    ("jean-zay:48@800Gbps", 48, {"a100-80gb-sxm": 384}),
    ("4xdgx-h100", 4, {"h100-sxm": 32}),
    ("dgx-h100:4", 4, {"h100-sxm": 32}),
    ("2xgb200-nvl72", 2, {"gb200": 144}),
    ("tpu-v5p", 1, {"tpu-v5p": 8960}),  # 16 x 20 x 28
    ("TPU v5p", 1, {"tpu-v5p": 8960}),
    ("tpu-v5p:16x20x28", 1, {"tpu-v5p": 8960}),
    ("tpu-v5p:16×20×28", 1, {"tpu-v5p": 8960}),
    ("4 pods of tpu-v5p", 4, {"tpu-v5p": 35840}),
    ("4 pods of TPU v5p", 4, {"tpu-v5p": 35840}),
    ("tpu-v5p:16x20x28, 4 pods", 4, {"tpu-v5p": 35840}),
    ("tpu-v5p:4 pods", 4, {"tpu-v5p": 35840}),
    ("tpu-v5p-pod:4", 4, {"tpu-v5p": 35840}),
    ("tpu-v5p-4pods", 4, {"tpu-v5p": 35840}),
    ("2xtpu-v5p-4pods", 8, {"tpu-v5p": 71680}),
    ("2xtpu-v5p:4x4x4", 2, {"tpu-v5p": 128}),
    ("tpu-v5e:4x4", 1, {"tpu-v5e": 16}),
    ("4xrtx4060ti-16gb", 1, {"rtx4060ti-16gb": 4}),
    ("2xrtx3090+1xrtx3060-12gb", 1, {"rtx3090": 2, "rtx3060-12gb": 1}),
    ("rtx3090+rtx3090", 1, {"rtx3090": 2}),
    ("(2xrtx3090+1xrtx3060-12gb)", 1, {"rtx3090": 2, "rtx3060-12gb": 1}),
    ("2x(4xrtx3090)@10Gbps", 2, {"rtx3090": 8}),
    ("2x4xrtx3090@10Gbps", 2, {"rtx3090": 8}),
    ("(2xrtx3090)+(1xrtx4090)@10Gbps", 2, {"rtx3090": 2, "rtx4090": 1}),
    ("2x7900xtx", 1, {"rx7900xtx": 2}),
    ("7900xtx", 1, {"rx7900xtx": 1}),
    ("2xm2-ultra@40Gbps", 2, {"m2-ultra": 2}),  # one Mac, one chip
    ("2x(4x8xh100-sxm)@800Gbps,20ms", 8, {"h100-sxm": 64}),  # two sites of four nodes
    ("2 × (4 × 8 × H100-SXM) @ 800Gbps", 8, {"h100-sxm": 64}),
    ("2x(jean-zay:48)@800Gbps", 96, {"a100-80gb-sxm": 768}),
    ("2x(jean-zay)@800Gbps", 104, {"a100-80gb-sxm": 832}),
    ("2x(4xdgx-h100)@800Gbps", 8, {"h100-sxm": 64}),
    ("2x(4 pods of tpu-v5p)@800Gbps,10ms", 8, {"tpu-v5p": 71680}),
    ("2x(3x(4x8xh100-sxm)@800Gbps)@100Gbps,20ms", 24, {"h100-sxm": 192}),
]


def test_every_form_of_the_grammar_is_read() -> None:
    def check(text: str, nodes: int, chips_found: dict[str, int]) -> None:
        cluster = find_cluster(text)
        assert cluster.node_count == nodes
        assert cluster.chips == chips_found
        assert cluster.devices == sum(chips_found.values())

    check_every(check, FORMS)


def test_the_nodes_of_jean_zay_share_fifty_gigabytes_a_second() -> None:
    cluster = find_cluster("jean-zay:48")  # BigScience chronicles: 4 Omni-Path links of 100 Gb/s per node
    assert bandwidth(cluster) == 4 * 100e9 / 8
    assert cluster.notes == ()


def test_a_network_that_was_assumed_is_noted() -> None:
    cluster = find_cluster("64xh100-sxm")
    assert bandwidth(cluster) == 8 * 400e9 / 8  # a DGX H100 has 400 Gb/s per GPU
    (note,) = cluster.notes
    assert note.startswith("network not given: the vendor's InfiniBand NDR, 50 GB/s a device, assumed")


@pytest.mark.parametrize("text", ["2x(2xh100-sxm+1xh100-sxm)", "(3xh100-sxm)+(8xh100-sxm)", "(8xh100-sxm)+(3xh100-sxm)"])
def test_an_assumed_network_has_the_bandwidth_of_the_smallest_host(text: str) -> None:
    assert bandwidth(find_cluster(text)) == 3 * 400e9 / 8


def test_a_network_that_was_given_counts_and_nothing_is_assumed() -> None:
    cluster = find_cluster("64xh100-sxm @ 100Gbps")
    assert bandwidth(cluster) == 12.5e9
    assert cluster.notes == ()
    assert bandwidth(find_cluster("jean-zay:48@800Gbps")) == 100e9


def test_one_host_needs_no_network() -> None:
    assert find_cluster("8xh100-sxm").network is None


def test_a_torus_keeps_its_shape_and_each_chip_its_share_of_the_data_center_network() -> None:
    cluster = find_cluster("4 pods of tpu-v5p")
    assert cluster.torus == (16, 20, 28)
    assert bandwidth(cluster) == 8960 * 6.25e9
    _, pod = cluster.nodes[0]
    assert pod.link is not None
    assert (pod.link.axes, pod.link.bandwidth) == (3, 9e10)


def test_cards_in_one_host_talk_over_their_link_or_the_slowest_bus() -> None:
    def link(text: str) -> str:
        _, node = find_cluster(text).nodes[0]
        return node.link.name if node.link else ""

    assert link("8xh100-sxm") == "NVLink 4"
    assert link("4xrtx4060ti-16gb") == "PCIe 4.0 x8"
    assert link("2xrtx3090+1xrtx4060ti-16gb") == "PCIe 4.0 x8"


def test_a_name_that_stands_for_one_of_several_variants_is_noted() -> None:
    (note,) = find_cluster("8xh100").notes
    assert (
        note
        == "h100 is taken as h100-sxm; the catalogue also has h100-64gb-sxm, h100-96gb-500w, h100-96gb-sxm, h100-nvl, h100-pcie"
    )
    assert find_cluster("8xh100@100Gbps").notes == (note,)
    assert note in find_cluster("2x(4x8xh100)@800Gbps").notes
    assert len(find_cluster("(8xh100)+(8xh100)+(4xa100-80gb)@100Gbps").notes) == 2
    assert find_cluster("8xh100-sxm").notes == find_cluster("8xrtx4070").notes == ()  # one is a key, one has no other variant


def test_unusual_nodes_are_accepted_with_a_note() -> None:
    cluster = find_cluster("3x7xh100-sxm@400Gbps")
    assert (cluster.node_count, cluster.devices) == (3, 21)
    assert cluster.notes == ("nodes with 7 H100 SXM: the vendor's own have 8, as in 3x8xh100-sxm",)
    assert find_cluster("3x4xh100-sxm@400Gbps").notes == ()  # half a board
    assert find_cluster("3x7xrtx3090@10Gbps").notes == ()  # cards that people put into machines of their own


def test_every_cluster_of_the_catalogue_loads_with_its_sources() -> None:
    def check(name: str) -> None:
        cluster = find_cluster(name)
        assert cluster.devices >= 1
        assert cluster.sources
        assert all(source.url.startswith(("https://", "http://")) and source.title for source in cluster.sources)
        assert cluster.notes == cluster_files()[name].notes
        assert cluster.network is None or 1e8 < bandwidth(cluster) <= 1e15
        assert find_cluster(cluster_files()[name].name) == cluster

    check_every(check, ((name,) for name in cluster_files()))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("jean", ["jean-zay"]),
        ("dgx h", ["dgx-h100", "dgx-h200"]),
        ("selene", ["selene"]),
        ("v5p", ["tpu-v5p-4pods", "tpu-v5p-8pods", "tpu-v5p-pod"]),
        ("banana", []),
    ],
)
def test_clusters_are_filtered_by_words_in_their_names_and_chips(words: str, names: list[str]) -> None:
    assert filter_clusters(words) == names


def test_no_cluster_has_the_name_of_another_or_of_a_chip() -> None:
    taken = [{files.squeeze(name) for name in (chip.key, chip.name, *chip.aliases)} for chip in chips()]
    taken += [{files.squeeze(name) for name in (key, file.name, *file.aliases)} for key, file in cluster_files().items()]
    assert sum(map(len, taken)) == len(set().union(*taken))


REFUSED = [
    ("h100x", "unknown chip 'h100x'; did you mean 'h100-sxm'? (meshwise show chips)"),
    ("8xh100x", "unknown chip 'h100x'; did you mean 'h100-sxm'? (meshwise show chips)"),
    (
        "3x7xh10",
        "unknown chip 'h10'; did you mean 'h100-sxm', 'h100-nvl', 'h100-64gb-sxm' or 3 more? (meshwise show chips h10)",
    ),
    ("jean-zya", "unknown cluster 'jean-zya'; did you mean 'jean-zay'?"),
    ("jean-zya:48@800Gbps", "unknown cluster 'jean-zya:48'; did you mean 'jean-zay'?"),
    ("4xdgx-h10", "unknown cluster 'dgx-h10'; did you mean 'dgx-h100'?"),
    (
        "8xmi300",
        "unknown chip 'mi300'; did you mean 'mi300a' or 'mi300x'? (meshwise show chips mi300)",
    ),  # there is a cluster mi300x-8 too
    ("8xbanana", "unknown chip 'banana' (meshwise show chips, or add it as "),
    ("", "unknown chip ''"),
    ("a10:0", "unknown chip 'a10:0'"),
    ("2x()", "unknown chip '()'"),
    ("0xh100", "'0' is not a number of devices from 1 to 10,000,000"),
    ("0x(4xrtx3090)@10Gbps", "'0' is not a number of devices"),
    ("123456789012xh100", "'123456789012' is not a number of devices"),
    ("9999999x9xh100-sxm", "has 89,999,991 devices; at most 10,000,000 can be planned"),
    ("12xh100", "12 is not a multiple of the 8 H100 SXM of a node; write nodes x devices, such as 2x6xh100-sxm"),
    ("21xh100", "write nodes x devices, such as 3x7xh100-sxm"),
    ("23xh100", "write nodes x devices, such as 23x1xh100-sxm"),
    ("2x(4xrtx3090@10Gbps", "parentheses do not match"),
    ("4xrtx3090)@10Gbps", "parentheses do not match"),
    ("((4xrtx3090))", "parentheses do not match"),
    ("jean-zay:0", "'0' is not a number of nodes; write it as in 'jean-zay:48'"),
    ("jean-zay:-1", "'-1' is not a number of nodes"),
    ("jean-zay:many", "'many' is not a number of nodes"),
    ("1xrtx3090+2xjean-zay", "'jean-zay' is a whole cluster; write it alone"),
    ("tpu-v5p:17x20x28", "does not fit in the largest pod of TPU v5p, 16x20x28"),
    ("tpu-v5p:29", "does not fit in the largest pod of TPU v5p"),
    ("tpu-v5e:4x4x4", "TPU v5e is a torus of 2 axes, such as tpu-v5e:16x16"),
    ("tpu-v5p:2x2x2x2", "TPU v5p is a torus of 3 axes, such as tpu-v5p:16x20x28"),
    ("tpu-v5p:x", "TPU v5p is a torus of 3 axes"),
    ("tpu-v5p:16xx20", "TPU v5p is a torus of 3 axes"),
    ("tpu-v5p:0x4", "'0' is not a number of devices"),
    ("tpu-v5p:999999999x4", "'999999999' is not a number of devices"),
    ("4xtpu-v5p", "a slice of TPU v5p needs its shape, such as tpu-v5p:16x20x28"),
    ("2x(4xtpu-v5p)", "a slice of TPU v5p needs its shape"),
    ("2xtpu-v5p:4x4x4, 4 pods", "the number of pods is given twice, '2x' and '4 pods'"),
    ("16xrtx3090", "has several hosts and no network between them; add one, such as 16xrtx3090@10Gbps"),
    ("(2xrtx3090)+(1xrtx4090)", "has several hosts and no network between them"),
    ("(8xh100-sxm)+(8xa100-80gb)", "has several hosts and no network between them"),
    ("8xh100-sxm@", "'' is not a bandwidth (such as 3.35TB/s, 400Gbps)"),
    ("8xh100-sxm@10GB", "'10GB' is not a bandwidth but a size in bytes"),
    ("8xh100-sxm@0Gbps", "the link '0Gbps' has no bandwidth"),
    ("missing.toml", "cannot read 'missing.toml': No such file or directory"),
    ("2x(4x8xh100-sxm)", "has several sites and no line between them; add one, such as @800Gbps,20ms"),
    ("2x(4x8xh100-sxm)@", "has several sites and no line between them"),
    ("2x(jean-zay:48)@,20ms", "has several sites and no line between them"),
    ("2x(4x8xh100-sxm)@0Gbps", "the line '0Gbps' has no bandwidth"),
    ("2x(4x8xh100-sxm)@fast", "'fast' is not a bandwidth"),
    ("2x(4x8xh100-sxm)@20ms", "'20ms' is not a bandwidth but a time"),
    ("2x(4x8xh100-sxm)@800Gbps,20", "'20' is not a time: it has no unit"),
    ("2x(4x8xh100-sxm)@800Gbps,20ms,3", "is not a time"),
    ("2x(4x8xh100x)@800Gbps", "unknown chip 'h100x'"),
    ("0x(4x8xh100-sxm)@800Gbps", "'0' is not a number of devices"),
    ("9999999x(4x8xh100-sxm)@800Gbps", "has 319,999,968 devices; at most 10,000,000 can be planned"),
    ("2x(" * 3000 + "4x8xh100-sxm" + ")@1Gbps" * 3000, "sites of sites go 5 deep at most"),
]


def test_an_impossible_cluster_is_refused_with_a_fix() -> None:
    def check(text: str, message: str) -> None:
        assert message in refused(text)

    check_every(check, REFUSED)


@pytest.mark.parametrize(("text", "devices"), [("16xrtx3090", 16), ("12xh100", 12), ("21xh100", 21), ("23xh100", 23)])
def test_the_fix_that_an_error_offers_works(text: str, devices: int) -> None:
    offered = refused(text).rpartition("such as ")[2]
    assert find_cluster(offered).devices == devices


def test_sites_keep_their_own_network_and_have_a_line_between_them() -> None:
    cluster = find_cluster("2x(jean-zay:48)@800Gbps,20ms")
    assert bandwidth(cluster) == 50e9
    (line,) = cluster.tiers
    assert (line.nodes, line.leaving(cluster.network), line.latency) == (48, 100e9, pytest.approx(20e-3))
    assert find_cluster("2x(jean-zay:48)@800Gbps").tiers[0].latency is None


def test_parentheses_around_one_host_describe_a_host() -> None:
    cluster = find_cluster("2x(4xrtx3090)@10Gbps")
    assert (cluster.tiers, bandwidth(cluster)) == ((), 1.25e9)


@given(st.integers(1, 500), st.integers(1, 16), st.sampled_from(GPUS))
def test_nodes_and_cards_multiply(nodes: int, cards: int, chip: str) -> None:
    cluster = find_cluster(f"{nodes}x{cards}x{chip}@10Gbps")
    assert cluster.node_count == nodes
    assert cluster.chips == {chip: nodes * cards}
    assert cluster.memory == pytest.approx(nodes * cards * find_chip(chip).memory)
    assert find_cluster(f"{nodes}x({cards}x{chip})@10Gbps").chips == cluster.chips


@given(st.sampled_from(TPUS), st.integers(1, 64), st.lists(st.integers(1, 32), min_size=1, max_size=4))
def test_the_sides_of_a_torus_multiply_or_do_not_fit(chip: str, pods: int, shape: list[int]) -> None:
    found = find_chip(chip)
    assert found.link is not None
    text = f"{pods} pods of {chip}:{'x'.join(map(str, shape))}@100Gbps"
    # A slice fits when its sides, longest first, are within those of the pod.
    largest = sorted(found.torus.pod if found.torus and found.torus.pod else [32] * 3, reverse=True)
    sides = sorted(shape, reverse=True)
    if len(sides) <= found.link.axes and all(side <= most for side, most in zip(sides, largest, strict=False)):
        assert find_cluster(text).devices == pods * math.prod(shape)
    else:
        assert found.name in refused(text)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(GPUS)), min_size=2, max_size=4))
def test_a_sum_of_cards_is_one_host_and_a_sum_of_hosts_is_several(cards: list[tuple[int, str]]) -> None:
    terms = [f"{count}x{chip}" for count, chip in cards]
    together = find_cluster("+".join(terms))
    apart = find_cluster("+".join(f"({term})" for term in terms) + "@10Gbps")
    assert (together.node_count, apart.node_count) == (1, len(cards))
    assert together.chips == apart.chips
    assert together.devices == sum(count for count, _ in cards)


MARKS = [
    "x",
    "(",
    ")",
    "+",
    "@",
    ":",
    ",",
    " ",
    ".",
    "-",
    "0",
    "2",
    "8",
    "16",
    "99999",
    " pods",
    " pods of ",
    "nodes",
    "10Gbps",
    "2x(4x8x",
    ")@10Gbps,1ms",
]
NAMES = ["h100", "a100", "rtx3090", "7900xtx", "m1", "tpu-v5p", "tpu-v7", "tpu-v5e", "jean-zay", "dgx-h100", "tpu-v5p-4pods"]
words = st.sampled_from([*MARKS, *NAMES, ".toml"])


@given(st.text() | st.lists(words, max_size=12).map("".join))
@example("9" * 20_000)
@example("1 " + " " * 20_000 + "pod")
@example("(" * 20_000)
@example("x" * 20_000 + ".toml")
def test_any_text_is_a_cluster_or_one_line_of_error(text: str) -> None:
    try:
        cluster = find_cluster(text)
    except UserError as error:
        one_line(error)
    else:
        assert 1 <= cluster.node_count <= cluster.devices <= MAX_DEVICES
        assert cluster.node_count == 1 or bandwidth(cluster) > 0
        assert cluster.memory > 0


@pytest.mark.parametrize("text", ["4x8xh100-sxm", "8xrtx4090", "jean-zay:4", "tpu-v5p:4x4x4"])
def test_with_link_changes_only_the_link(text: str) -> None:
    before = find_cluster(text)
    after = with_link(before, "123GB/s")
    assert after.node.link
    assert after.node.link.bandwidth == 123e9
    back = before.node.link
    assert back
    assert with_link(after, f"{back.bandwidth:.17g}B/s") == before


@pytest.mark.parametrize(
    ("bandwidth", "words"), [("0GB/s", "is not a bandwidth between devices"), ("9", "it has no unit"), ("", "''")]
)
def test_an_invalid_link_is_refused_in_one_line(bandwidth: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        with_link(find_cluster("8xh100-sxm"), bandwidth)
    assert words in one_line(caught.value)


@pytest.mark.parametrize("text", ["8xh100-sxm", "2x8xh100-sxm"])
def test_a_count_of_a_chip_is_found_without_reading_other_files(text: str, home: Path) -> None:
    (home / "chips" / "mine.toml").write_text("not a chip")
    assert find_cluster(text).chip.key == "h100-sxm"


# Slices of TPUs.


def test_slices_are_named_as_google_names_them() -> None:
    """Names of v2 to v4 and v5p count cores, two a chip; those of v5e and later count chips."""

    def check(text: str, pods: int, shape: tuple[int, ...]) -> None:
        cluster = find_cluster(text)
        assert (cluster.node_count, cluster.torus, cluster.devices) == (pods, shape, pods * math.prod(shape))

    check_every(
        check,
        [
            ("v5e-256", 1, (16, 16)),
            ("32 x v5e-256", 32, (16, 16)),
            ("32xv5e-256", 32, (16, 16)),
            ("2 slices of v6e-256", 2, (16, 16)),
            ("v5p-128", 1, (4, 4, 4)),  # 64 chips
            ("tpu v5p-1024", 1, (8, 8, 8)),  # 512
            ("v5e-32", 1, (4, 8)),
            ("v4-16", 1, (2, 2, 2)),
        ],
    )


def test_a_slice_in_a_text_is_found_and_other_texts_have_none() -> None:
    found = slices_in_text("MaxText on 4 x v5e-256, int8 off")
    assert found is not None
    assert (found.chip.key, found.devices) == ("tpu-v5e", 1024)
    assert slices_in_text("H100-80GB-700W") is None
    assert slices_in_text("v9z-128") is None


def test_chips_beyond_a_pod_are_several_whole_pods() -> None:
    """A v5e pod has 256 chips: 1024 are four of them."""
    found = slices_in_text("tpu-v5e-1024", find_chip("tpu-v5e"))
    assert found is not None
    assert (found.node_count, found.torus) == (4, (16, 16))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5e-0", "'0' is not a number of devices"),
        ("v5p-1", "a slice needs at least one chip"),
        ("0 x v5e-256", "'0' is not a number of devices"),
        ("v5e-512", "a slice of 512 chips is larger than a pod of TPU v5e"),
    ],
)
def test_an_impossible_slice_is_refused(text: str, words: str) -> None:
    assert words in refused(text)


def test_a_rack_of_gb300_is_one_node_of_72() -> None:
    cluster = find_cluster("gb300-nvl72")
    assert (cluster.node_count, cluster.devices, cluster.chip.key) == (1, 72, "gb300")
