"""`meshwise plan --serve`: what people read, what scripts parse, and what a mistake says."""

import json
import re
import shlex
from pathlib import Path

import pytest

from support.command import Run, refused, rows
from support.gguf_files import LLAMA, Gguf

RIG = ["plan", "llama-3.3-70b:q4_k_m", "--serve", "--on", "4xrtx4060ti-16gb", "--context", "16k"]
SERVER = ["plan", "llama-3.3-70b", "--serve", "--on", "8xh100-sxm", "--context", "8k", "--users", "32"]


def test_a_plan_shows_ways_cards_time_reasons_and_the_command(run: Run) -> None:
    done = run(*RIG)
    assert (done.code, done.err) == (0, "")
    for words in (
        "tokens/s",
        "90% between",
        "prompt tokens/s",
        "first token",
        "GiB left",
        "room for users",
        "layer split, 4 cards",
        "does not fit: ",
        "memory of each card",
        "W weights  K keys and values  B buffers  D driver",
        "milliseconds of a step of generation, by part",
        "It fits: 39.6 GiB of weights",
        "a fifth card adds",
        "calibration:",
        "llama-server -m llama-3.3-70b-Q4_K_M.gguf",
        "again: meshwise plan llama-3.3-70b:q4_k_m --serve --on 4xrtx4060ti-16gb --context 16384",
    ):
        assert words in done.out


def test_the_bars_of_cards_are_as_long_as_their_bytes(run: Run) -> None:
    """48 cells for the whole memory of a card."""
    found = re.findall(r"^([WKBD]+)\.* ([\d.]+) of ([\d.]+) GiB, card", run(*RIG).out, re.MULTILINE)
    assert found
    for bar, used, capacity in found:
        assert len(bar) == pytest.approx(48 * float(used) / float(capacity), abs=0.7)


def test_users_and_targets_have_their_columns(run: Run) -> None:
    done = run(*SERVER, "--ttft", "1s", "--per-user", "15")
    assert done.code == 0
    for words in (
        "tokens/s each",
        "all users",
        "with prompts",
        "$ per 1M",
        "meets",
        "vllm serve meta-llama/Llama-3.3-70B-Instruct",
    ):
        assert words in done.out


def test_json_is_the_whole_plan_and_comes_back(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    data = json.loads(run(*RIG, "--json", "--out", str(file)).out)
    assert (data["format"], data["kind"], data["fits"]) == (1, "serve", True)
    assert json.loads(file.read_text()) == data
    assert sum(device["layers"] for device in data["choices"][0]["devices"]) == 80
    told = run("explain", str(file))
    assert told.out.splitlines()[0] == data["reasons"][0]
    assert json.loads(run("explain", str(file), "--json").out)["best"] == data["choices"][0]["name"]
    assert "of plans for training" in refused(run("explain", str(file), "--versus", "tp=8"))


def test_csv_has_a_row_per_way(run: Run) -> None:
    found = rows(run(*RIG, "--csv").out)
    data = json.loads(run(*RIG, "--json").out)
    assert [row["name"] for row in found] == [one["name"] for one in data["choices"]]
    assert float(found[0]["time_parts.weights"]) == data["choices"][0]["time_parts"]["weights"]


def test_top_bounds_the_rows(run: Run) -> None:
    done = run(*RIG, "--csv", "--top", "2")
    assert len(rows(done.out)) == 2


def test_the_command_asks_the_same_again(run: Run) -> None:
    more = [
        "--prompt",
        "1k",
        "--output",
        "64",
        "--users",
        "2",
        "--kv",
        "q8_0",
        "--engine",
        "llama.cpp",
        "--ttft",
        "1min",
        "--per-user",
        "1",
    ]
    done = run(*RIG, *more, "--fix", "split=layer", "--link", "8GB/s", "--measured", "5", "--top", "3")
    again = shlex.split(done.out.rpartition("again: meshwise ")[2])
    assert run(*again).out == done.out


def test_measured_says_where_it_lies(run: Run) -> None:
    """`nearly 7` in the rig notes: the order that a layer split gives on cards of 288 GB/s (physics.md)."""
    assert "Measured 7 tokens/s; layer split, 4 cards is predicted at" in run(*RIG, "--measured", "7").out
    assert "layers on the CPU: " in run(*RIG, "--measured", "3.5").out


def test_a_sweep_is_one_table_a_chart_and_the_lesson(run: Run) -> None:
    done = run(*RIG, "--vary", "gpus=3..6")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"Layer split on \d to 6 cards: generation is flat within \d%", done.out)
    assert "█" in done.out
    assert done.out.rstrip().endswith("--vary gpus=3..6")
    data = json.loads(run(*RIG, "--vary", "gpus=3..6", "--json").out)
    assert [point["gpus"] for point in data["points"]] == [3, 4, 5, 6]
    assert [row["gpus"] for row in rows(run(*RIG, "--vary", "gpus=3..6", "--csv").out)] == ["3", "4", "5", "6"]


