"""Chips: the catalogue has the chips that people own, every figure has a source and is plausible, and a user's own file is checked."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue import files
from meshwise.catalogue.chips import Chip, Cluster, Host, Link, Node, chips, find_chip
from meshwise.catalogue.prices import Price
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every

CHIP = """
name = "Mine"
vendor = "Me"
architecture = "New"
kind = "gpu"
year = 2026
memory = "24GiB"
bandwidth = "1TB/s"
[flops]
bf16 = "100T"
[[sources]]
title = "my bench"
url = "https://example.org"
"""
GIB, HOUR = 2**30, 3600


def refused(name: str) -> str:
    """Return the error for a chip that cannot be found or read."""
    with pytest.raises(UserError) as caught:
        find_chip(name)
    return one_line(caught.value)


def test_no_two_chips_share_a_name() -> None:
    names = Counter(name for c in chips() for name in {files.squeeze(n) for n in (c.key, c.name, *c.aliases)})
    assert [name for name, times in names.items() if times > 1] == []


def every_chip(check: Callable[[Chip], None], *, vendor: str = "", kind: str = "") -> None:
    """Check all chips, or those of one vendor or kind, and report every one that fails by its key."""
    keys = [chip.key for chip in chips() if vendor in ("", chip.vendor) and kind in ("", chip.kind)]
    check_every(lambda key: check(find_chip(key)), ((key,) for key in keys))


def test_every_figure_has_a_source() -> None:
    def check(chip: Chip) -> None:
        assert chip.sources
        assert all(source.url.startswith(("https://", "http://")) and source.title for source in chip.sources)
        assert all(price.date[:2] == "20" and price.source for price in chip.prices)

    every_chip(check)


def facts_of(chip: Chip) -> list[str]:
    """Return the fields that state a fact of the hardware, rates one by one. A tile is that of the vendor's library, read from profiles."""
    stated = [
        name
        for name in ("memory", "bandwidth", "sms", "clock", "cache", "tdp", "link", "bridge", "host", "network", "torus")
        if getattr(chip, name) is not None
    ]
    return stated + [f"flops.{dtype}" for dtype in chip.flops]


def test_every_fact_of_a_chip_has_a_source_and_every_source_states_one() -> None:
    def check(chip: Chip) -> None:
        used = {chip.source_of(fact) for fact in facts_of(chip)}
        assert used == set(chip.sources)
        known = {*facts_of(chip), "flops", "per_node"}
        assert [name for source in chip.sources for name in source.fields if name not in known] == []

    every_chip(check)


def test_every_chip_has_plausible_figures() -> None:
    def check(chip: Chip) -> None:
        assert 4 * GIB <= chip.memory <= 1024 * GIB
        # All of memory is read in 7 ms (CMP 170HX) to 1.8 s (a server's CPU): another ratio is a mistake in a unit.
        assert 0.006 < chip.memory / chip.bandwidth < 2
        assert 2014 <= chip.year <= 2026
        # FLOPs per byte: 14 (a desktop's CPU in fp32) to 3800 (Jetson Thor in fp4).
        assert 10 < max(chip.flops.values()) / chip.bandwidth < 4000
        assert chip.clock is None or 0.5e9 < chip.clock < 6e9
        assert chip.tdp is None or 10 < chip.tdp <= 2000
        assert chip.cache is None or 1e6 < chip.cache < 1e9

    every_chip(check)


CUT_INTEGERS = ("b300", "gb300", "vr200")
"""Blackwell Ultra gave up most of its units for integers, 165 TOP/s in int8 beside 2,500 TFLOP/s in bf16, and Rubin many of them."""


def test_narrower_numbers_are_never_slower() -> None:
    def check(chip: Chip) -> None:
        whole = ("bf16", "int8", "int4") if chip.key not in CUT_INTEGERS else ("int8", "int4")
        for ladder in [("fp64", "fp32", "tf32", "bf16", "fp8", "fp6", "fp4"), whole]:
            rates = [chip.flops[dtype] for dtype in ladder if dtype in chip.flops]  # type: ignore[literal-required]
            assert rates == sorted(rates)

    every_chip(check)


def test_the_links_of_a_chip_are_slower_than_its_memory() -> None:
    def check(chip: Chip) -> None:
        links = [link for link in (chip.link, chip.bridge, chip.host, chip.network) if link]
        assert all(1e9 <= link.bandwidth < chip.bandwidth for link in links)

    every_chip(check)


