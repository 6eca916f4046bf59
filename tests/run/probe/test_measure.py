"""The probe really runs here: on a CPU, in a few seconds, alone and as two processes over gloo; and ends when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwise.calibrate.train.probe import Row
from meshwise.catalogue import calibrations, files, here
from meshwise.catalogue.chips import PROBED_CHIP, known_chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import DoesNotFit
from meshwise.models import find
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.run import children, meter
from meshwise.run.meter import Source
from meshwise.run.probe import measure, store
from meshwise.run.probe.measure import Session

HEARD: list[tuple[str, int]] = []


@pytest.fixture(scope="module")
def alone() -> list[Row]:
    HEARD.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "find", lambda devices: Source("rapl", 1, lambda: 100.0, counts=False))
        return measure.measure(Session(PROBED_CHIP, 1, 4.0), "cpu", lambda what, done: HEARD.append((what, done)))


@pytest.fixture(scope="module")
def together() -> list[Row]:
    return measure.measure(Session("here-1of2", 2, 4.0), "cpu", lambda _what, _done: None)


def still_running(family: list[int]) -> list[int]:
    """Return the processes that have not ended within 10 s: the kernel ends orphans a moment after their parent."""
    end = time.monotonic() + 60
    while children.running(family) and time.monotonic() < end:
        time.sleep(0.05)
    return children.running(family)


@pytest.mark.slow
def test_every_kind_is_measured_or_listed_as_missing(alone: list[Row]) -> None:
    kinds = {row["kind"] for row in alone}
    assert {"machine", "gemm", "memory", "launch", "power"} <= kinds
    told = {row["what"]: row["why"] for row in alone if row["kind"] == "missing"}
    assert "one device has no link" in told["links between devices"]
    assert "host" in told["link to the host"]
    expected = {"attention": "attention", "block": "blocks of a model", "optimizer": "optimizer", "sustained": "sustained rate"}
    assert all(kind in kinds or words in told for kind, words in expected.items())


@pytest.mark.slow
def test_numbers_are_medians_of_repeats_with_their_spread(alone: list[Row]) -> None:
    timed = [row for row in alone if row["kind"] not in ("machine", "missing", "sustained", "power")]
    assert all(row["low"] <= row["seconds"] <= row["high"] and row["repeats"] >= 3 for row in timed)


@pytest.mark.slow
def test_progress_is_reported(alone: list[Row]) -> None:
    assert [what for what, _ in HEARD[:3]] == ["idle power", "waiting", "matrix products"]
    assert HEARD[-1] == ("done", 100)
    assert [done for _, done in HEARD] == sorted(done for _, done in HEARD)


@pytest.mark.slow
def test_two_processes_time_their_collectives(together: list[Row]) -> None:
    wires = [row for row in together if row["kind"] == "wire"]
    assert {row["what"] for row in wires} == {"all-reduce", "all-gather", "reduce-scatter", "point-to-point"}
    assert {(row["group"], row["nodes"]) for row in wires} == {(2, 1)}
    assert len({row["size"] for row in wires}) >= 2  # a bandwidth and a latency
    assert together[0]["ranks"] == 2


@pytest.mark.slow
def test_a_probed_cpu_can_be_planned_on_and_run_on(alone: list[Row], together: list[Row], home: Path) -> None:
    store.install(alone, PROBED_CHIP)
    store.install(together, "here-1of2")
    files.clear()
    chip = known_chip(PROBED_CHIP)
    assert chip is not None
    assert chip.kind == "cpu"
    assert here.cluster_text("cpu", 1, 1) == "1x1xhere"
    assert here.cluster_text("cpu", 2, 1) == "1x2xhere-1of2"
    assert here.cluster_text("cpu", 4, 1) == "1x4xcpu"
    both = find_cluster("1x2xhere-1of2")
    assert both.node.link is not None
    ask = TrainAsk(model="llama-debug", on="here", batch=8, seq=64, framework="meshwise")
    assert lookup.question(ask, find.find_model("llama-debug")).calibration == calibrations.named("probe")


@pytest.mark.slow
@pytest.mark.skipif(bool(here.gpus()), reason="here it would work")
def test_a_worker_that_dies_reports_the_reason() -> None:
    with pytest.raises(DoesNotFit, match=r"(?i)the probe stopped with exit code 1: .*(cuda|nvidia)"):
        measure.measure(Session(PROBED_CHIP, 1, 2.0), "cuda", lambda _what, _done: None)


def test_the_program_runs_without_the_rest_of_meshwise() -> None:
    """As on a GPU machine that has torch alone: nothing but torch and the standard library is imported."""
    code = (
        "import sys; import meshwise.workers.probe.__main__; print(sorted(m for m in sys.modules if m.partition('.')[0] in %r))"
    )
    heavy = ("rich", "typer", "scipy", "huggingface_hub", "gguf")
    done = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_a_probe_and_its_workers_at_once(tmp_path: Path, number: signal.Signals, ranks: int) -> None:
    """Alone, and under torchrun, which starts each worker in a session of its own."""
    program = (
        "import sys; from meshwise.run.probe.measure import Session, measure; "
        f"measure(Session('here', {ranks}, 60.0), 'cpu', lambda what, done: print(what, done, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline()  # it measures
    family = children.descendants(process.pid)
    assert len(family) >= ranks
    process.send_signal(number)
    _, errors = process.communicate(timeout=45)  # of the 60 s that a probe takes
    assert "KeyboardInterrupt" in errors
    assert still_running(family) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_verb_with_exit_code_130(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "meshwise", "probe", "--seconds", "60", "--device", "cpu"]
    process = subprocess.Popen(words, env=os.environ | {"MESHWISE_HOME": str(tmp_path)}, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not children.descendants(process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    family = children.descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=45)  # of the 60 s that a probe takes
    assert (process.returncode, "Traceback" in errors) == (130, False)
    assert still_running(family) == []
    assert list(tmp_path.iterdir()) == []
