"""Names of chips: spelled as people do, misspelt, incomplete, or inside a longer text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.cards import chip_in_text
from meshwise.catalogue.chips import chips, filter_chips, find_chip, variants
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every


def refused(name: str) -> str:
    """Return the error for a chip that cannot be found or read."""
    with pytest.raises(UserError) as caught:
        find_chip(name)
    return one_line(caught.value)


SPELLINGS = [
    ("V100", "v100-32gb-sxm2"),
    ("A100 40GB PCIe", "a100-40gb-pcie"),
    ("A100-40GB-SXM", "a100-40gb-sxm"),
    ("a100-80gb-pcie", "a100-80gb-pcie"),
    ("A100 80GB SXM", "a100-80gb-sxm"),
    ("A100-80GB", "a100-80gb-sxm"),
    ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),  # as nvidia-smi prints it
    ("A40", "a40"),
    ("A6000", "rtxa6000"),
    ("RTX A6000", "rtxa6000"),
    ("L4", "l4"),
    ("L40S", "l40s"),
    ("H100 PCIe", "h100-pcie"),
    ("H100 SXM", "h100-sxm"),
    ("h100", "h100-sxm"),
    ("H100 NVL", "h100-nvl"),
    ("H200", "h200"),
    ("B200", "b200"),
    ("GB200", "gb200"),
    ("RTX 3060 12GB", "rtx3060-12gb"),
    ("RTX 3070", "rtx3070"),
    ("RTX 3080", "rtx3080-10gb"),
    ("RTX 3090", "rtx3090"),
    ("3090", "rtx3090"),
    ("RTX 4060 Ti-16GB", "rtx4060ti-16gb"),
    ("RTX 4070 Ti", "rtx4070ti"),
    ("RTX 4080", "rtx4080"),
    ("RTX 4090", "rtx4090"),
    ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ("RTX 5060 Ti 16GB", "rtx5060ti-16gb"),
    ("RTX 5070 Ti", "rtx5070ti"),
    ("RTX 5080", "rtx5080"),
    ("RTX 5090", "rtx5090"),
    ("RTX 4000 Ada", "rtx4000ada"),
    ("RTX 5000 Ada", "rtx5000ada"),
    ("RTX 6000 Ada", "rtx6000ada"),
    ("RTX PRO 6000", "rtxpro6000"),
    ("P40", "p40"),
    ("MI250X", "mi250x"),
    ("MI300X", "mi300x"),
    ("MI325X", "mi325x"),
    ("7900XTX", "rx7900xtx"),
    ("RX 7900 XTX", "rx7900xtx"),
    ("R9700", "r9700"),
    *((f"M{n}{kind}", f"m{n}{kind.lower().replace(' ', '-')}") for n in (1, 2, 3, 4) for kind in ("", " Pro", " Max")),
    *((f"M{n} Ultra", f"m{n}-ultra") for n in (1, 2, 3)),  # there is no M4 Ultra
    ("Gaudi 3", "gaudi3"),
    ("TPU v4", "tpu-v4"),
    ("TPU v5e", "tpu-v5e"),
    ("TPU v5p", "tpu-v5p"),
    ("TPU v6e", "tpu-v6e"),
    ("TPU v7", "tpu-v7"),
    ("CPU", "cpu"),
]


def test_a_chip_is_found_as_people_spell_it() -> None:
    def check(spelling: str, key: str) -> None:
        assert find_chip(spelling).key == key

    check_every(check, SPELLINGS)


@pytest.mark.parametrize(
    ("misspelt", "offered"),
    [
        ("h100x", "h100-sxm"),
        ("rtx-3900", "rtx3090"),
        ("mi30x", "mi300x"),
        ("triliumm", "tpu-v6e"),
        ("b100", "b200"),  # as close to h100 and a100, which are chips of another series
        ("rtx4065", "rtx4060"),  # rtx4090 has as many letters in common
    ],
)
def test_a_misspelt_chip_offers_the_nearest(misspelt: str, offered: str) -> None:
    assert refused(misspelt) == f"unknown chip '{misspelt}'; did you mean '{offered}'? (meshwise show chips)"


@pytest.mark.parametrize(("written", "meant"), [("8h100", "8xh100"), ("h100x8", "8xh100"), ("rtx3090 x 2", "2xrtx3090")])
def test_a_number_of_chips_in_other_words_offers_the_right_ones(written: str, meant: str) -> None:
    assert refused(written) == f"unknown chip '{written}'; did you mean '{meant}'? (meshwise show chips)"


def test_an_incomplete_name_lists_every_chip_that_it_may_mean() -> None:
    assert refused("gaudi") == "unknown chip 'gaudi'; did you mean 'gaudi2' or 'gaudi3'? (meshwise show chips gaudi)"
    assert "did you mean 'tpu-v2', 'tpu-v3', 'tpu-v4' or 4 more? (meshwise show chips tpu)" in refused("tpu")


def test_for_a_name_unlike_any_other_the_error_says_how_to_add_a_chip(home: Path) -> None:
    assert refused("banana") == f"unknown chip 'banana' (meshwise show chips, or add it as {home}/chips/NAME.toml)"


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (
            "h100",
            ["h100-64gb-sxm", "h100-96gb-500w", "h100-96gb-sxm", "h100-nvl", "h100-pcie", "h100-sxm"],
        ),
        ("H100 pcie", ["h100-pcie"]),
        ("h200", ["h200"]),  # the key of one
        ("a100 80", ["a100-80gb-pcie", "a100-80gb-sxm"]),
        ("google v5", ["tpu-v5e", "tpu-v5p"]),
        ("trillium", ["tpu-v6e"]),
        ("banana", []),
    ],
)
def test_chips_are_filtered_by_words_in_their_names_vendors_and_aliases(words: str, keys: list[str]) -> None:
    assert [chip.key for chip in filter_chips(words)] == keys


def test_without_words_every_chip_is_listed() -> None:
    assert filter_chips("") == list(chips())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("H100", ["h100-64gb-sxm", "h100-96gb-500w", "h100-96gb-sxm", "h100-nvl", "h100-pcie", "h100-sxm"]),
        ("RTX 3080", ["rtx3080-10gb", "rtx3080-12gb"]),  # an RTX 3080 Ti is another chip
        ("h100-sxm", []),
        ("h200", []),
        ("rtx3090", []),
        ("banana", []),
    ],
)
def test_the_variants_of_a_name_are_the_keys_that_begin_with_it(name: str, keys: list[str]) -> None:
    assert variants(name) == keys


@given(st.text())
def test_any_text_is_a_chip_or_one_line_of_error(name: str) -> None:
    try:
        assert find_chip(name) in chips()
    except UserError as error:
        message = one_line(error)
        assert message.startswith("unknown chip")


def test_a_chip_is_found_inside_a_longer_text() -> None:
    def check(text: str, key: str) -> None:
        assert chip_in_text(text).key == key

    check_every(
        check,
        [
            ("H100-80GB-700W", "h100-sxm"),
            ("DGX-GB300", "gb300"),
            ("DGX-GB200", "gb200"),
            ("DGX-H100", "h100-sxm"),
            ("DGX-B200", "b200"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
            ("H100-96GB-HBM2e-500W", "h100-96gb-500w"),
            ("TPU v5e", "tpu-v5e"),
            ("AMD Instinct MI300X", "mi300x"),
            ("h100-sxm", "h100-sxm"),
        ],
    )


def test_a_memory_in_the_text_that_is_another_variants_wins() -> None:
    assert chip_in_text("H100-64GB").memory == 64 * 2**30
    assert chip_in_text("H100-80GB-700W").memory == find_chip("h100-sxm").memory  # GB for GiB is rounding


@pytest.mark.parametrize("text", ["A1000", "banana", "", "unknown GPU"])
def test_digits_that_continue_a_name_are_another_chip(text: str) -> None:
    """'A1000' holds the letters of a100, but is no A100."""
    with pytest.raises(UserError) as refused:
        chip_in_text(text)
    assert "unknown chip" in one_line(refused.value)
