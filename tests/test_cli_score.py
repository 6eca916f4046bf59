"""The verbs validate and calibrate: what people read, what scripts parse, and what a mistake says."""

import csv
import io
import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from measured import table
from meshwise import cli_score
from meshwise.errors import UserError
from told import one_line

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A verb with some arguments; what it prints."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    app = typer.Typer()
    app.command()(cli_score.validate)
    app.command()(cli_score.calibrate)

    def verb(*arguments: str) -> str:
        app(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    return verb


def refused(run: Run, *arguments: str) -> str:
    with pytest.raises(UserError) as stopped:
        run(*arguments)
    assert stopped.value.exit_code == 2
    return one_line(stopped.value)


def test_a_table_is_scored_beside_its_baselines(run: Run) -> None:
    out = run("validate", "bloom_prequel")
    for words in (
        "time error, mean",
        "rank correlation",
        "time lost by the pick",
        "memory error, mean",
        "3 of 3",
        "rule of thumb",
    ):
        assert words in out
    assert "75 rows, 72 of them timed" in out
    assert "repeats another row (13)" in out


def test_json_has_the_keys_of_one_table_or_a_list_of_several(run: Run) -> None:
    one = json.loads(run("validate", "korthikanti2022_iteration", "--json"))
    assert (one["rows"], one["skipped"], one["memory"]) == (9, 1, {"mape": None, "bias": None})
    several = json.loads(run("validate", "korthikanti2022_iteration", "megatron2021_table1", "--json"))
    assert [score["table"] for score in several] == ["korthikanti2022_iteration", "megatron2021_table1"]
    assert several[0] == one


def test_csv_has_one_line_per_row_with_its_ratio(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("validate", "bloom_prequel", "--csv"))))
    assert len(rows) == 75
    for row in rows:
        if row["measured_seconds"]:
            assert float(row["ratio"]) == pytest.approx(
                float(row["predicted_seconds"]) / float(row["measured_seconds"]), abs=1e-4
            )
    assert [row["row_id"] for row in rows if row["outcome"] == "oom"] == ["bloom-101", "bloom-108", "bloom-109"]


def test_a_fit_is_scored_on_rows_it_did_not_see(run: Run) -> None:
    fitted = json.loads(run("validate", "korthikanti2022_iteration", "--fit", "--json"))
    assert fitted["left_out"] == "row"
    assert fitted["in_sample"]["time"]["mape"] < fitted["time"]["mape"]
    grouped = json.loads(run("validate", "korthikanti2022_iteration", "--leave-out", "group", "--json"))
    assert grouped["left_out"] == "group"


def test_a_picture_goes_to_a_file_or_one_per_table_to_a_folder(run: Run, tmp_path: Path) -> None:
    run("validate", "korthikanti2022_iteration", "--svg", str(tmp_path / "one.svg"))
    run("validate", "korthikanti2022_iteration", "megatron2021_table1", "--svg", str(tmp_path / "new" / "folder"))
    written = sorted(path.name for path in tmp_path.rglob("*.svg"))
    assert written == ["korthikanti2022_iteration.svg", "megatron2021_table1.svg", "one.svg"]


def test_a_calibration_is_printed_or_written_whole(run: Run, tmp_path: Path) -> None:
    printed = run("calibrate", "korthikanti2022_iteration")
    path = tmp_path / "mine.toml"
    path.write_text("old")
    assert "written to" in run(
        "calibrate", "korthikanti2022_iteration", "--out", str(path), "--chips", "H100", "--frameworks", "nanotron"
    )
    assert list(tmp_path.iterdir()) == [path]  # and nothing half-written beside it
    mine, other = tomllib.loads(path.read_text()), tomllib.loads(printed)
    assert (mine["chips"], mine["frameworks"]) == (["h100-sxm"], ["nanotron"])
    assert mine["matmul"] == other["matmul"]


def test_mistakes_are_one_line(run: Run, tmp_path: Path) -> None:
    assert "unknown table 'bloom'; did you mean 'bloom_prequel'" in refused(run, "validate", "bloom")
    assert "cannot read" in refused(run, "validate", str(tmp_path / "none.csv"))
    assert "--fit makes its own calibration" in refused(run, "validate", "bloom_prequel", "--fit", "--calibration", "x")
    assert "unknown calibration 'x'" in refused(run, "validate", "bloom_prequel", "--calibration", "x")
    assert "give a folder" in refused(run, "validate", "bloom_prequel", "megatron2021_table1", "--svg", "one.svg")
    assert "a calibration is a .toml file" in refused(run, "calibrate", "bloom_prequel", "--out", "x.csv")
    assert "unknown chip" in refused(run, "calibrate", "bloom_prequel", "--chips", "h1000")
    assert "all rows are of one group" in refused(run, "validate", str(table(tmp_path, {})), "--fit")
    nowhere = str(tmp_path / "none" / "x.toml")
    assert "cannot write" in refused(run, "calibrate", "korthikanti2022_iteration", "--out", nowhere)


def test_a_row_that_is_no_number_stops_the_verb_with_its_line(run: Run, tmp_path: Path) -> None:
    message = refused(run, "validate", str(table(tmp_path, {}, {"sec_per_iter": "nan"})))
    assert message.startswith("runs.csv, line 3: sec_per_iter is 'nan'")
