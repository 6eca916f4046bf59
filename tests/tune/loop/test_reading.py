"""Logs of runs: a step time that counts, a failure that teaches, or a reason to leave the run out."""

import os
import time
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.runs.run import Run
from meshwise.tune.loop.launch import End
from meshwise.tune.loop.reading import failure, measurement, outcome

EIGHT = Run.told("", {"devices": 8, "dp": 8, "tp": 1, "pp": 1, "seq": 4096, "batch": 64, "chip": "h100-sxm"})
STEP = "step: {n:2}  loss: 11.5  memory: 40.00GiB(50.00%)  tps: {tps:,.0f}  tflops: 1.00  mfu: 1.00%\n"
TOKENS = 64 * 4096


def titan(folder: Path, seconds: float = 4.0, devices: int = 8, steps: int = 8, first: float = 1.0, tail: str = "") -> Path:
    """Write the log of a run of torchtitan; its first two steps take `first` times as long."""
    mesh = f"[titan] Building 1-D device mesh with ['dp_shard'], [{devices}]\n"
    rates = [TOKENS / devices / (seconds * (first if n <= 2 else 1)) for n in range(1, steps + 1)]
    log = folder / "output.log"
    log.write_text(mesh + "".join(STEP.format(n=n, tps=rate) for n, rate in enumerate(rates, 1)) + tail)
    return log


def test_the_median_step_counts_without_those_that_compile(tmp_path: Path) -> None:
    found = measurement(titan(tmp_path, seconds=4.0, first=20.0), EIGHT)
    assert found.rejected == ""
    assert found.seconds == pytest.approx(4.0, rel=1e-3)
    assert found.memory == pytest.approx(40 * 2**30)


def test_a_cluster_that_has_changed_is_told_and_left_out(tmp_path: Path) -> None:
    fewer = measurement(titan(tmp_path, devices=4), EIGHT)
    assert "its log is of 4 devices, where the run has 8" in fewer.rejected
    log = titan(tmp_path)
    log.write_text("[titan] CUDA capacity: NVIDIA A100-SXM4-80GB with 79.10GiB memory\n" + log.read_text())
    assert "where the plan is for h100-sxm: the cluster has changed" in measurement(log, EIGHT).rejected


def test_a_time_that_contradicts_itself_is_left_out(tmp_path: Path) -> None:
    model = {"params": 8e9, "layers": 32.0, "hidden": 4096.0, "heads": 32.0, "vocab": 128256.0}
    eight_billion = EIGHT.adding(Run.told("", model))
    found = measurement(titan(tmp_path, seconds=0.05), eight_billion)
    assert "times the peak of H100 SXM" in found.rejected
    assert measurement(titan(tmp_path, seconds=4.0), eight_billion).rejected == ""


def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("hello\nworld\n")
    with pytest.raises(UserError, match="no known format matches its content"):
        measurement(tmp_path / "output.log", EIGHT)
    left_out = outcome(tmp_path / "output.log", EIGHT, End("exit", 0, 5.0), 60.0)
    assert "no known format matches its content" in left_out.rejected
    assert not left_out.failure


def test_one_step_is_too_few(tmp_path: Path) -> None:
    assert "too few to measure: raise --steps" in measurement(titan(tmp_path, steps=1), EIGHT).rejected


@pytest.mark.parametrize(
    ("words", "end", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", End("exit", 1), "oom"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", End("exit", 137), "oom"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", End("exit", 1), "oom"),
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", End("exit", 1), "hang"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", End("exit", 1), "crash"),
        ("step by step", End("timeout", -1, 60.0), "timeout"),
        ("loading", End("exit", -1, 9.0, "OUT_OF_MEMORY"), "oom"),
        ("loading", End("exit", -1, 9.0, "FAILED"), "crash"),
    ],
)
def test_failures_are_told_apart(tmp_path: Path, words: str, end: End, kind: str) -> None:
    log = tmp_path / "output.log"
    log.write_text(f"starting\n{words}\n")
    assert failure(log, end, 60.0) == kind
    found = outcome(log, EIGHT, end, 60.0)
    assert found.failure == kind
    assert words.split(":")[0] in found.note


def test_a_run_that_stopped_writing_long_before_its_end_hangs(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("connecting\n")
    old = time.time() - 50
    os.utime(log, (old, old))
    assert failure(log, End("timeout", -1, 60.0), 60.0) == "hang"


def test_a_run_that_was_ended_for_its_time_still_counts_if_it_was_measured(tmp_path: Path) -> None:
    found = outcome(titan(tmp_path), EIGHT, End("timeout", -1, 60.0), 60.0)
    assert found.seconds == pytest.approx(4.0, rel=1e-3)
    crashed = outcome(titan(tmp_path, tail="RuntimeError: boom\n"), EIGHT, End("exit", 1, 60.0), 60.0)
    assert crashed.failure == "crash"


def test_a_run_that_is_gone_is_left_out(tmp_path: Path) -> None:
    assert "gone without an exit code" in outcome(titan(tmp_path), EIGHT, End("lost", -1), 60.0).rejected
