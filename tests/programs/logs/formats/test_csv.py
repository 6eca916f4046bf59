"""CSV files: any delimiter and notation; rows and cells that cannot be read are counted and named."""

import math
from pathlib import Path

import pytest

from meshwise.audit import report
from meshwise.errors import UserError
from meshwise.programs.logs import detect
from support.audits import read_text


def test_a_german_csv_is_read_in_its_notation():
    text = "Nodes;Size;TP;PP;Sec/it;Mem (GiB)\n48;181B;8;12;1.143,31;29,5\n48;181B;8;6;139,82;38\n"
    assert detect.detect(text) is detect.find_format("csv")
    first, second = read_text(text, "csv").runs
    assert first.number("seconds") == pytest.approx(1143.31)
    assert first.number("memory") == pytest.approx(29.5 * 2**30)
    assert second.number("seconds") == pytest.approx(139.82)


def test_a_number_in_a_table_of_two_notations_is_not_guessed():
    text = "gpus;step time (ms);tflops\n8;1,234;100.5\n8;12,5;90,25\n8;1.234,5;80\n"
    reading = read_text(text, "csv")
    assert [run.number("seconds") for run in reading.runs] == [pytest.approx(math.nan, nan_ok=True), 0.0125, 1.2345]
    assert any("is not an unambiguous number" in line for line in reading.skipped.lines())


def test_milliseconds_and_mebibytes_of_a_header_are_si():
    text = "gpus,iteration time (ms),peak memory (MiB)\n8,372.16,1024\n"
    (run,) = read_text(text, "csv").runs
    assert run.number("seconds") == pytest.approx(0.37216)
    assert run.number("memory") == 2**30


def test_missing_columns_leave_a_run_with_less():
    reading = read_text("model,tokens_per_sec_per_gpu\nllama-3-8b,5000\n", "csv")
    assert reading.runs[0].number("tokens_per_second_per_device") == 5000
    assert not report.audit([("t.csv", reading)]).findings


def test_rows_of_another_width_are_counted_and_named():
    reading = read_text("gpus,sec_per_iter\n8,1.5\n8,1.5,9\n8\n16,0.8\n", "csv")
    assert len(reading.runs) == 2
    assert reading.skipped.lines() == [
        "1 x 3 cells in a row under a header of 2 (line 3)",
        "1 x 1 cell in a row under a header of 2 (line 4)",
    ]


def test_bytes_that_are_no_text_are_refused_or_skipped(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"gpus,sec_per_iter\n8,1.5\n\xff\xfe\x00,9\n")
    reading = detect.read_file(path, "csv")
    assert [run.number("devices") for run in reading.runs if run.stated("devices")] == [8]
    assert reading.skipped.lines() == ["1 x 'gpus' is not an unambiguous number (line 3)"]
    (tmp_path / "utf16.csv").write_bytes("gpus,sec_per_iter\n8,1.5\n".encode("utf-16"))
    assert len(detect.read_file(tmp_path / "utf16.csv").runs) == 1
    with pytest.raises(UserError, match="is a folder"):
        detect.read_file(tmp_path)
    with pytest.raises(UserError, match="cannot read"):
        detect.read_file(tmp_path / "none.csv")