@pytest.mark.parametrize(
    "axis", ["context=4k,64k", "quant=q4_k_m,q6_k", "kv=f16,q8_0", "link=2GB/s,16GB/s", "users=1,2", "chip=rtx3090"]
)
def test_every_axis_of_the_issue_can_be_varied(run: Run, axis: str) -> None:
    done = run(*RIG, "--vary", axis)
    assert (done.code, done.err) == (0, "")


def test_a_grid_has_both_axes(run: Run) -> None:
    found = rows(run(*RIG, "--vary", "kv=f16,q8_0", "--vary", "users=1,2", "--csv").out)
    assert [(row["kv"], row["users"]) for row in found] == [("f16", "1"), ("f16", "2"), ("q8_0", "1"), ("q8_0", "2")]


def test_a_gguf_is_served_by_its_own_sizes(run: Run, tmp_path: Path) -> None:
    file = LLAMA.write(tmp_path / "tiny.gguf")
    done = run("plan", str(file), "--serve", "--on", "rtx3090", "--context", "64", "--prompt", "32", "--output", "32")
    assert done.code == 0
    assert f"llama-server -m {file}" in done.out


# What a mistake says.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--batch", "2048"], "--batch is of training; leave it out, or plan without --serve"),
        (["--tokens", "15T"], "--tokens is of training"),
        (["--mtbf", "5h"], "--mtbf is of training"),
        (["--users", "0"], "--users '0': expected how many ask at once"),
        (["--users", "many"], "--users 'many'"),
        (["--ttft", "0s"], "--ttft '0s' must be above zero"),
        (["--ttft", "1GB"], "'1GB' is not a time"),
        (["--measured", "0"], "--measured '0' must be above zero"),
        (["--per-user", "-1"], "'-1' is not a count"),
        (["--engine", "tgi"], "unknown engine 'tgi'"),
        (["--kv", "q3"], "llama.cpp has no KV type 'q3'"),
        (["--fix", "tp=3"], "llama.cpp has no tensor or pipeline parallelism"),
        (["--vary", "gpus=1..4", "--measured", "7"], "--out, --top and --measured are of one plan"),
        (["--vary", "nodes=1..4"], "there is no axis 'nodes'"),
        (["--prompt", "32k"], "a context of 16,384 does not hold a prompt of 32,768"),
    ],
)
def test_bad_flags_are_one_line(run: Run, more: list[str], words: str) -> None:
    assert words in refused(run(*RIG, *more))


def test_flags_of_serving_need_serve(run: Run) -> None:
    assert "--users is of serving; add --serve" in refused(
        run("plan", "llama-3-8b", "--on", "8xh100-sxm", "--batch", "64", "--users", "4")
    )


def test_missing_words(run: Run) -> None:
    assert "missing MODEL" in refused(run("plan", "--serve", "--on", "rtx3090"))
    assert "missing --on" in refused(run("plan", "llama-3-8b", "--serve"))
    assert "is not a number of devices" in refused(run("plan", "llama-3-8b", "--serve", "--on", "0xrtx3090"))


def test_a_quantization_that_does_not_exist_offers_the_nearest(run: Run) -> None:
    assert "did you mean 'Q4_K_M'?" in refused(run("plan", "llama-3.3-70b:q4_k_mm", "--serve", "--on", "rtx3090"))


def test_a_gguf_of_an_unknown_architecture_is_one_line(run: Run, tmp_path: Path) -> None:
    file = Gguf("clip", LLAMA.fields, LLAMA.tensors).write(tmp_path / "odd.gguf")
    assert "unsupported GGUF architecture 'clip'" in refused(run("plan", str(file), "--serve", "--on", "rtx3090"))


def test_what_does_not_fit_or_is_too_slow_exits_with_1(run: Run) -> None:
    assert "does not fit on 4xrtx3090 with vllm" in refused(
        run("plan", "llama-3.3-70b:bf16", "--serve", "--on", "4xrtx3090", "--engine", "vllm"), 1
    )
    assert "the closest is" in refused(run(*SERVER, "--ttft", "1ms", "--per-user", "1000"), 1)
    assert "none of 1 points works" in refused(
        run("plan", "llama-3.3-70b:bf16", "--serve", "--on", "rtx3090", "--engine", "vllm", "--vary", "gpus=2"), 1
    )


def test_a_plan_for_training_goes_on_as_before(run: Run) -> None:
    done = run("plan", "llama-debug", "--on", "1x8xh100-sxm", "--batch", "64", "--seq", "512")
    assert (done.code, done.err) == (0, "")
    assert "s/step" in done.out
