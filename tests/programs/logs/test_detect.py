"""The format of a file is recognized by its content or taken by name; formats are plugins, the built-in ones like any other."""

import sys
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.programs.logs import detect
from support.audits import FILES, FIXTURES

FORMAT = {
    "measurement.jsonl": "jsonl",
    "hf-a.log": "hf-trainer",
    "trainer_state-a.json": "hf-trainer",
    "megatron-deepspeed-1node.log": "megatron",
    "megatron-lm-22b.log": "megatron",
    "megatron-lm-old.log": "megatron",
    "nanotron-0001.log": "nanotron",
    "torchtitan-0001.log": "torchtitan",
    "torchtitan-8b.log": "torchtitan",
    "deepspeed-1.log": "deepspeed",
    "llama-bench.jsonl": "llama-bench",
    "llama-bench.csv": "llama-bench",
    "llama-bench.md": "llama-bench",
    "tuning-notes.md": "markdown",
    "eight-gpus.md": "markdown",
    "rig-a.md": "markdown",
}


def test_the_format_is_recognised_by_the_content():
    assert {name: detect.read_file(FIXTURES / name).format for name in FORMAT} == FORMAT


def test_whole_files_are_read_without_skipping_anything():
    skipped = {path.name: lines for path in FILES if (lines := detect.read_file(path).skipped.lines())}
    assert skipped == {}


def test_there_are_three_runs_of_every_format():
    counts: dict[str, int] = {}
    for path in FILES:
        reading = detect.read_file(path)
        counts[reading.format] = counts.get(reading.format, 0) + len(reading.runs)
    assert set(counts) == {one.name for one in detect.formats()} - {"csv"}  # the tables of data/measurements are its fixtures
    assert min(counts.values()) >= 3


def test_formats_are_tried_in_an_order_that_does_not_depend_on_the_packages():
    names = [one.name for one in detect.formats()]
    assert names[:5] == ["llama-bench", "vllm", "jsonl", "csv", "markdown"]  # a page may quote a log, a log never contains a page
    assert names.index("megatron") < names.index("deepspeed") < names.index("hf-trainer")


def test_a_format_can_be_named_and_a_wrong_name_is_refused():
    with pytest.raises(UserError, match="did you mean 'megatron'"):
        detect.read_file(FIXTURES / "megatron-lm-22b.log", "megatrom")
    assert detect.read_file(FIXTURES / "megatron-lm-22b.log", "nanotron").runs == []


def test_a_file_of_no_format_is_refused_with_the_formats(tmp_path: Path):
    path = tmp_path / "noise.log"
    path.write_text("hello\nworld\n")
    with pytest.raises(UserError, match=r"no known format matches its content; name one with --format \(llama-bench, "):
        detect.read_file(path)


THIRD_PARTY = """
from meshwise.runs.reading import Reading
from meshwise.programs.logs.series import Series

name = "elsewhere"
order = 45


def matches(head):
    return "elsewhere step" in head


def read(lines):
    reading = Reading(name)
    series = Series(reading, "Elsewhere")
    for line in lines:
        step, seconds = line.text.removeprefix("elsewhere step ").split()
        series.step(int(step), f"line {line.number}", {"seconds": float(seconds)})
    series.flush()
    return reading
"""


def install(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package with a log format where Python finds it, as pip would."""
    (folder / "elsewhere_logs.py").write_text(source)
    (folder / "elsewhere_logs-1.dist-info").mkdir()
    (folder / "elsewhere_logs-1.dist-info" / "METADATA").write_text("Name: elsewhere-logs\nVersion: 1\n")
    (folder / "elsewhere_logs-1.dist-info" / "entry_points.txt").write_text("[meshwise.logs]\nelsewhere = elsewhere_logs\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "elsewhere_logs", raising=False)


def test_a_third_party_adds_a_format_with_one_file_and_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, THIRD_PARTY, monkeypatch)
    (tmp_path / "run.log").write_text("elsewhere step 1 9.0\nelsewhere step 2 2.0\nelsewhere step 3 2.0\n")
    try:
        reading = detect.read_file(tmp_path / "run.log")
    finally:
        sys.modules.pop("elsewhere_logs", None)
    assert reading.format == "elsewhere"
    assert (reading.runs[0].number("seconds"), reading.runs[0].text("framework")) == (2.0, "Elsewhere")


def test_a_format_without_a_reader_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "name = 'elsewhere'\norder = 45\ndef matches(head): return True\n", monkeypatch)
    try:
        with pytest.raises(UserError, match=r"the plugin 'elsewhere' of 'meshwise.logs' \(elsewhere_logs\) does not define read"):
            detect.formats()
    finally:
        sys.modules.pop("elsewhere_logs", None)
