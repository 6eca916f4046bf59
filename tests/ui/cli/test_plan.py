"""`meshwise plan`: the output for people and for scripts, and the errors for mistakes."""

import json
import os
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.command import BLOOM, POD, SMALL, Run, flowing, meshwise, once, refused, rows, with_option


@cache
def data(*arguments: str) -> dict[str, Any]:
    """The JSON of a command."""
    return json.loads(once(*arguments, "--json").out)


# Output for people.


def test_a_plan_shows_the_question_layouts_bars_reasons_and_what_to_type_next() -> None:
    done = once(*BLOOM)
    assert (done.code, done.err) == (0, "")
    output = flowing(done.out)
    for words in (
        "bloom-176b on jean-zay:48: 384 x A100 SXM 80GB in 48 nodes",
        "Megatron-DeepSpeed, bf16, adamw; batch 2,048 x 2,048 = 4.19M tokens",
        "s/step (90%)",
        "tokens/s",
        "TFLOP/s",
        "MFU",
        "GiB of 80",
        "accum",
        "time MMM",
        "M matrix products 4",
        "memory WWW",
        "of 80 GiB",
        "Memory is ",
        "With twice the batch",
        "calibration: a100-megatron-deepspeed",
        "reproduce: meshwise plan bloom-176b",
        "next: --out plan.json",
        "--verbose",
    ):
        assert words in output
    assert re.search(r"- dp\d+ tp\d+ [^:]* is (as fast|[\d.]+% slower): ", output)  # why not the next best
    assert "(assumed" not in output  # the framework was given


def test_the_short_answer_gives_three_to_five_reasons() -> None:
    assert 3 <= len([line for line in once(*BLOOM).out.splitlines() if line.startswith("- ")]) <= 5


def test_a_framework_that_was_not_given_is_marked_as_assumed() -> None:
    assert "PyTorch FSDP2 (assumed, --framework), bf16, adamw" in once(*SMALL).out


def test_verbose_adds_bars_of_several_layouts_rejects_formulas_and_every_reason(bloom_file: Path) -> None:
    output, short = flowing(once(*BLOOM, "--verbose").out), flowing(once(*BLOOM).out)
    for words in (
        "time by part",
        "memory by kind, of 80 GiB",
        "layouts evaluated. Dropped:",
        "by 'tp divides heads'",
        "First row in TFLOP/s by formula: 6N",
        "With twice the network",
        "Pure FSDP would be",
        "(fitted on bloom_prequel",
    ):
        assert words in output
        assert words not in short
    assert all(flowing(reason) in output for reason in json.loads(meshwise("explain", str(bloom_file), "--json").out)["reasons"])


def test_bars_are_as_long_as_their_seconds() -> None:
    """The longest fills its space, the others in proportion, to the nearest character."""
    lines = once(*BLOOM, "--verbose").out.split("time by part\n")[1].split("\nM ")[0].splitlines()
    bars = [re.fullmatch(r"([^ .]*)\.* +([\d.]+) s  dp.*", line) for line in lines]
    pairs = [(float(bar[2]), len(bar[1])) for bar in bars if bar]
    longest, cells = max(seconds for seconds, _ in pairs), max(length for _, length in pairs)
    assert len(pairs) == len(lines) == 5
    assert cells == 40
    assert all(length == pytest.approx(cells * seconds / longest, abs=0.51) for seconds, length in pairs)


def test_days_cost_and_energy_are_shown_when_tokens_are_given() -> None:
    assert "days" not in once(*SMALL).out
    table = once(*SMALL, "--tokens", "15T").out
    assert all(column in table for column in ("days", "cost", "P(fit)"))
    assert float(rows(once(*SMALL, "--tokens", "15T", "--csv").out)[0]["mwh"]) > 0
    assert (
        "Cost at $6.88 per device-hour (AWS p5.48xlarge on demand, us-east-1, an eighth of the instance, 2026-08-22;"
        in flowing(table)
    )


def test_another_price_changes_the_cost_in_proportion_and_is_shown() -> None:
    asked = [*SMALL, "--tokens", "1T"]
    listed, mine = (data(*asked, *more)["choices"][0]["dollars"] for more in ([], ["--price", "$13.76/h"]))
    assert mine == pytest.approx(2 * listed, rel=1e-12)
    assert "Cost at $13.76 per device-hour (--price)." in flowing(once(*asked, "--price", "$13.76/h").out)


LASTING = [
    "plan", "llama-3-8b", "--on", "8x8xh100-sxm", "--batch", "512", "--tokens", "1T", "--mtbf", "6400h", "--spares", "20",
]  # fmt: skip
"""64 devices that fail every 6,400 hours each: an interruption every 100 hours."""


