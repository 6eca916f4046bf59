"""Output to a closed pipe is dropped, and nothing else is lost."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.output import ignore_broken_pipe, say
from support.nursery import Nursery
from support.tiny_runs import WHOLE


def test_a_closed_pipe_takes_any_number_of_lines() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        say("read", stream)
        assert os.read(reader, 100) == b"read\n"
        os.close(reader)
        for _ in range(3):
            say("dropped", stream)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_a_wrapped_print_ignores_output_that_is_closed_full_or_lost(capfd: pytest.CaptureFixture[str], number: int) -> None:
    def unwritable(text: str) -> None:
        raise OSError(number, text)

    ignore_broken_pipe(print)("read")
    assert capfd.readouterr().out == "read\n"
    kept = os.dup(1)
    try:
        ignore_broken_pipe(unwritable)("dropped")
        print("dropped too", flush=True)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert capfd.readouterr().out == ""


def test_a_run_with_closed_output_continues_to_its_end(nursery: Nursery, tmp_path: Path) -> None:
    settings = replace(WHOLE, steps=3, checkpoint_every=2, out=str(tmp_path))
    settings.write(tmp_path / "config.json")
    nursery.run(str(Path(__file__).parent / "workers/trainer/ranks/unread_worker.py"), str(tmp_path / "config.json"))
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "measurement.jsonl").read_text())["outcome"] == "ok"
    assert not (tmp_path / "failure.json").exists()


@pytest.mark.parametrize("words", [("show", "chips", "--json"), ("count", "llama-3-8b")])
def test_a_verb_with_closed_output_ends_without_a_traceback(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "import sys; from meshwise.ui.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_report_is_written_even_if_its_output_is_closed(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from meshwise.run.train import single
from meshwise.run.train.results import TrainResult

for _ in range(2):
    single.finish(TrainResult(Path(sys.argv[1]), None, None), print, lambda result: ("x" * 100_000, "# a run"))
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.md").read_text().startswith("# a run")
