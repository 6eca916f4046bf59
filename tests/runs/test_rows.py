"""Rows of a table: decimal marks, ambiguous cells, failures, and the kind of card next to their number."""

from meshwise.runs.reading import Skips, run_of
from meshwise.runs.table import Header, decimal_mark


def test_the_decimal_mark_is_the_one_that_the_numbers_show():
    assert decimal_mark(["12,5", "1.234,5", "3"]) == ","
    assert decimal_mark(["12.5", "1,234.5", "3"]) == "."
    assert decimal_mark(["12.5", "12,5"]) == "?"


def test_a_table_with_both_marks_is_read_only_where_a_cell_is_unambiguous():
    header = ["Sec/it", "GPUs", "GBS"]
    skips = Skips()
    run = run_of(Header(header), ["1,234", "8", "512"], "line 3", "?", skips)
    assert run is None  # no measurement is left
    assert skips.lines() == ["1 x 'Sec/it' is not an unambiguous number (line 3)"]


def test_a_failure_is_a_run_and_an_unknown_column_a_tag():
    header = ["GPU", "GPUs", "Sec/it", "colour"]
    run = run_of(Header(header), ["A100", "8", "OOM", "red"], "line 3", "", Skips())
    assert run is not None
    assert (run.text("chip"), run.number("devices"), run.text("outcome"), run.tags) == ("A100", 8, "oom", (("colour", "red"),))


def test_memory_is_in_the_unit_that_a_column_of_its_own_names():
    header = ["mem_gb", "mem_unit"]
    for unit, factor in (("GB", 1e9), ("GiB", 2**30), ("MiB", 2**20)):
        run = run_of(Header(header), ["2", unit], "line 3", "", Skips())
        assert run is not None
        assert run.number("memory") == 2 * factor, unit
