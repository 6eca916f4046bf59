"""The verbs validate and calibrate: the output for people and for scripts, and the errors for mistakes."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from support.command import Run, once, refused, rows
from support.measured_rows import table


def printed(*arguments: str) -> str:
    """Standard output of a command that succeeds."""
    done = once(*arguments)
    assert done.code == 0, done.err
    return done.out


def test_a_table_is_scored_beside_its_baselines() -> None:
    out = printed("validate", "bloom_prequel")
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


def test_json_has_the_keys_of_one_table_or_a_list_of_several() -> None:
    one = json.loads(printed("validate", "korthikanti2022_iteration", "--json"))
    assert (one["rows"], one["skipped"], one["memory"]) == (10, 0, dict.fromkeys(("mape", "bias", "median", "coverage")))
    several = json.loads(printed("validate", "korthikanti2022_iteration", "megatron2021_table1", "--json"))
    assert [score["table"] for score in several] == ["korthikanti2022_iteration", "megatron2021_table1"]
    assert several[0] == one


def test_csv_has_one_line_per_row_with_its_ratio() -> None:
    lines = rows(printed("validate", "bloom_prequel", "--csv"))
    assert len(lines) == 75
    for row in lines:
        if row["measured_seconds"]:
            assert float(row["ratio"]) == pytest.approx(
                float(row["predicted_seconds"]) / float(row["measured_seconds"]), abs=1e-4
            )
    assert [row["row_id"] for row in lines if row["outcome"] == "oom"] == ["bloom-101", "bloom-108", "bloom-109"]


@pytest.mark.slow
def test_a_fit_is_scored_on_rows_it_did_not_see() -> None:
    fitted = json.loads(printed("validate", "korthikanti2022_iteration", "--fit", "--json"))
    assert fitted["left_out"] == "row"
    assert fitted["in_sample"]["time"]["mape"] < fitted["time"]["mape"]
    grouped = json.loads(printed("validate", "korthikanti2022_iteration", "--leave-out", "group", "--json"))
    assert grouped["left_out"] == "group"


def test_a_picture_goes_to_a_file_or_one_per_table_to_a_folder(run: Run, tmp_path: Path) -> None:
    run("validate", "korthikanti2022_iteration", "--svg", str(tmp_path / "one.svg"))
    run("validate", "korthikanti2022_iteration", "megatron2021_table1", "--svg", str(tmp_path / "new" / "folder"))
    written = sorted(path.name for path in tmp_path.rglob("*.svg"))
    assert written == ["korthikanti2022_iteration.svg", "megatron2021_table1.svg", "one.svg"]


@pytest.mark.slow
def test_a_calibration_is_printed_or_written_whole(run: Run, tmp_path: Path) -> None:
    whole = once("calibrate", "korthikanti2022_iteration")
    assert re.search(r"10 rows; before: \S+", whole.err)  # standard output has the file alone
    path = tmp_path / "mine.toml"
    path.write_text("old")
    asked = ("calibrate", "korthikanti2022_iteration", "--out", str(path), "--chips", "H100", "--frameworks", "nanotron")
    assert run(*asked).out.endswith(f"written to {path}\n")
    assert list(tmp_path.iterdir()) == [path]  # and nothing half-written beside it
    mine, other = tomllib.loads(path.read_text()), tomllib.loads(whole.out)
    assert (mine["chips"], mine["frameworks"]) == (["h100-sxm"], ["nanotron"])
    assert mine["matmul"] == other["matmul"]


def test_mistakes_are_one_line(run: Run, tmp_path: Path) -> None:
    assert "unknown table 'bloom'; did you mean 'bloom_prequel'" in refused(run("validate", "bloom"))
    assert "cannot read" in refused(run("validate", str(tmp_path / "none.csv")))
    assert "--fit makes its own calibration" in refused(run("validate", "bloom_prequel", "--fit", "--calibration", "x"))
    assert "unknown calibration 'x'" in refused(run("validate", "bloom_prequel", "--calibration", "x"))
    assert "give a folder" in refused(run("validate", "bloom_prequel", "megatron2021_table1", "--svg", "one.svg"))
    assert "a calibration is a .toml file" in refused(run("calibrate", "bloom_prequel", "--out", "x.csv"))
    assert "unknown chip" in refused(run("calibrate", "bloom_prequel", "--chips", "h1000"))
    assert "one row is not enough to score a fit" in refused(run("validate", str(table(tmp_path, {})), "--fit"))


def test_the_scores_of_a_fit_are_not_lost_where_its_file_cannot_be_written(run: Run, tmp_path: Path) -> None:
    done = run("calibrate", "korthikanti2022_iteration", "--out", str(tmp_path / "none" / "x.toml"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "cannot write" in done.err
    assert "time error, mean" in done.out


def test_a_row_that_is_no_number_stops_the_verb_with_its_line(run: Run, tmp_path: Path) -> None:
    message = refused(run("validate", str(table(tmp_path, {}, {"sec_per_iter": "nan"}))))
    assert message.startswith("meshwise: runs.csv, line 3: sec_per_iter is 'nan'")


def test_a_table_of_served_models_is_known_by_its_columns() -> None:
    out = printed("validate", "xiongjiedai_llama3_bench")
    for words in ("decode error, mean", "prefill error, mean", "fits or not: 346 of 346 right", "9 prompts left out of the mean"):
        assert words in out
    found = json.loads(printed("validate", "llamacpp_fit_dryrun", "--json"))
    assert set(found["decode"]) >= {"mape", "bias", "p95", "spearman"}
    assert set(found["prefill"]) >= {"mape", "bias", "p95", "spearman"}
    assert found["memory"] == {"mape": 0, "max_mib": 0}
    assert (found["rows"], found["skipped"], found["fit"]) == (50, 0, {"right": 50, "total": 50})


def test_rows_of_served_models_as_csv() -> None:
    lines = rows(printed("validate", "xiongjiedai_notebook_runs", "--csv"))
    assert len(lines) == 149
    assert [row["fits"] for row in lines] == [{"ok": "yes", "oom": "no"}[row["outcome"]] for row in lines]


def test_served_models_are_left_out_card_by_card(run: Run, tmp_path: Path) -> None:
    path = served_table(tmp_path)
    found = json.loads(run("validate", str(path), "--fit", "--leave-out", "group", "--json").out)
    assert found["left_out"] == "group"
    assert found["decode"]["rows"] == 4


def test_served_models_are_calibrated_to_a_file(run: Run, tmp_path: Path) -> None:
    asked = ["calibrate", str(served_table(tmp_path)), "--frameworks", "llama.cpp", "--out", str(tmp_path / "mine.toml")]
    # one of four rows misleads the fit, which then predicts the others worse than the calibration for such cards does: nothing is written
    worse = run(*asked)
    assert re.fullmatch(
        r"meshwise: .*not written: the mean error of decode is .*% on rows left out of the fit, and .*--force.*\n", worse.err
    )
    assert worse.code == 1
    assert "left out" in worse.out  # the scores
    assert not (tmp_path / "mine.toml").exists()
    done = run(*asked, "--force")
    assert (done.code, done.err) == (0, "")
    assert "although the mean error of decode is" in done.out
    made = tomllib.loads((tmp_path / "mine.toml").read_text())
    assert (made["chips"], made["engines"], made["rows"]) == (["rtx4090"], ["llama.cpp"], 4)
    assert made["stream"] > 0.5


def served_table(folder: Path) -> Path:
    path = folder / "served.csv"
    rows = [("1", "150"), ("1", "149"), ("2", "147"), ("2", "110")]
    lines = [f"llama-3-8b,Q4_K_M,llama.cpp,4090,{cards},512,256,{rate}" for cards, rate in rows]
    path.write_text("\n".join(["model,quant,engine,gpu,n_gpus,prompt_len,gen_len,decode_tok_s", *lines]))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("validate", "xiongjiedai_llama3_bench", "--svg", "x.svg"), "--svg draws tables of training runs"),
        (("validate", "xiongjiedai_llama3_bench", "--calibration", "vlm"), "unknown calibration 'vlm'; did you mean 'vllm'?"),
        (("calibrate", "xiongjiedai_llama3_bench"), "choose the one to fit to with --chips"),
        (("calibrate", "xiongjiedai_llama3_bench", "bloom_prequel"), "calibrate them separately"),
        (("calibrate", "xiongjiedai_llama3_bench", "--frameworks", "vlm"), "unknown engine 'vlm'"),
    ],
)
def test_mistakes_with_served_models_are_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(run(*arguments))
