"""Numbers as people write them are read in SI, or not at all."""

import math

from hypothesis import given
from hypothesis import strategies as st

from meshwise.runs.fields import find_column
from meshwise.runs.numbers import amount, decimal_mark_of, parse_range

WITH_UNIT = {
    ("1,234.5", "plain"): 1234.5,
    ("1.234,5", "plain"): 1234.5,
    ("1 234,5", "plain"): 1234.5,
    ("1'234.5", "plain"): 1234.5,
    ("1.234.567", "plain"): 1234567,
    ("~15,570 tokens/sec", "rate"): 15570,
    ("372.16 ms", "seconds"): 0.37216,
    ("7.5 seconds per step", "seconds"): 7.5,
    ("67GB", "bytes"): 67e9,
    ("30.9GiB", "bytes"): 30.9 * 2**30,
    ("512 MiB", "bytes"): 2**29,
    ("250k", "count"): 250_000,
    ("200B", "count"): 200e9,
    ("124,298,064", "count"): 124_298_064,
    ("44.3%", "share"): 0.443,
    ("44.3", "share"): 0.443,
    ("0.443", "share"): 0.443,
    ("108.47 TFLOPs", "flops"): 108.47e12,
    ("4.4 PFLOP/s", "flops"): 4.4e15,
    ("6.384045E+01", "plain"): 63.84045,
}


def test_a_number_is_read_with_its_unit():
    found = {key: amount(*key) for key in WITH_UNIT}
    wrong = {key: one for key, one in found.items() if one is None or not math.isclose(one.value, WITH_UNIT[key], rel_tol=1e-6)}
    assert wrong == {}


def test_other_texts_are_no_numbers():
    texts = ["12.34.5,6", "1,23,4", "five", "", "1,2345.6.7", "--3", "67 bananas"]
    assert [text for text in texts if amount(text, "bytes") is not None] == []


def test_a_comma_means_the_decimal_mark_of_the_file():
    assert amount("1,234", "plain", decimal=",") == (1.234, False, "")
    assert amount("1,234", "plain", decimal=".") == (1234, False, "")


def test_a_range_is_its_two_ends():
    assert parse_range("5.34-6.87GB per GPU") == (5.34, 6.87, "GB per GPU")
    assert parse_range("7.5") is None


@given(st.floats(min_value=1e-3, max_value=1e12).map(lambda x: round(x, 3)))
def test_a_number_reads_back_in_either_notation(value: float):
    english = f"{value:,.3f}"
    german = english.replace(",", "_").replace(".", ",").replace("_", ".")
    for text, mark in ((english, "."), (german, ",")):
        found = amount(text, "plain", decimal=mark)
        assert found is not None
        assert math.isclose(found.value, value, rel_tol=1e-9)


@given(st.text(max_size=40), st.sampled_from(["plain", "count", "seconds", "bytes", "rate", "share", "flops"]))
def test_any_text_is_a_finite_number_or_none(text: str, quantity: str):
    decimal_mark_of(text)
    find_column(text)
    found = amount(text, quantity)
    assert found is None or math.isfinite(found.value)
