"""Chips by the words people use, and the CPUs of hosts."""

import pytest

from meshwise.catalogue.cards import chip_in_text, find_card
from meshwise.catalogue.chips import host_cpu
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import UserError
from support.every import check_every


def test_cards_are_known_by_the_words_people_use() -> None:
    def check(words: str, key: str) -> None:
        assert find_card(words).key == key

    check_every(
        check,
        [
            ("3090 24GB", "rtx3090"),
            ("A100 PCIe 80GB", "a100-80gb-pcie"),
            ("A100 SXM 80GB", "a100-80gb-sxm"),
            ("M2ultra 192GB", "m2-ultra"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("RTX 4000 Ada 20GB", "rtx4000ada"),
            ("A6000 48GB", "rtxa6000"),
            ("H100 PCIe 80GB", "h100-pcie"),
            ("RX 7900 XTX 24GB", "rx7900xtx"),
        ],
    )


def test_cores_and_memory_of_an_apple_chip_are_as_stated() -> None:
    full, cut = find_card("M2 Ultra 76-Core GPU 192GB"), find_card("M2 Ultra 60-Core GPU 64GB")
    assert (full.sms, cut.sms, cut.memory) == (76, 60, 64 * 2**30)
    assert cut.flops["fp16"] == pytest.approx(full.flops["fp16"] * 60 / 76)


def test_an_unknown_card_is_refused() -> None:
    with pytest.raises(UserError, match="the card 'RTX 9999' is not in the catalogue"):
        find_card("RTX 9999")


def test_hosts_that_name_no_cpu_have_a_generic_one() -> None:
    assert host_cpu(find_cluster("4xrtx3090")).key == "cpu"


def test_a_memory_after_the_name_of_a_card_is_the_memory_it_has() -> None:
    def check(text: str, key: str, gib: float) -> None:
        cluster = find_cluster(text)
        assert cluster.chip.key == key
        assert cluster.chip.memory == pytest.approx(gib * 2**30, rel=0.01)

    check_every(
        check,
        [
            ("RTX 4090 48GB", "rtx4090", 48),
            ("8x RTX 4090 48GB", "rtx4090", 48),
            ("2xrtx2080ti-22gb", "rtx2080ti", 22),
            ("NVIDIA GeForce RTX 3080 12 GB", "rtx3080-12gb", 12),
            ("RTX 5060 Ti 16GB", "rtx5060ti-16gb", 16),
            ("h100 nvl 94gb", "h100-nvl", 93.6),
            ("h200 141gb", "h200", 140.4),
            ("M3 Ultra 512GB", "m3-ultra", 512),
            ("RX 7900 XTX 24GB", "rx7900xtx", 24),
        ],
    )


def test_a_memory_that_the_catalogue_does_not_have_is_noted() -> None:
    assert find_cluster("rtx4090-48gb").notes == ("RTX 4090 with 48 GiB, as written; the catalogue's has 24 GiB",)
    assert find_cluster("rtx4090-24gb").notes == ()


@pytest.mark.parametrize("text", ["rtx4090-1000gb", "rtx4090 2gb", "rtx 5060 ti"])
def test_a_memory_that_no_such_card_has_or_none_where_it_decides_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="unknown chip"):
        find_cluster(text)


def test_machine_types_of_clouds_are_clusters() -> None:
    def check(text: str, chips: dict[str, int]) -> None:
        assert find_cluster(text).chips == chips

    check_every(
        check,
        [
            ("p5en.48xlarge", {"h200": 8}),
            ("ml.p5.48xlarge", {"h100-sxm": 8}),
            ("p6-b200.48xlarge:4", {"b200": 32}),
            ("a3-ultragpu-8g", {"h200": 8}),
            ("ND_H200_v5", {"h200": 8}),
            ("Standard_ND96isr_H100_v5", {"h100-sxm": 8}),
            ("2x trn2.48xlarge", {"trn2": 32}),
        ],
    )


def test_a_short_name_is_a_word_of_a_text_and_a_ti_another_card() -> None:
    with pytest.raises(UserError, match="unknown chip"):
        chip_in_text("p4d")
    with pytest.raises(UserError, match="unknown chip"):
        chip_in_text("RTX 5060 Ti")
    assert chip_in_text("Tesla P4 in a server").key == "p4"
