"""`meshwise serve`: the output for people and for scripts, and the errors for mistakes."""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.command import Run, once, refused, rows
from support.gguf_files import LLAMA, Gguf

RIG = ["serve", "llama-3.3-70b:q4_k_m", "--on", "4xrtx4060ti-16gb", "--context", "16k"]
SERVER = ["serve", "llama-3.3-70b", "--on", "8xh100-sxm", "--context", "8k", "--users", "32"]


@cache
def data(*arguments: str) -> dict[str, Any]:
    """The JSON of a command."""
    return json.loads(once(*arguments, "--json").out)


# Output for people.


def test_a_plan_shows_the_question_layouts_devices_time_reasons_and_the_command() -> None:
    done = once(*RIG)
    assert (done.code, done.err) == (0, "")
    for words in (
        "llama-3.3-70b:q4_k_m on 4xrtx4060ti-16gb with llama.cpp (assumed, --engine)",
        "Q4_K_M weights, f16 KV cache; one request at a time, 512 prompt + 128 output tokens, context 16k",
        "tokens/s (90%)",
        "prefill tok/s",
        "TTFT",
        "GiB free",
        "max requests",
        "layer split, 4 cards",
        "Does not fit: ",
        "memory of each card",
        "W weights  K KV cache  B compute buffers  D driver context",
        "decode step by part",
        "R all-reduces 58%",
        "It fits: 39.6 GiB of weights",
        "a fifth card adds",
        "not calibrated for RTX 4060 Ti 16GB",
        "llama-server -m llama-3.3-70b-Q4_K_M.gguf",
        "reproduce: meshwise serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k",
        "next: --out plan.json for 'run' and 'bench'",
    ):
        assert words in done.out


@pytest.mark.parametrize("more", [[], ["--measured", "7"]], ids=["plain", "measured"])
def test_the_short_answer_gives_three_to_five_reasons(more: list[str]) -> None:
    assert 3 <= len([line for line in once(*RIG, *more).out.splitlines() if line.startswith("- ")]) <= 5


def test_verbose_adds_the_bars_of_other_layouts_and_every_reason() -> None:
    output = " ".join(once(*RIG, "--verbose").out.split())
    assert all(" ".join(reason.split()) in output for reason in data(*RIG)["reasons"])
    assert " ms, layer split, 4 cards" in output
    assert "(fitted on " in output


def test_the_bars_of_devices_are_as_long_as_their_bytes() -> None:
    """A bar and its dots are the whole memory of a card."""
    found = re.findall(r"^([WKBD]+)(\.*) ([\d.]+) of ([\d.]+) GiB, card", once(*RIG).out, re.MULTILINE)
    assert len(found) == 4
    for bar, dots, used, capacity in found:
        assert len(bar + dots) == 40
        assert len(bar) == pytest.approx(40 * float(used) / float(capacity), abs=0.7)


def test_several_requests_prices_and_targets_have_their_columns() -> None:
    done = once(*SERVER, "--ttft", "1s", "--per-user", "15", columns=140)
    assert done.code == 0
    for words in (
        "32 concurrent requests",
        "tok/s each (90%)",
        "decode tok/s",
        "with prompts",
        "$/1M tokens",
        "meets",
        "Cost at $6.88 per device-hour (list price; --price changes it).",
        "vllm serve meta-llama/Llama-3.3-70B-Instruct",
    ):
        assert words in done.out


def test_measured_says_where_it_lies() -> None:
    """`nearly 7` in the rig notes: the order that a layer split gives on cards of 288 GB/s (physics.md)."""
    assert "Measured 7 tokens/s; layer split, 4 cards is predicted at" in once(*RIG, "--measured", "7").out
    assert "layers on the CPU: " in once(*RIG, "--measured", "3.5").out


# Output for scripts.

KEYS = {
    "format", "kind", "ask", "engine", "weights", "context", "contexts", "fits", "choices", "misses", "reasons", "commands", "serving",
    "cluster", "notes", "versions",
}  # fmt: skip


