"""Chips by the words people use, and the CPUs of hosts."""

import pytest

from meshwise.catalogue.chips import find_card, host_cpu
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
