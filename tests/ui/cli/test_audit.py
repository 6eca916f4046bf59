"""`meshwise audit` on the command line: flags, files, JSON, and one line for what cannot be read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwise.errors import UserError
from meshwise.ui.cli.main import app
from support.audits import FIXTURES


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["audit", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


REPORT = [
    "--params",
    "124M",
    "--seq",
    "128",
    "--batch",
    "16",
    "--gpus",
    "8xh100-sxm",
    "--tokens-per-sec",
    "15570",
    "--step",
    "7.5s",
    "--loss0",
    "0.5486",
    "--vocab",
    "50257",
]
"""The report of eight-gpus.md as flags."""


def test_a_run_can_be_told_with_flags():
    output = run(*REPORT)
    assert "15,570 tok/s x 7.5 s = 116,775 tokens" in output
    assert "7.13 times if the batch is per device" in output
    assert "ln 50,257 = 10.82" in output
    assert "It does not add up" in output


def test_a_batch_can_be_that_of_each_device():
    assert "a step has 16,384: 7.13 times as many" in run(
        *(word.replace("16", "16/gpu") if word == "16" else word for word in REPORT)
    )


def test_flags_that_agree_add_up():
    words = "--model llama-3-8b --seq 4096 --batch 256 --gpus 8xh100-sxm --tp 1 --pp 1 --dp 8 --mbs 1 --tokens-per-sec 80000 --step 13.107s"
    assert "Everything that could be checked adds up" in run(*words.split(), "--no-plan")


def test_flags_fill_in_what_a_log_leaves_unsaid():
    log = str(FIXTURES / "megatron-lm-22b.log")
    assert "chip is not stated" in run(log)
    assert "The measured step time is" in run(log, "--gpus", "a100-80gb-sxm")


def test_json_has_every_run_with_its_formulas():
    made = json.loads(run(str(FIXTURES / "megatron-deepspeed-1node.log"), "--gpus", "a100-80gb-sxm", "--json"))
    (row,) = made["runs"]
    assert row["formula_used"] == "8N of the layers"  # Megatron-DeepSpeed until 2022-02-20
    assert row["tokens_per_step"] == 2048 * 2048
    assert row["tflops"]["8N of the layers"] == pytest.approx(108.47, rel=0.001)
    assert row["mfu"]["6N"] < row["mfu"]["PaLM"]
    assert row["dollars_per_million_tokens"] > 0
    assert made["files"][0]["format"] == "megatron"
    assert made["verdict"]


def test_findings_are_no_errors_and_unreadable_files_are(tmp_path):
    empty = tmp_path / "empty.log"
    empty.write_text("")
    for arguments in (["audit", str(empty)], ["audit", str(tmp_path / "none.csv")], ["audit"], ["audit", "--gpus", "8xh1000"]):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, UserError)
        assert result.exception.exit_code == 2


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--step", "7.5 bananas"),
        ("--params", "many"),
        ("--memory", "56"),
        ("--loss0", "nan"),
        ("--model", "llama-9"),
        ("--format", "latex"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(flag: str, value: str):
    result = CliRunner().invoke(app, ["audit", str(FIXTURES / "megatron-lm-22b.log"), flag, value])
    assert isinstance(result.exception, UserError)


def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("nothing\n")
    done = subprocess.run(
        [sys.executable, "-c", "from meshwise.ui.cli.main import main; main()", "audit", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_several_files_of_several_formats_are_audited_together():
    output = run(str(FIXTURES / "rig-a.md"), str(FIXTURES / "rig-b.md"), str(FIXTURES / "llama-bench.jsonl"), "--no-plan")
    assert "llama-bench.jsonl: llama-bench, 5 runs" in output
    assert "generated tok/s" in output
    assert "VRAM is video memory" in output


def test_a_built_in_table_is_known_by_its_name():
    assert "megatron2021_table1.csv: csv, 10 runs" in run("megatron2021_table1", "--no-plan")


def test_a_run_alone_is_shown_under_every_formula():
    output = run(str(FIXTURES / "megatron-lm-22b.log"), "--gpus", "a100-80gb-sxm", "--no-plan")
    assert "Megatron + recompute 134 (42.9%)" in output  # 1.42 s of kor-22B-full by eq. 3


def test_what_was_skipped_is_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("gpus,sec_per_iter,tflops\n8,1.5,100\n8,soon,100\n8\n")
    output = run(str(path), "--no-plan")
    assert "skipped 1 x 'sec_per_iter' is not an unambiguous number" in output
    assert "(line 4)" in output


def test_the_median_of_two_runs_lies_between_them(tmp_path: Path) -> None:
    fixed = {"gpu": "a100-80gb", "n_gpus": 8, "model": "llama-3-8b", "tp": 8, "pp": 1, "dp": 1, "micro_batch": 1, "seq_len": 4096}
    rows = [fixed | {"row_id": str(batch), "global_batch_seqs": batch, "sec_per_iter": 2.0 * batch} for batch in (8, 64)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = json.loads(run(str(tmp_path / "runs.jsonl"), "--json"))
    low, high = sorted(one["seconds"] / one["expected_seconds"] for one in told["runs"])
    assert high > 1.001 * low
    assert f"{(low + high) / 2:.2f} times the predicted one (median of 2 runs)." in told["verdict"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "empty.md as markdown"), ("gpus,sec_per_iter\n,\n", "empty.md as csv, 1 x a row without a measurement (line 2)")],
)
def test_where_nothing_could_be_read_that_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "empty.md").write_text(text)
    with pytest.raises(UserError) as told:
        CliRunner().invoke(app, ["audit", str(tmp_path / "empty.md")], catch_exceptions=False)
    assert str(told.value) == f"nothing that could be checked was found: {reason}"


def test_one_figure_alone_is_not_said_to_add_up():
    assert "A single figure cannot be checked" in run("--params", "124M")