def test_tensor_cores_double_with_each_halving_of_the_number() -> None:
    def check(chip: Chip) -> None:
        rates = chip.flops
        if "bf16" in rates:
            assert rates["bf16"] == rates["fp16"]
        if "fp8" in rates and chip.architecture != "Rubin":  # dense figures; a sparse one in the file would be a factor of 4 or 1
            assert rates["fp8"] / rates["bf16"] == pytest.approx(2, rel=0.02)

    every_chip(check, vendor="NVIDIA")


def test_the_pod_of_a_tpu_has_the_axes_of_its_links() -> None:
    def check(chip: Chip) -> None:
        assert chip.link is not None
        assert chip.link.axes in (2, 3)
        assert chip.torus is not None
        assert len(chip.torus.pod) in (0, chip.link.axes)  # 0: no source states the size of a pod

    every_chip(check, kind="tpu")


def test_tpu_v5p_has_the_figures_of_the_scaling_book() -> None:
    chip = find_chip("tpu-v5p")  # jax-ml.github.io/scaling-book: 459 TFLOP/s, 96 GB, 9e10 B/s per link, 16x20x28
    assert chip.flops["bf16"] == 459e12
    assert chip.memory == pytest.approx(96 * GIB, rel=0.01)  # what the book calls GB are GiB: XLA offers 95.74
    assert chip.link is not None
    assert chip.link.bandwidth == 9e10
    assert chip.torus is not None
    assert chip.torus.pod == (16, 20, 28)


@pytest.mark.parametrize(
    ("name", "bf16", "sms", "memory", "bandwidth"),  # NVIDIA's datasheets, dense
    [
        ("a100-40gb", 312e12, 108, 40 * GIB, 1.555e12),
        ("a100-80gb", 312e12, 108, 80 * GIB, 2.039e12),
        ("h100-pcie", 756e12, 114, 80 * GIB, 2.039e12),
        ("h100-sxm", 989.4e12, 132, 80 * GIB, 3.35e12),
        ("h200", 989.4e12, 132, 140.4 * GIB, 4.8e12),
        ("rtx4060ti-16gb", 44.13e12, 34, 16 * GIB, 288e9),
        ("rtx3090", 71.16e12, 82, 24 * GIB, 936e9),
    ],
)
def test_nvidia_chips_have_the_figures_of_their_datasheets(
    name: str, bf16: float, sms: int, memory: float, bandwidth: float
) -> None:
    chip = find_chip(name)
    assert chip.flops["bf16"] == pytest.approx(bf16, rel=1e-3)
    assert chip.sms == sms
    assert chip.memory == pytest.approx(memory, rel=1e-3)
    assert chip.bandwidth == pytest.approx(bandwidth, rel=1e-2)


def test_a_users_own_chip_is_found_by_file_name_and_alias(home: Path) -> None:
    (home / "chips" / "my-card.toml").write_text('aliases = ["snowflake"]\n' + CHIP)
    chip = find_chip("snowflake")
    assert chip == find_chip("MY CARD")
    assert (chip.key, chip.memory, chip.flops) == ("my-card", 24 * GIB, {"bf16": 100e12})


def test_a_users_file_replaces_the_built_in_chip(home: Path) -> None:
    (home / "chips" / "h100-sxm.toml").write_text(CHIP)
    assert find_chip("h100-sxm").name == "Mine"
    assert [c.name for c in chips() if c.key == "h100-sxm"] == ["Mine"]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("memory =", "memroy =", "mine.toml: unknown key 'memroy'; did you mean 'memory'?"),
        ("year = 2026\n", "", "mine.toml: the key 'year' is missing"),
        ("2026", '"2026"', "mine.toml: year: expected a whole number, found '2026'"),
        ('"24GiB"', '"24gb"', "mine.toml: memory: '24gb' is not a size in bytes"),
        ('"24GiB"', '"24W"', "mine.toml: memory: '24W' is not a size in bytes but a power"),
        ('"24GiB"', '"0B"', "mine.toml: memory, bandwidth and every rate of flops must be above zero"),
        ('bf16 = "100T"', "", "mine.toml: memory, bandwidth and every rate of flops must be above zero"),
        ('bf16 = "100T"', "bf16 = 0", "mine.toml: memory, bandwidth and every rate of flops must be above zero"),
        ("bf16", "bf61", "mine.toml: flops: 'bf61' is not one of fp64, fp32, tf32, fp16, bf16"),
        ('"gpu"', '"gpus"', "mine.toml: kind: 'gpus' is not one of gpu, tpu, npu, apple, cpu; did you mean 'gpu'?"),
        ("url", "ulr", "mine.toml: sources[0]: unknown key 'ulr'; did you mean 'url'?"),
        ("[flops]", '[link]\nname = "L"\nbandwidth = "0B/s"\n[flops]', "mine.toml: link: the link 'L' has no bandwidth"),
        (
            "[[sources]]",
            '[[prices]]\nprice = "5 euro"\ndate = "2026"\nsource = "shop"\n[[sources]]',
            "mine.toml: prices[0]: '5 euro' is not a price in dollars",
        ),
        ('"24GiB"', '"24GiB', "mine.toml: not valid TOML"),
    ],
)
def test_a_mistake_in_a_chip_file_is_reported_with_file_and_key(home: Path, right: str, wrong: str, message: str) -> None:
    assert right in CHIP
    (home / "chips" / "mine.toml").write_text(CHIP.replace(right, wrong))
    assert message in refused("mine")


