"""Programs of the system that hang, flood, fail or print bytes that are no text: one line, in bounded time and memory."""

import os
import resource
import time
from pathlib import Path

import pytest

from meshwise.catalogue import here
from meshwise.run import meter
from meshwise.run.serve import report
from meshwise.workers import tool

PROGRAMS = {
    "floods": "cat /dev/zero", "floods errors": "cat /dev/zero >&2", "hangs": "sleep 60", "leaves a child with its output": "sleep 60 &",
    "fails": "echo 'no devices' >&2; exit 9", "is killed": "kill -9 $$",
}  # fmt: skip


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what puts a program of some name first in the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(tool, "SECONDS", 2.0)

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return put


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_that_misbehaves_is_one_line_in_bounded_time_and_memory(kind: str, program) -> None:
    program("nvidia-smi", PROGRAMS[kind])
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(tool.ToolError, match="nvidia-smi") as refused:
        tool.output("nvidia-smi")
    assert len(str(refused.value).splitlines()) == 1
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    assert here.gpus() == []


def test_what_it_complains_of_is_said() -> None:
    with pytest.raises(tool.ToolError, match="failed: wrong"):
        tool.output("sh", "-c", "echo wrong >&2; exit 3")
    log = 'E1118 20:42:02.528274   21770 memcache.go:265] "Unhandled Error"'  # kubectl writes it before what is wrong
    with pytest.raises(tool.ToolError, match="failed: refused"):
        tool.output("sh", "-c", f"echo '{log}' >&2; echo refused >&2; exit 1")
    with pytest.raises(tool.ToolError, match="is not installed here"):
        tool.output("no-such-program-anywhere")


def test_bytes_that_are_no_text_are_read(program) -> None:
    program("nvidia-smi", r"printf '\377\376 H100\n250, 300, 16, 16\n'")
    assert len(here.gpus()) == 2
    assert report.gpu_facts() == ["power cap: GPU 1 is limited to 250 of 300 W"]


@pytest.mark.parametrize("said", ["[1]", '{"card0": 3}', '{"card0": {"Average Power (W)": "²"}}', "[" * 5000, "null", ""])
def test_rocm_smi_may_print_anything(said: str, program) -> None:
    program("rocm-smi", f"cat <<'END'\n{said}\nEND")
    assert meter.rocm() is None