def test_days_with_failures_are_shown_beside_those_without() -> None:
    best = data(*LASTING)["choices"][0]
    lasting = best["goodput"]
    assert best["wall_days"] == pytest.approx(best["days"] / lasting["effective"])
    assert best["wall_dollars"] == pytest.approx(best["dollars"] / lasting["effective"] * 28 / 8)  # 20 spare nodes beside 8
    assert lasting["between"] == pytest.approx(100 * 3600)
    shares = ("effective", "checkpoints", "lost_work", "restarts", "repair", "stragglers")
    assert sum(lasting[part] for part in shares) == pytest.approx(1)
    row, *_ = rows(once(*LASTING, "--csv", "--top", "1").out)
    assert float(row["goodput.effective"]) == lasting["effective"]
    assert float(row["wall_days"]) == best["wall_days"]
    output = flowing(once(*LASTING).out)
    words = f"goodput {100 * lasting['effective']:.1f}%; {best['days']:,.1f} days without failures."
    assert f"Days and cost include failures: {words}" in output
    assert f" {best['wall_days']:,.1f} " in output.partition("Days and cost")[0]


def test_assumptions_about_failures_are_listed_but_for_those_that_were_given() -> None:
    output = flowing(once(*LASTING, "--verbose").out)
    assert "with 20 spare nodes" in output
    assert "10 min to restart" in output
    assert "50,677 device-hours" not in output
    assert "50,677 device-hours" in flowing(once(*SMALL, "--tokens", "1T", "--verbose").out)


def test_failures_are_described_only_where_days_or_failures_are_asked_about() -> None:
    assert "Goodput" not in once(*SMALL, "--verbose").out
    assert "Goodput of the first row: 9" in once(*SMALL, "--tokens", "1T", "--verbose").out
    asked = once(*SMALL, "--straggler", "2%", "--verbose").out
    assert "Goodput of the first row: 9" in asked
    assert "days" not in asked


def test_one_plan_and_many_points_mean_the_same_by_days() -> None:
    """With failures and spare nodes, both of them."""
    (point,) = data(*LASTING, "--vary", "nodes=8")["points"]
    best = data(*LASTING)["choices"][0]
    assert point["choice"] == best | {"ties": 0}
    days = f"{best['wall_days']:,.1f}"
    assert best["wall_days"] > best["days"]
    for more in ([], ["--vary", "nodes=8"]):
        first = next(line for line in once(*LASTING, *more).out.splitlines() if re.match(r" *(8 +)?dp\d", line))
        assert days in first.split()


def test_a_layout_that_may_not_fit_is_marked() -> None:
    asked = ["plan", "llama-3-8b", "--on", "8xh100-sxm", "--batch", "64", "--top", "200"]
    marks = [row["memory_high"] > row["capacity"] for row in data(*asked)["choices"]]
    lines = [line for line in once(*asked).out.splitlines() if re.match(r" *dp\d", line)]
    assert [" ! " in line for line in lines] == marks
    assert any(marks)
    assert not all(marks)
    assert "may not fit (marked !): the 90% memory interval exceeds the device." in once(*asked).out


def test_steps_go_on_while_a_checkpoint_is_written() -> None:
    slow = [*SMALL, "--checkpoint-bandwidth", "1MB/s"]
    blocks, goes_on = (data(*slow, *more)["choices"][0]["goodput"] for more in ([], ["--async-checkpoint"]))
    assert goes_on["checkpoints"] < blocks["checkpoints"] / 10
    assert goes_on["effective"] > blocks["effective"]


# Output for scripts.

KEYS = {
    "format", "ask", "choices", "priced", "rejected", "calibration", "cluster", "framework", "finetune", "notes", "versions",
    "energy", "money", "risky", "evidence"}  # fmt: skip
CHOICE = {
    "layout", "devices", "seconds", "low", "high", "tokens_per_second", "tflops", "mfu", "gradient_accumulation", "memory",
    "memory_low", "memory_high", "capacity", "days", "dollars", "mwh", "wall_days", "wall_dollars", "goodput", "time_parts",
    "memory_parts", "memory_moments", "ties", "p_fit",
}  # fmt: skip


def test_json_has_the_keys_that_scripts_read() -> None:
    found = data(*SMALL)
    assert set(found) == KEYS
    assert set(found["choices"][0]) == CHOICE
    assert set(found["versions"]) == {"meshwise", "model", "cluster", "framework", "calibration"}
    assert set(found["cluster"]) == {"name", "chip", "kind", "devices", "nodes", "unit", "dollars_per_hour", "priced_by"}