def test_a_number_in_si_needs_no_unit_in_a_file(home: Path) -> None:
    (home / "chips" / "mine.toml").write_text(CHIP.replace('"24GiB"', "24e9"))
    assert find_chip("mine").memory == 24e9


def cluster_of(*nodes: tuple[int, int, str], price: str = "") -> Cluster:
    """Hosts as (how many, cards each, chip)."""
    built = tuple((hosts, Node(((cards, find_chip(name)),), None, Host())) for hosts, cards, name in nodes)
    return Cluster("mine", built, prices=(Price(price=price, date="2026", source="s"),) if price else ())


hosts_of_cards = st.tuples(st.integers(1, 50), st.integers(1, 8), st.sampled_from(["rtx3090", "h100", "m1"]))


@given(st.lists(hosts_of_cards, min_size=1, max_size=4))
def test_a_cluster_adds_up(nodes: list[tuple[int, int, str]]) -> None:
    cluster = cluster_of(*nodes)
    assert cluster.node_count == sum(hosts for hosts, _, _ in nodes)
    assert cluster.devices == sum(cluster.chips.values()) == sum(hosts * cards for hosts, cards, _ in nodes)
    assert cluster.memory == pytest.approx(sum(hosts * cards * find_chip(name).memory for hosts, cards, name in nodes))


def test_a_cluster_rents_for_its_own_price_per_node_or_the_sum_of_its_chips() -> None:
    h100 = find_chip("h100").rent
    assert h100 is not None
    assert cluster_of((2, 8, "h100")).rent == pytest.approx(16 * h100)
    assert cluster_of((2, 8, "h100"), price="$10/h").rent == pytest.approx(20 / HOUR)
    assert cluster_of((1, 1, "h100"), (1, 1, "rtx3060-12gb")).rent is None  # nobody lists a rent for a 3060


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(UserError, match="the link 'string and cans' has no bandwidth"):
        Link(name="string and cans", bandwidth=0)


# Rates that a power limit sustains.


def test_a_power_limit_lowers_the_rate_that_large_products_sustain() -> None:
    """An H100 of 500 W has 0.714 of the reference's watts per FLOP/s: 0.714^0.9 = 0.74. The references themselves are 1."""
    assert find_chip("h100-96gb-500w").sustained == pytest.approx((500 / 700) ** 0.9)
    for reference in ("a100-80gb-sxm", "h100-sxm", "gb200"):
        assert find_chip(reference).sustained == pytest.approx(1, abs=0.01)
    assert find_chip("gb300").sustained == pytest.approx((1400 / 1200) ** 0.9)
    assert find_chip("rtx4090").sustained == 1  # a card, not a part of a vendor's system


@given(st.sampled_from([chip.key for chip in chips()]), st.floats(1, 100))
def test_more_flops_at_the_same_power_never_sustain_less(key: str, times: float) -> None:
    chip = find_chip(key)
    faster = replace(chip, flops={dtype: rate * times for dtype, rate in chip.flops.items()})
    rate = chip.flops.get("bf16", 0)
    assert rate * times * faster.sustained >= rate * chip.sustained * (1 - 1e-9)


def test_an_mi250x_is_one_of_the_two_dies_that_frameworks_see() -> None:
    """AMD states 383 TFLOP/s, 128 GB and 560 W for a package of two."""
    chip = find_chip("mi250x")
    assert (chip.memory, 2 * chip.flops["bf16"]) == (64 * GIB, pytest.approx(383e12, rel=0.001))
    assert find_chip("mi250x").per_node == 8  # four packages


def test_chips_without_a_switch_say_how_many_others_they_are_linked_to() -> None:
    def check(key: str) -> None:
        link = find_chip(key).link
        assert link is not None
        assert link.peers == 7

    check_every(check, [(key,) for key in ("mi300x", "mi325x", "mi355x", "gaudi2", "gaudi3")])
    assert find_chip("h100-sxm").link.peers == 0  # type: ignore[union-attr]
