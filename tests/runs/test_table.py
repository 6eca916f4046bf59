"""Tables of measurements: how they are found, and the numbers in their rows."""

import math
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.runs.table import cases, find_table, number, whole
from support.every import check_every
from support.measured_rows import table


def test_a_table_is_found_by_name_or_path_and_a_typo_is_offered_the_nearest(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    assert find_table(str(path)) == path
    assert find_table("bloom_prequel").name == "bloom_prequel.csv"
    with pytest.raises(UserError, match="unknown table 'blom_prequel'; did you mean 'bloom_prequel'"):
        find_table("blom_prequel")


def test_a_number_comes_from_the_first_column_that_states_one() -> None:
    row = {"a": "", "b": "2.5", "c": "7"}
    assert number(row, "a", "b", "c") == 2.5
    assert math.isnan(number(row, "a", "missing"))
    assert (whole(row, "a", "c"), whole(row, "a", default=3)) == (7, 3)


def test_a_cell_that_is_not_a_whole_number_is_refused_with_the_reason() -> None:
    def check(text: str, words: str) -> None:
        with pytest.raises(UserError) as refused:
            whole({"n": text}, "n")
        assert str(refused.value) == words

    check_every(
        check,
        [
            ("many", "n is 'many', not a number"),
            ("-1", "n is '-1'; expected a number of zero or more"),
            ("inf", "n is 'inf'; expected a number of zero or more"),
            ("1.5", "n is 1.5, not a whole number"),
            ("1e30", "n is 1e+30, not a whole number"),
            ("", "n is not stated"),
        ],
    )


def test_rows_without_an_id_are_numbered_and_refused_ones_skipped() -> None:
    def case(row: object, row_id: str) -> str:
        if row_id == "t-2":
            raise UserError("no")
        return row_id

    used, skipped = cases(Path("t.csv"), [{"row_id": "a"}, {}, {}], case)
    assert used == ["a", "t-3"]
    assert [(skip.row_id, skip.reason) for skip in skipped] == [("t-2", "no")]
