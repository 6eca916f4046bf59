"""`meshwise explain`: reasons, comparison of two layouts, the timeline of a step, and the errors for mistakes."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from meshwise.plan.train.plan import TrainPlan
from support.command import BLOOM, Run, flowing, once, refused
from support.every import check_every

# Explaining a plan.


def test_a_plan_is_explained_the_same_every_time_and_as_when_it_was_made(run: Run, plan: Path) -> None:
    first, second = run("explain", str(plan)), run("explain", str(plan))
    assert first == second
    assert (first.code, first.err) == (0, "")
    why = first.out.splitlines()[-11:]
    assert any(line.startswith("Memory is ") for line in why)
    whole = flowing(once(*BLOOM, "--verbose").out)
    for line in why:
        assert flowing(line) in whole


def test_a_plan_under_limits_is_explained_under_them(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made = run(*BLOOM, "--fix", "tp=8,recompute=full", "--out", str(path), "--verbose")
    explained = run("explain", str(path))
    for start in ("Memory is ", "With twice the memory"):
        (line,) = [line for line in explained.out.splitlines() if line.startswith(start)]
        assert flowing(line) in flowing(made.out)
        assert not re.search(r"tp[124] ", line)


def test_two_layouts_are_compared_part_by_part(run: Run, plan: Path) -> None:
    text, found = run("explain", str(plan), "--versus", "tp=8,pp=6"), run("explain", str(plan), "--versus", "tp=8,pp=6", "--json")
    compared = json.loads(found.out)
    assert set(compared) == {"best", "other", "differences", "reasons"}
    assert (compared["other"]["tp"], compared["other"]["pp"]) == (8, 6)
    assert compared["best"] == json.loads(plan.read_text())["choices"][0]["layout"]
    assert all(" ".join(line.split()) in " ".join(text.out.split()) for line in compared["reasons"])
    assert {row["part"] for row in compared["differences"]} >= {"tp", "matmul"}  # eight ranks reduce more, and multiply thinner


@pytest.mark.parametrize(
    ("versus", "code", "words"),
    [
        ("tp=7", 2, "tp=7 cannot run"),
        ("tp=8,pp=5", 2, "its axes multiply to 384 devices"),
        ("zero=3", 2, "ZeRO"),
        ("tp=8,pp=3,recompute=none", 1, "does not fit"),
        ("tq=8", 2, "did you mean 'tp'?"),
        ("tp=99999999999999999999", 2, "tp is a whole number"),
    ],
)
def test_a_layout_that_cannot_run_is_refused_with_the_reason(run: Run, plan: Path, versus: str, code: int, words: str) -> None:
    assert words in refused(run("explain", str(plan), "--versus", versus), code)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (
            lambda text: text.replace(f'"format": {TrainPlan.format}', '"format": 99'),
            f"a plan of format 99; this version reads format {TrainPlan.format}",
        ),
        (lambda text: text.replace('"choices"', '"chosen"'), "a damaged plan"),
        (lambda text: "model = 1", "not valid JSON"),
        (lambda text: '{"model_type": "llama"}', "not a plan; make one with"),
        (lambda text: "\0\0", "plan.json"),
        (lambda text: text.replace('"bloom-176b"', '"blooom-176b"'), "did you mean"),
    ],
    ids=["cut off", "another format", "damaged", "TOML", "a config", "binary", "an unknown model"],
)
def test_a_file_that_is_no_plan_is_one_line(run: Run, plan: Path, damage: Any, words: str) -> None:
    plan.write_text(damage(plan.read_text()))
    assert words in refused(run("explain", str(plan)))


def test_a_plan_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    assert "no such file" in refused(run("explain", str(tmp_path / "nowhere.json"))).lower()


# The step in time.


def test_a_step_is_written_as_a_trace_and_as_a_picture(run: Run, plan: Path, tmp_path: Path) -> None:
    trace, svg = tmp_path / "step.json", tmp_path / "step.svg"
    done = run("explain", str(plan), "--trace", str(trace), "--svg", str(svg))
    assert (done.code, done.err) == (0, "")
    trace_line, svg_line = done.out.splitlines()
    best = json.loads(plan.read_text())["choices"][0]
    events = json.loads(trace.read_text())["traceEvents"]
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") / 1e6 == pytest.approx(best["seconds"], rel=1e-6)
    assert {e["pid"] for e in events} == set(range(best["layout"]["pp"]))
    for words in (str(trace), f"{len(events):,} events", f"{best['seconds']:.4g} s", "ui.perfetto.dev", "chrome://tracing"):
        assert words in trace_line
    assert str(svg) in svg_line
    assert svg.read_text().startswith("<svg")


def test_the_trace_shows_the_layout_of_versus(run: Run, plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    assert run("explain", str(plan), "--versus", "tp=8,pp=6", "--trace", str(path)).code == 0
    found = json.loads(gzip.decompress(path.read_bytes()))
    assert (found["metadata"]["layout"]["tp"], found["metadata"]["layout"]["pp"]) == (8, 6)


@pytest.mark.parametrize("option", ["--trace", "--svg"])
def test_a_timeline_that_cannot_be_written_is_one_line(run: Run, plan: Path, tmp_path: Path, option: str) -> None:
    assert "cannot write" in refused(run("explain", str(plan), option, str(tmp_path / "nowhere" / "step")))
    assert "cannot write" in refused(run("explain", str(plan), option, str(tmp_path)))


def test_json_with_a_trace_or_a_picture_is_refused(run: Run, plan: Path, tmp_path: Path) -> None:
    assert "drop one of them" in refused(run("explain", str(plan), "--json", "--svg", str(tmp_path / "step.svg")))


def test_a_plan_with_an_axis_below_its_least_value_is_one_line(run: Run, plan: Path) -> None:
    whole = json.loads(plan.read_text())

    def check(axis: str, value: int) -> None:
        edited = json.loads(json.dumps(whole))
        edited["choices"][0]["layout"][axis] = value
        plan.write_text(json.dumps(edited))
        least = "0" if axis == "zero" else "1"
        assert f"{axis} is {value}, where the least is {least}" in refused(run("explain", str(plan)))

    check_every(check, [("vpp", 0), ("ep", 0), ("etp", -1), ("mbs", 0), ("tp", -8), ("zero", -1)])


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [("mbs", 7, "not a whole number of micro-batches"), ("vpp", 2, "cannot run"), ("schedule", "interleaved", "cannot run")],
)
def test_a_plan_edited_into_one_that_cannot_run_is_one_line(
    run: Run, plan: Path, tmp_path: Path, axis: str, value: object, words: str
) -> None:
    edited = json.loads(plan.read_text())
    edited["choices"][0]["layout"][axis] = value
    plan.write_text(json.dumps(edited))
    assert words in refused(run("explain", str(plan), "--trace", str(tmp_path / "step.json")))


def test_a_plan_made_with_other_data_says_so(run: Run, plan: Path, tmp_path: Path) -> None:
    """A plan.json of somebody else may rest on a calibration of the same name with other numbers."""
    stated = json.loads(plan.read_text())
    assert "was made" not in run("explain", str(plan)).out
    for versions, says in [
        (stated["versions"] | {"calibration": "0123456789ab"}, "made with another calibration (0123456789ab, here"),
        (stated["versions"] | {"meshwise": "9.9"}, "made by meshwise 9.9: its figures are those of its file"),
        ({}, "does not say with which data it was made"),
    ]:
        other = tmp_path / "other.json"
        other.write_text(json.dumps(stated | {"versions": versions}))
        done = run("explain", str(other))
        assert done.code == 0
        assert says in flowing(done.out)
