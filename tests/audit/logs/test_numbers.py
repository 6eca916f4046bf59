"""Numbers as people write them are read in SI, or not at all."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.audit.logs.columns import find_field
from meshwise.audit.logs.numbers import amount, decimal_mark_of, parse_range
from meshwise.audit.logs.run import Skips
from meshwise.audit.logs.table import decimal_mark, fields_of, run_from_row


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("1,234.5", "plain", 1234.5),
        ("1.234,5", "plain", 1234.5),
        ("1 234,5", "plain", 1234.5),
        ("1'234.5", "plain", 1234.5),
        ("1.234.567", "plain", 1234567),
        ("~15,570 tokens/sec", "rate", 15570),
        ("372.16 ms", "seconds", 0.37216),
        ("7.5 seconds per step", "seconds", 7.5),
        ("67GB", "bytes", 67e9),
        ("30.9GiB", "bytes", 30.9 * 2**30),
        ("512 MiB", "bytes", 2**29),
        ("250k", "count", 250_000),
        ("200B", "count", 200e9),
        ("124,298,064", "count", 124_298_064),
        ("44.3%", "share", 0.443),
        ("44.3", "share", 0.443),
        ("0.443", "share", 0.443),
        ("108.47 TFLOPs", "flops", 108.47e12),
        ("4.4 PFLOP/s", "flops", 4.4e15),
        ("6.384045E+01", "plain", 63.84045),
    ],
)
def test_a_number_is_read_with_its_unit(text: str, quantity: str, value: float):
    found = amount(text, quantity)
    assert found is not None
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("text", ["12.34.5,6", "1,23,4", "five", "", "1,2345.6.7", "--3", "67 bananas"])
def test_what_is_no_number_is_none(text: str):
    assert amount(text, "bytes") is None


def test_a_comma_means_what_the_rest_of_the_table_shows():
    assert amount("1,234", "plain", decimal=",") == (1.234, False, "")
    assert amount("1,234", "plain", decimal=".") == (1234, False, "")
    assert decimal_mark(["12,5", "1.234,5", "3"]) == ","
    assert decimal_mark(["12.5", "1,234.5", "3"]) == "."


def test_a_table_with_both_marks_is_read_only_where_a_cell_shows_its_own():
    header = ["Sec/it", "GPUs", "GBS"]
    cells = ["1,234", "8", "512"]
    skips = Skips()
    run = run_from_row(header, fields_of(header), cells, "line 3", "?", skips)
    assert run is None  # nothing measured is left
    assert skips.lines() == ["1 x 'Sec/it' is not an unambiguous number (line 3)"]


@pytest.mark.parametrize(
    ("name", "field", "unit"),
    [
        ("iteration time (ms)", "seconds", "ms"),
        ("step_time_ms", "seconds", "ms"),
        ("Sec/it", "seconds", "s"),
        ("Mem [GiB]", "memory", "gib"),
        ("peak_mem_mib", "memory", "mib"),
        ("# GPUs", "n_gpus", ""),
        ("NHIDDEN", "d_model", ""),
        ("tok/s/GPU", "tokens_per_second_per_gpu", ""),
        ("MFU %", "mfu", "%"),
        ("tensor parallelism", "tp", ""),
    ],
)
def test_columns_are_known_by_the_names_people_give_them(name: str, field: str, unit: str):
    found = find_field(name)
    assert found is not None
    assert (found.name, found.unit) == (field, unit)


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
    find_field(text)
    found = amount(text, quantity)
    assert found is None or math.isfinite(found.value)
