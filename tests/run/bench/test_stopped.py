"""A measurement that a signal ends shows and writes what was measured until then."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from support.command import Run
from support.scripted_endpoint import Script, serving
from support.trainer_process import PROGRAM

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def stopped(words: list[str], number: signal.Signals, when: Callable[[], object]) -> "subprocess.CompletedProcess[str]":
    """Run meshwise, and send it a signal once `when` holds. It starts with the usual handlers, whatever this process inherited."""

    def usual() -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=usual
    )
    end = time.monotonic() + 60
    while not when():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, number)
    out, error = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, error)


@pytest.mark.parametrize("number", SIGNALS)
def test_settings_that_were_measured_are_kept(number: signal.Signals, tmp_path: Path) -> None:
    out, rows = tmp_path / "out.json", tmp_path / "rows.csv"
    with serving(Script(first=0.02, gap=0.02).serve) as port:
        words = [
            "bench",
            f"http://127.0.0.1:{port}",
            "--prompt",
            "20",
            "--output",
            "8",
            "--repeats",
            "2",
            "--users",
            "1,2,3,4,5,6,7,8",
        ]
        done = stopped([*words, "--out", str(out), "--rows", str(rows)], number, out.exists)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "meshwise: stopped"
    report = json.loads(out.read_text())
    assert report["stopped"] is True
    assert 1 <= len(report["points"]) < 8
    assert report["points"][0]["decode"] > 0
    assert len(list(csv.DictReader(rows.read_text().splitlines()))) == len(report["points"])
    assert "tok/s" in done.stdout


@pytest.mark.parametrize("number", SIGNALS)
def test_answers_of_an_open_loop_are_kept(number: signal.Signals, tmp_path: Path) -> None:
    out, script = tmp_path / "out.json", Script(first=0.01, gap=0.005)
    with serving(script.serve) as port:
        words = ["bench", f"http://127.0.0.1:{port}", "--prompt", "20", "--output", "8", "--rate", "20/s", "--requests", "1000"]
        done = stopped([*words, "--out", str(out)], number, lambda: len(script.seen) > 30)
    assert done.returncode == 130
    (point,) = json.loads(out.read_text())["points"]
    assert point["finished"] > 0
    assert point["ttft_p50"] > 0


def test_nothing_measured_is_said_and_nothing_written(tmp_path: Path) -> None:
    out, script = tmp_path / "out.json", Script(first=30.0)
    with serving(script.serve) as port:
        words = ["bench", f"http://127.0.0.1:{port}", "--prompt", "20", "--output", "8", "--out", str(out)]
        done = stopped(words, signal.SIGTERM, lambda: script.seen)
    assert (done.returncode, done.stdout, out.exists()) == (130, "", False)


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_tables_that_were_scored_are_shown(form: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, scored = run("validate", "bloom_prequel", *form), api.validate

    def interrupted(table: str, **words: Any) -> object:
        if table != "bloom_prequel":
            signal.raise_signal(signal.SIGTERM)  # in the middle of the second table
        return scored(table, **words)

    monkeypatch.setattr(api, "validate", interrupted)
    done = run("validate", "bloom_prequel", "nanotron_h100_128", *form)
    assert (done.code, done.err.splitlines()[-1]) == (130, "meshwise: stopped")
    assert done.out == whole.out if form != ["--json"] else json.loads(done.out) == [json.loads(whole.out)]