def test_json_is_the_whole_plan_and_comes_back(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    found = json.loads(run(*RIG, "--json", "--out", str(file)).out)
    assert set(found) == KEYS
    assert (found["format"], found["kind"], found["fits"]) == (2, "serve", True)
    assert set(found["versions"]) >= {"meshwise", "model", "cluster"}
    assert json.loads(file.read_text()) == found
    assert sum(device["layers"] for device in found["choices"][0]["devices"]) == 80
    explained = run("explain", str(file))
    assert " ".join(explained.out.split()).startswith(found["reasons"][0])
    assert json.loads(run("explain", str(file), "--json").out)["best"] == found["choices"][0]["name"]
    assert "only apply to training; this plan is for serving" in refused(run("explain", str(file), "--versus", "tp=8"))


def test_a_plan_that_is_written_is_named_in_the_next_commands(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    following = run(*RIG, "--out", str(path)).out.splitlines()[-1]
    assert following.startswith(f"next: meshwise run {path}; meshwise bench {path}")


def test_csv_has_a_row_per_layout() -> None:
    found = rows(once(*RIG, "--csv").out)
    assert [row["name"] for row in found] == [one["name"] for one in data(*RIG)["choices"]]
    assert float(found[0]["time_parts.weights"]) == data(*RIG)["choices"][0]["time_parts"]["weights"]


def test_json_and_csv_are_alone_on_standard_output() -> None:
    for flag in ("--json", "--csv"):
        assert "reproduce:" not in once(*RIG, flag).out


def test_top_bounds_the_rows() -> None:
    assert len(rows(once(*RIG, "--csv", "--top", "2").out)) == 2


def test_the_command_asks_the_same_again() -> None:
    more = (
        "--prompt 1k --output 64 --users 2 --kv q8_0 --engine llama.cpp --ttft 1min --per-user 1 --fix split=layer --link 8GB/s"
    )
    done = once(*RIG, *shlex.split(more), "--measured", "5", "--top", "3", "--price", "$1/h")
    (command,) = re.findall(r"^reproduce: meshwise (.*)$", done.out, re.MULTILINE)
    assert once(*shlex.split(command)) == done


# Many points.


def test_a_sweep_is_one_table_a_chart_and_the_lesson() -> None:
    done = once(*RIG, "--vary", "gpus=3..6")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"Layer split on \d to 6 cards: decode is flat within \d%", done.out)
    assert "█" in done.out
    assert done.out.rstrip().endswith("--vary gpus=3..6")
    assert [point["gpus"] for point in data(*RIG, "--vary", "gpus=3..6")["points"]] == [3, 4, 5, 6]
    assert [row["gpus"] for row in rows(once(*RIG, "--vary", "gpus=3..6", "--csv").out)] == ["3", "4", "5", "6"]


@pytest.mark.parametrize(
    "axis", ["context=4k,64k", "quant=q4_k_m,q6_k", "kv=f16,q8_0", "link=2GB/s,16GB/s", "users=1,2", "chip=rtx3090"]
)
def test_every_axis_of_serving_can_be_varied(axis: str) -> None:
    done = once(*RIG, "--vary", axis)
    assert (done.code, done.err) == (0, "")


def test_a_grid_has_both_axes() -> None:
    found = rows(once(*RIG, "--vary", "kv=f16,q8_0", "--vary", "users=1,2", "--csv").out)
    assert [(row["kv"], row["users"]) for row in found] == [("f16", "1"), ("f16", "2"), ("q8_0", "1"), ("q8_0", "2")]


def test_a_gguf_is_served_by_its_own_sizes(run: Run, tmp_path: Path) -> None:
    file = LLAMA.write(tmp_path / "tiny.gguf")
    done = run("serve", str(file), "--on", "rtx3090", "--context", "64", "--prompt", "32", "--output", "32")
    assert done.code == 0
    assert f"llama-server -m {file}" in done.out


# Mistakes.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--batch", "2048"], "unknown option --batch; 'meshwise plan' has it"),
        (["--tokens", "15T"], "unknown option --tokens; 'meshwise plan' has it"),
        (["--mtbf", "5h"], "unknown option --mtbf; 'meshwise plan' has it"),
        (["--users", "0"], "--users '0': expected a whole number from 1"),
        (["--users", "many"], "--users 'many': expected a whole number from 1"),
        (["--ttft", "0s"], "--ttft '0s': expected more than 0"),
        (["--ttft", "1GB"], "--ttft '1GB' is not a time"),
        (["--measured", "0"], "--measured '0': expected more than 0"),
        (["--per-user", "-1"], "--per-user '-1' is not a count"),
        (["--engine", "tgi"], "unknown engine 'tgi'"),
        (["--kv", "q3"], "llama.cpp has no KV type 'q3'"),
        (["--fix", "tp=3"], "llama.cpp has no tensor or pipeline parallelism"),
        (["--vary", "gpus=1..4", "--measured", "7"], "--measured needs a single plan; drop --vary"),
        (["--vary", "gpus=1..4", "--top", "3"], "--out, --html and --top need a single plan; drop --vary"),
        (["--vary", "gpus=1..4", "--out", "plan.json"], "--out, --html and --top need a single plan; drop --vary"),
        (["--vary", "nodes=1..4"], "there is no axis 'nodes'"),
        (["--prompt", "32k"], "a context of 16,384 does not hold a prompt of 32,768"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, more: list[str], words: str) -> None:
    assert words in refused(run(*RIG, *more))


def test_an_option_of_serving_is_refused_by_plan_with_the_verb_that_has_it(run: Run) -> None:
    asked = ["plan", "llama-3-8b", "--on", "8xh100-sxm", "--batch", "64", "--users", "4"]
    assert "unknown option --users; 'meshwise serve' has it" in refused(run(*asked))


def test_a_missing_model_or_cluster_is_named(run: Run) -> None:
    assert "missing MODEL" in refused(run("serve", "--on", "rtx3090"))
    assert "missing --on" in refused(run("serve", "llama-3-8b"))
    assert "is not a number of devices" in refused(run("serve", "llama-3-8b", "--on", "0xrtx3090"))


def test_a_quantization_that_does_not_exist_offers_the_nearest(run: Run) -> None:
    assert "did you mean 'Q4_K_M'?" in refused(run("serve", "llama-3.3-70b:q4_k_mm", "--on", "rtx3090"))


def test_a_gguf_of_an_unknown_architecture_is_one_line(run: Run, tmp_path: Path) -> None:
    file = Gguf("clip", LLAMA.fields, {"v.patch_embd.weight": (64, 64), "v.position_embd.weight": (16, 64)}).write(
        tmp_path / "odd.gguf"
    )
    assert "unsupported GGUF architecture 'clip'" in refused(run("serve", str(file), "--on", "rtx3090"))


def test_a_model_that_does_not_fit_or_is_too_slow_is_exit_code_1(run: Run) -> None:
    bf16 = ["serve", "llama-3.3-70b:bf16", "--engine", "vllm"]
    assert "does not fit on 4xrtx3090 with vllm" in refused(run(*bf16, "--on", "4xrtx3090"), 1)
    assert "the closest is" in refused(run(*SERVER, "--ttft", "1ms", "--per-user", "1000"), 1)
    assert "none of 1 points fits" in refused(run(*bf16, "--on", "rtx3090", "--vary", "gpus=2"), 1)