def test_json_csv_table_and_file_agree(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    asked = [*SMALL, "--tokens", "1T", "--top", "4"]
    table, as_csv = run(*asked, "--out", str(path)).out, rows(once(*asked, "--csv").out)
    plan = data(*asked)
    assert plan == json.loads(path.read_text(encoding="utf-8"))
    assert len(plan["choices"]) == len(as_csv) == 4
    lines = [line.split() for line in table.splitlines() if re.match(r" ?dp\d", line)]
    for choice, row, cells in zip(plan["choices"], as_csv, lines[:4], strict=True):
        assert float(row["seconds"]) == choice["seconds"]
        assert row["layout.recompute"] == choice["layout"]["recompute"]
        assert float(row["memory_parts.weights"]) == choice["memory_parts"]["weights"]
        assert f"{choice['seconds']:.3g}" in cells
        assert f"{choice['tokens_per_second']:,.0f}" in cells
        assert f"{100 * choice['mfu']:.1f}%" in cells
        assert f"tp{choice['layout']['tp']}" in cells
        assert f"mbs{choice['layout']['mbs']}" in cells
        assert f"{choice['gradient_accumulation']:,}" in cells


def test_a_plan_that_is_written_is_named_in_the_next_commands(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    following = run(*SMALL, "--out", str(path)).out.splitlines()[-1]
    assert following.startswith(f"next: meshwise explain {path}; meshwise run {path} --dry-run")


def test_json_and_csv_are_alone_on_standard_output() -> None:
    for flag in ("--json", "--csv"):
        assert "reproduce:" not in once(*SMALL, flag).out


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--top", "3"],
        ["--tokens", "987654.321T", "--precision", "fp8", "--optimizer", "muon"],
        ["--fix", "tp=2", "--fix", "recompute=full", "--allow", "pp=1..2,mbs=1..4"],
        ["--ramp", "16,32", "--framework", "torchtitan"],
        ["--mtbf", "7777.7h", "--checkpoint-bandwidth", "3GB/s", "--spares", "0", "--straggler", "1.3%", "--async-checkpoint"],
        ["--tokens", "1T", "--restart", "7min", "--repair", "2d", "--checkpoint-every", "3h"],
        ["--on", "2x(4xrtx3090)@10Gbps", "--at-most", "1 node"],
    ],
    ids=lambda more: " ".join(more) or "plain",
)
def test_the_command_that_a_plan_prints_asks_the_same_again(more: list[str]) -> None:
    done = once(*SMALL, *more)
    assert done.code == 0
    (command,) = re.findall(r"^reproduce: (.*)$", done.out, re.MULTILINE)
    program, *arguments = shlex.split(command)
    assert program == "meshwise"
    assert once(*arguments) == done


def test_a_long_command_is_not_broken_over_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, and a narrow one
    limits = [
        word for axis in ("dp", "tp", "pp", "cp", "mbs", "dp_shard", "dp_replicate") for word in ("--allow", f"{axis}=1..64")
    ]
    (command,) = [line for line in run(*SMALL, *limits).out.splitlines() if line.startswith("reproduce: ")]
    assert command.startswith("reproduce: meshwise plan")
    assert command.endswith("--allow dp_replicate=1..64")


def test_fewer_nodes_are_planned_where_they_are_enough() -> None:
    """A model so small that the second host, at 1 Gb/s, only makes it wait."""
    asked = with_option(SMALL, "--on", "2x(4xrtx3090)@1Gbps")
    whole, few = (data(*asked, *more)["choices"][0] for more in ([], ["--at-most", "2 nodes"]))
    assert (whole["devices"], few["devices"]) == (8, 4)
    assert few["seconds"] < whole["seconds"]


@pytest.mark.parametrize("model", ["mixtral-8x7b", "mamba2-130m", "ttt-linear-125m", "gemma-2-2b"])
@pytest.mark.parametrize("framework", ["fsdp", "nanotron"])
def test_every_kind_of_model_is_planned_and_explained(model: str, framework: str) -> None:
    done = once("plan", model, "--on", "1x8xh200", "--batch", "64", "--seq", "2k", "--framework", framework, "--verbose")
    assert (done.code, done.err) == (0, "")


# Writing a plan.


@pytest.mark.parametrize("place", ["nowhere/plan.json", "a folder", "."])
def test_a_place_that_cannot_be_written_is_one_line_and_nothing_is_left_behind(run: Run, tmp_path: Path, place: str) -> None:
    (tmp_path / "a folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert "cannot write" in refused(run(*SMALL, "--out", str(tmp_path / place)))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_written_stays_as_it_was(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "plan.json"
    path.parent.mkdir()
    path.write_text("mine")
    path.parent.chmod(0o500)
    refused(run(*SMALL, "--out", str(path)))
    assert path.read_text() == "mine"


def test_a_plan_that_fails_leaves_the_old_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    assert run(*SMALL, "--fix", "tp=64", "--out", str(path)).code != 0
    assert (path.read_text(), list(tmp_path.iterdir())) == ("mine", [path])


# On a torus.


def test_a_pod_of_tpus_is_planned_with_maxtext_and_the_rooflines_of_the_scaling_book() -> None:
    done = once(*POD, "--verbose")
    assert (done.code, done.err) == (0, "")
    output = flowing(done.out)
    assert "MaxText (assumed, --framework)" in output
    assert "468 tokens per device and step, 850 needed" in output
    assert "113 tokens per device needed" in output
    assert "calibration: tpu-v5p-maxtext" in output


def test_three_divides_no_pod_of_8960(run: Run) -> None:
    assert "tp=3: none divides the 8,960 devices; the nearest that does is 2 or 4" in refused(run(*POD, "--fix", "tp=3"))
