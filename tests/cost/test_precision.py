"""Precisions of matrix products: the words people use, what a chip computes in them, and what casts cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.cost.precision import PRECISIONS, RECIPES, is_narrow, parse_precision
from meshwise.cost.train.compute import Device, product
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every
from support.train_questions import cost, question


def test_a_precision_goes_by_the_words_of_papers_and_programs() -> None:
    def check(word: str, name: str) -> None:
        assert parse_precision(word) == name

    check_every(
        check,
        [
            ("bf16", "bf16"),
            ("BF16", "bf16"),
            ("bfloat16", "bf16"),
            ("bf16-mixed", "bf16"),
            ("fp16", "fp16"),
            ("float16", "fp16"),
            ("half", "fp16"),
            ("FP8", "fp8"),
            ("float8", "fp8"),
            ("FP8-CS", "fp8"),  # current scaling
            ("FP8-DS", "fp8"),  # delayed scaling
            ("float8 rowwise", "fp8-row"),
            ("FP8-SC", "fp8-block"),  # subchannel scaling
            ("fp8 block", "fp8-block"),
            ("FP8-MX", "mxfp8"),
            ("MXFP8", "mxfp8"),
            ("NVFP4", "nvfp4"),
            ("fp4", "nvfp4"),
        ],
    )


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_is_its_own_word(name: str) -> None:
    assert parse_precision(name) == name


@pytest.mark.parametrize("word", ["int8", "fp32", "foo", "tf32", "int4", "fp64"])
def test_an_unknown_precision_is_refused_with_those_that_are_known(word: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_precision(word)
    line = one_line(refused.value)
    assert f"precision '{word}' is unknown" in line
    assert all(name in line for name in PRECISIONS)


@given(st.text(max_size=30))
def test_any_text_is_a_precision_or_refused_in_one_line(text: str) -> None:
    try:
        found = parse_precision(text)
    except UserError as error:
        one_line(error)
    else:
        assert found in PRECISIONS


def test_products_are_narrow_only_where_the_chip_has_such_matrix_units() -> None:
    def check(chip: str, precision: str, narrow: bool) -> None:
        assert is_narrow(precision, find_chip(chip)) == narrow

    check_every(
        check,
        [
            ("h100-sxm", "bf16", False),
            ("h100-sxm", "fp8", True),
            ("h100-sxm", "nvfp4", False),  # Hopper has none
            ("a100-80gb-sxm", "fp8", False),
            ("b200", "nvfp4", True),
            ("b200", "mxfp8", True),
        ],
    )


def seconds(chip: str, precision: str) -> float:
    """A large product: 8192 x 8192 x 8192."""
    return product(Device.of(find_chip(chip), Calibration(), precision), 8192, 8192, 8192).item()


def test_a_product_runs_at_the_rate_of_its_precision() -> None:
    """B200: fp8 has twice the rate of bf16 and fp4 four times, each at its own share of `matmul`; per-block scales cost a tenth."""
    c = Calibration()
    wide, eight, block, four = (seconds("b200", name) for name in ("bf16", "fp8", "fp8-block", "nvfp4"))
    assert wide / eight == pytest.approx(2 * c.fp8)
    assert wide / four == pytest.approx(4 * c.fp4)
    assert eight / block == pytest.approx(RECIPES["fp8-block"].scaling)
    assert seconds("b200", "fp8-row") == seconds("b200", "mxfp8") == eight
    assert seconds("a100-80gb-sxm", "fp8") == seconds("a100-80gb-sxm", "bf16")


def test_attention_and_the_head_stay_in_16_bits() -> None:
    """Of a model that is all attention and head, little gets faster: attention takes as long as in bf16, and casts are added."""
    wide, narrow = (
        cost(question("llama-3-8b", "1x8xb200", precision=name, batch=8), dp_shard=8, zero=1)[0] for name in ("bf16", "nvfp4")
    )
    assert wide["attention"] == narrow["attention"]
    assert narrow["matmul"] < 0.6 * wide["matmul"]
    assert narrow["elementwise"] > wide["elementwise"]


def test_a_compiler_joins_casts_with_other_kernels() -> None:
    eager, compiled = (
        cost(question("llama-3-8b", "1x8xh100-sxm", "torchtitan", precision="fp8", batch=8, compiled=how), dp_shard=8, zero=3)[0]
        for how in (False, True)
    )
    assert compiled["elementwise"] < 0.6 * eager["elementwise"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_narrower_inputs_of_products_are_kept_in_fewer_bytes(precision: str) -> None:
    narrow, wide = (
        cost(question("llama-3-8b", "1x8xb200", precision=name, batch=8), dp_shard=8, zero=1)[1]["activations"]
        for name in (precision, "bf16")
    )
    assert (narrow < wide) == (RECIPES[precision].bytes < 2)
