"""`meshwise audit` on the command line: flags, files, JSON, and one line for what cannot be read."""

import json
from pathlib import Path

import pytest

from support.audits import FIXTURES
from support.command import meshwise, once, refused

REPORT = [
    "--params", "124M", "--seq", "128", "--batch", "16", "--gpus", "8xh100-sxm", "--tokens-per-sec", "15570", "--step", "7.5s",
    "--loss0", "0.5486", "--vocab", "50257",
]  # fmt: skip
"""The report of eight-gpus.md as flags."""


def audit(*arguments: str) -> str:
    """Standard output of an audit that succeeds."""
    done = once("audit", *arguments)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_a_run_can_be_given_by_flags() -> None:
    output = audit(*REPORT)
    assert "15,570 tok/s x 7.5 s = 116,775 tokens" in output
    assert "7.13 times if the batch is per device" in " ".join(output.split())
    assert "ln 50,257 = 10.82" in output
    assert "It does not add up" in output


def test_a_batch_can_be_that_of_each_device() -> None:
    assert "a step has 16,384: 7.13 times as many" in audit(
        *(word.replace("16", "16/gpu") if word == "16" else word for word in REPORT)
    )


def test_flags_that_agree_add_up() -> None:
    words = "--model llama-3-8b --seq 4096 --batch 256 --gpus 8xh100-sxm --tp 1 --pp 1 --dp 8 --mbs 1 --tokens-per-sec 80000 --step 13.107s"
    assert "No contradiction was found" in audit(*words.split(), "--no-plan")


def test_flags_fill_in_what_a_log_leaves_out() -> None:
    log = str(FIXTURES / "megatron-lm-22b.log")
    assert "chip is not stated" in audit(log)
    assert "The measured step time is" in audit(log, "--gpus", "a100-80gb-sxm")


def test_json_has_every_run_with_its_formulas() -> None:
    made = json.loads(audit(str(FIXTURES / "megatron-deepspeed-1node.log"), "--gpus", "a100-80gb-sxm", "--json"))
    (row,) = made["runs"]
    assert row["formula_used"] == "8N of the layers"  # Megatron-DeepSpeed until 2022-02-20
    assert row["tokens_per_step"] == 2048 * 2048
    assert row["tflops"]["8N of the layers"] == pytest.approx(108.47, rel=0.001)
    assert row["mfu"]["6N"] < row["mfu"]["PaLM"]
    assert row["dollars_per_million_tokens"] > 0
    assert made["files"][0]["format"] == "megatron"
    assert made["verdict"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to audit: give files, or a run such as --params 124M"),
        (["--gpus", "8xh1000"], "h1000"),
        (["nowhere.csv"], "nowhere.csv"),
        (["--btach", "16"], "unknown option --btach; did you mean '--batch'? (meshwise audit --help)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_audit_of_nothing_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    assert words in refused(once("audit", *arguments))


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
def test_a_flag_that_makes_no_sense_is_refused(flag: str, value: str) -> None:
    assert value.split()[0] in refused(once("audit", str(FIXTURES / "megatron-lm-22b.log"), flag, value))


@pytest.mark.parametrize("text", ["", "nothing\n"], ids=["empty", "no figures"])
def test_a_file_without_figures_is_one_line_and_exit_code_2(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    assert "x.log" in refused(meshwise("audit", str(path)))


def test_several_files_of_several_formats_are_audited_together() -> None:
    output = audit(str(FIXTURES / "rig-a.md"), str(FIXTURES / "rig-b.md"), str(FIXTURES / "llama-bench.jsonl"), "--no-plan")
    assert "llama-bench.jsonl: llama-bench, 5 runs" in output
    assert "generated tok/s" in output
    assert "VRAM is video memory" in output


def test_a_built_in_table_is_known_by_its_name() -> None:
    assert "megatron2021_table1.csv: csv, 10 runs" in audit("megatron2021_table1", "--no-plan")


def test_a_run_alone_is_shown_under_every_formula() -> None:
    output = audit(str(FIXTURES / "megatron-lm-22b.log"), "--gpus", "a100-80gb-sxm", "--no-plan")
    assert "Megatron + recompute 134 (42.9%)" in output  # 1.42 s of kor-22B-full by eq. 3


def test_skipped_values_are_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("gpus,sec_per_iter,tflops\n8,1.5,100\n8,soon,100\n8\n")
    output = audit(str(path), "--no-plan")
    assert "skipped 1 x 'sec_per_iter' is not an unambiguous number" in output
    assert "(line 4)" in output


def test_the_median_of_two_runs_lies_between_them(tmp_path: Path) -> None:
    fixed = {"gpu": "a100-80gb", "n_gpus": 8, "model": "llama-3-8b", "tp": 8, "pp": 1, "dp": 1, "micro_batch": 1, "seq_len": 4096}
    rows = [fixed | {"row_id": str(batch), "global_batch_seqs": batch, "sec_per_iter": 2.0 * batch} for batch in (8, 64)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = json.loads(audit(str(tmp_path / "runs.jsonl"), "--json"))
    low, high = sorted(one["seconds"] / one["expected_seconds"] for one in made["runs"])
    assert high > 1.001 * low
    assert f"{(low + high) / 2:.2f} times the predicted one (median of 2 runs)." in made["verdict"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "empty.md as markdown"), ("gpus,sec_per_iter\n,\n", "empty.md as csv, 1 x a row without a measurement (line 2)")],
)
def test_a_file_that_holds_no_run_is_refused_with_the_lines_that_were_skipped(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "empty.md").write_text(text)
    message = refused(meshwise("audit", str(tmp_path / "empty.md")))
    assert message == f"meshwise: nothing that could be checked was found: {reason}\n"


def test_one_figure_alone_is_not_claimed_to_add_up() -> None:
    assert "A single figure cannot be checked" in audit("--params", "124M")
