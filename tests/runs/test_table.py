"""Tables of measurements: how they are found, and the numbers in their rows."""

import math
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.runs.run import Run, amount, whole
from meshwise.runs.table import cases, find_table, run_of
from support.every import check_every
from support.measured_rows import table


def test_a_table_is_found_by_name_or_path_and_a_typo_is_offered_the_nearest(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    assert find_table(str(path)) == path
    assert find_table("bloom_prequel").name == "bloom_prequel.csv"
    with pytest.raises(UserError, match="unknown table 'blom_prequel'; did you mean 'bloom_prequel'"):
        find_table("blom_prequel")


def test_a_number_comes_from_the_first_column_that_states_one() -> None:
    run = run_of({"d_model": "", "d_model_derived": "7", "peak": "", "mem_gb": "2.5", "mem_unit": "GB"})
    assert amount(run, "peak", "memory") == 2.5e9
    assert math.isnan(amount(run, "peak", "vocab"))
    assert (whole(run, "hidden"), whole(run, "vocab", default=3)) == (7, 3)


def test_a_cell_that_is_not_a_whole_number_is_refused_with_the_reason() -> None:
    def check(text: str, words: str) -> None:
        with pytest.raises(UserError) as refused:
            whole(run_of({"n_gpus": text}), "devices")
        assert str(refused.value) == words

    check_every(
        check,
        [
            ("many", "n_gpus is 'many', not a number"),
            ("-1", "n_gpus is '-1'; expected a number of zero or more"),
            ("inf", "n_gpus is 'inf'; expected a number of zero or more"),
            ("1.5", "n_gpus is 1.5, not a whole number"),
            ("1e30", "n_gpus is 1e+30, not a whole number"),
            ("", "n_gpus is not stated"),
        ],
    )


def test_rows_without_an_id_are_numbered_and_refused_ones_skipped() -> None:
    def case(row: object, row_id: str) -> str:
        if row_id == "t-2":
            raise UserError("no")
        return row_id

    used, skipped = cases(Path("t.csv"), [run_of({"row_id": "a"}), Run({}), Run({})], case)
    assert used == ["a", "t-3"]
    assert [(skip.row_id, skip.reason) for skip in skipped] == [("t-2", "no")]
