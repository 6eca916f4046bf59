"""Tables of training runs as files: which columns they need, what is refused with its line, and rows that a run wrote."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise.catalogue.files import MAX_FILE_BYTES
from meshwise.errors import UserError
from meshwise.runs.fields import BY_NAME
from meshwise.runs.table import MAX_LINE_BYTES, REQUIRED_FIELDS
from meshwise.runs.train.settle import read_cases
from support.command import one_line
from support.every import check_every
from support.measured_rows import ROW, table


def test_a_measurement_that_is_not_positive_is_refused_with_its_line(tmp_path: Path) -> None:
    def check(text: str, column: str) -> None:
        with pytest.raises(UserError) as refused:
            read_cases(table(tmp_path, {}, {column: text}))
        assert one_line(refused.value) == (
            f"runs.csv, line 3: {column} is '{text}'; expected a number above zero, or an empty field if it was not measured"
        )

    check_every(check, product(["nan", "NaN", "inf", "-1", "0", "fast"], ["sec_per_iter", "mem_gb"]))


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    def check(text: str, words: str) -> None:
        path = tmp_path / "runs.csv"
        path.write_text(text)
        with pytest.raises(UserError) as refused:
            read_cases(path)
        assert one_line(refused.value).startswith(words)

    check_every(
        check,
        [
            ("", "runs.csv: empty; expected a CSV file"),
            ("\n\n", "runs.csv: empty; expected a CSV file"),
            (",".join(ROW), "runs.csv: no rows below the header"),
            ("a,b\n1,2", "runs.csv: the column 'n_gpus' is missing"),
            ("a,a\n1,2", "runs.csv: the column 'a' appears twice"),
            (",".join(ROW) + "\n1,2", f"runs.csv, line 2: 2 fields, where the header has {len(ROW)}"),
            (",".join(ROW) + '\n"1,2', "runs.csv, line 2: not valid CSV"),
            ("n_gpus,tp,pp,dp,global_batch_seqs,seq_len,gpu\n", "runs.csv: no column with a measurement"),
        ],
    )


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    def check(column: str) -> None:
        with pytest.raises(UserError, match=f"the column '{column}' is missing"):
            read_cases(table(tmp_path, {}, without=(column,)))

    check_every(check, [(BY_NAME[one].title,) for one in REQUIRED_FIELDS])


def test_a_table_without_a_usable_row_states_the_most_common_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read_cases(table(tmp_path, {"gpu": "A100-80GB", "precision": "int8"}, {"precision": "int8"}, {"outcome": "fail"}))
    words = "runs.csv: none of its 3 rows can be evaluated; 2 of them: precision 'int8' is unknown"
    assert words in one_line(refused.value)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    path.write_text("\ufeff" + path.read_text())
    assert len(read_cases(path)[0]) == 1


OTHERS = (
    "cp", "ep", "etp", "interleave", "sharding", "grad_accum", "params_b", "d_ff", "model", "dp_shard", "offload", "compile", "head_dim",
    "gated", "n_experts", "top_k", "d_expert", "shared_experts", "cluster", "network", "mfu", "hfu", "tflops_per_gpu", "router",
)  # fmt: skip
words = st.sampled_from(["", "0", "-1", "1e9", "nan", "8", "3", "x", "9" * 400, "1.5", "none", "H100-80GB", "2048", "[/red]", "‮"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    column=st.sampled_from(sorted({*ROW, *OTHERS})),
    text=words,
)
def test_any_cell_content_is_read_skipped_or_refused_in_one_line(tmp_path: Path, column: str, text: str) -> None:
    try:
        used, skipped = read_cases(table(tmp_path, {}, {column: text}))
    except UserError as error:
        one_line(error)
    else:
        assert len(used) + len(skipped) == 2


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_table_larger_than_any_other_file_is_read_row_by_row(tmp_path: Path, suffix: str) -> None:
    row = ROW | {"note": "x" * (MAX_LINE_BYTES // 16)}
    path, number = tmp_path / f"runs{suffix}", 16 * MAX_FILE_BYTES // MAX_LINE_BYTES + 1
    with path.open("w") as file:
        if suffix == ".csv":
            file.write(",".join(row) + "\n")
        line = ",".join(row.values()) if suffix == ".csv" else json.dumps(row)
        file.writelines(f"{line}\n" for _ in range(number))
    assert path.stat().st_size > MAX_FILE_BYTES
    used, skipped = read_cases(path)
    assert (len(used), skipped) == (number, [])
    assert len({(id(case.layout), id(case.work), id(case.cluster)) for case in used}) == 1, "equal rows must share their objects"


# What `meshwise run` keeps.

KEPT = {
    "model": "llama-debug", "n_layers": 4, "d_model": 256, "d_ff": 768, "n_heads": 8, "n_kv_heads": 4, "vocab": 512, "seq_len": 128,
    "gpu": "h200", "n_gpus": 2, "gpus_per_node": 2, "framework": "meshwise", "precision": "bf16", "dp": 1, "tp": 2, "pp": 1, "cp": 1,
    "zero_stage": 0, "micro_batch": 4, "global_batch_seqs": 8, "recompute": "none", "seq_parallel": "yes", "sec_per_iter": 0.25,
    "mem_gb": 0.5, "mem_unit": "GiB", "outcome": "ok",
}  # fmt: skip


def test_rows_written_by_a_run_are_read_as_cases(tmp_path: Path) -> None:
    path = tmp_path / "measurement.jsonl"
    path.write_text((json.dumps(KEPT) + "\n") * 2)
    used, skipped = read_cases(path)
    assert (len(used), skipped) == (2, [])
    assert (used[0].seconds, used[0].memory, used[0].layout["tp"]) == (0.25, 2**29, 2)
    assert used[0].work.framework.name == "meshwise"


def test_damaged_rows_of_a_run_are_refused_with_their_line(tmp_path: Path) -> None:
    def check(text: str, words: str) -> None:
        path = tmp_path / "measurement.jsonl"
        path.write_text(text)
        with pytest.raises(UserError, match=re.escape(words)):
            read_cases(path)

    check_every(
        check,
        [
            ("", "empty"),
            ("{", "line 1: not valid JSON"),
            ("[1]", "line 1: expected an object"),
            (json.dumps({key: value for key, value in KEPT.items() if key != "gpu"}), "line 1: the column 'gpu' is missing"),
            (json.dumps(KEPT | {"sec_per_iter": -1}), "line 1: sec_per_iter is '-1'"),
        ],
    )
