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
        "TTFT",
        "request",
        "layer split, 4 cards",
        "Does not fit: ",
        "memory of each card",
        "W weights  K KV cache  B compute buffers  D driver context",
        "decode step by part",
        "R all-reduces ",
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
    found = re.findall(r"^([WKBD]+)(\.*) ([\d.]+) of ([\d.]+) GiB, card", once(*RIG, "--fix", "split=layer").out, re.MULTILINE)
    assert len(found) > 2
    for bar, dots, used, capacity in found:
        whole = len(bar + dots)
        assert whole > 25
        assert len(bar) == pytest.approx(whole * float(used) / float(capacity), abs=0.7)


def test_several_requests_prices_and_targets_have_their_columns() -> None:
    done = once(*SERVER, "--ttft", "1s", "--tpot", "60ms@p99", columns=240)
    assert done.code == 0
    for words in (
        "32 users at a time, 512 prompt + 128 output tokens",
        "tok/s each (90%)",
        "all, with prompts",
        "TTFT p50",
        "per token p95",
        "request p95",
        "$/1M out",
        "meets",
        "meets the targets with up to",
        "Cost at $6.88 per device-hour (AWS p5.48xlarge on demand, us-east-1, an eighth of the instance, 2026-08-22;",
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
    "cluster", "notes", "versions", "most", "energy",
}  # fmt: skip


def test_json_is_the_whole_plan_and_comes_back(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    found = json.loads(run(*RIG, "--json", "--out", str(file)).out)
    assert set(found) == KEYS
    assert (found["format"], found["kind"], found["fits"]) == (3, "serve", True)
    assert set(found["versions"]) >= {"meshwise", "model", "cluster"}
    assert json.loads(file.read_text()) == found
    layered = next(choice for choice in found["choices"] if choice["split"] == "layer")
    assert sum(device["layers"] for device in layered["devices"]) == 80
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


def test_the_front_is_a_table_a_plot_and_a_drawing(run: Run, tmp_path: Path) -> None:
    drawing = tmp_path / "front.svg"
    done = once("serve", "llama-3.1-8b:fp8", "--on", "2xh100-sxm", "--front", "--svg", str(drawing), columns=80)
    assert (done.code, done.err) == (0, "")
    assert "tokens/s per user, up to" in done.out
    assert "step goes to" in done.out
    assert max(len(line) for line in done.out.splitlines() if not line.startswith("reproduce")) <= 80
    points = json.loads(run("serve", "llama-3.1-8b:fp8", "--on", "2xh100-sxm", "--front", "--json").out)["points"]
    assert drawing.read_text().count('r="4.5"') == len(points)


def test_the_cheapest_is_a_row_per_chip(run: Run) -> None:
    asked = ["serve", "llama-3.1-8b:fp8", "--on", "h100-sxm,l40s", "--rate", "12/s", "--ttft", "1s", "--cheapest"]
    done = run(*asked)
    assert (done.code, done.err) == (0, "")
    assert "12 requests/s, 512 prompt + 128 output tokens; targets: TTFT 1s at p95" in " ".join(done.out.split())
    table = rows(run(*asked, "--csv").out)
    assert [row["chip"] for row in table] == ["l40s", "h100-sxm"]
    assert "name the chip alone, h100-sxm" in refused(run(*asked[:2], "--on", "4xh100-sxm", *asked[4:]))


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
        (["--vary", "gpus=1..4", "--measured", "7"], "--out, --html, --top and --measured need a single plan; drop --vary"),
        (["--vary", "gpus=1..4", "--top", "3"], "--out, --html, --top and --measured need a single plan; drop --vary"),
        (["--front", "--out", "plan.json"], "--out, --html, --top and --measured need a single plan; drop --front"),
        (["--vary", "gpus=1..4", "--front"], "--front and --vary are different questions; give one of them"),
        (["--front", "--users", "4"], "--front tries every number of users: drop --users"),
        (["--users", "4", "--rate", "2/s"], "--users and --rate exclude each other"),
        (["--rate", "fast"], "--rate 'fast': expected requests per second, such as 12/s"),
        (["--burst", "3"], "--burst 3 needs --rate"),
        (["--prompt", "2k:wide"], "--prompt '2k:wide': a mean and its spread, such as 2k:0.5"),
        (["--ttft", "1s@p90"], "--ttft '1s@p90': expected @p50, @p95, @p99 or @mean"),
        (["--ttft", "5s", "--e2e", "2s"], "--e2e 2s at p95 contradicts --ttft 5s at p95"),
        (["--per-user", "20", "--tpot", "40ms"], "--per-user and --tpot say the same"),
        (["--draft", "3"], "--draft needs --accept"),
        (["--accept", "0.7"], "--accept needs --draft"),
        (["--draft", "40", "--accept", "0.7"], "--draft 40: expected at most 16 tokens"),
        (["--prefix", "100%"], "--prefix 100%: expected less"),
        (["--engine", "vllm==0.6"], "unknown version 'vllm==0.6': plans are for the current version only; write vllm"),
        (["--lengths", "nowhere.jsonl"], "cannot read 'nowhere.jsonl'"),
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
    assert "the most is" in refused(run(*SERVER[:-2], "--rate", "5000/s"), 1)
    assert "does not run fp8 on A100" in refused(run("serve", "llama-3-8b:fp8", "--on", "a100-80gb", "--engine", "tensorrt-llm"))
    assert "none of 1 points fits" in refused(run(*bf16, "--on", "rtx3090", "--vary", "gpus=2"), 1)
