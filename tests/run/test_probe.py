"""The probe really runs here: on a CPU, in a few seconds, alone and as two processes over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshwise.catalogue import calibrations, files, here
from meshwise.catalogue.chips import HERE, known_chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.errors import DoesNotFit
from meshwise.models import find
from meshwise.plan.ask import TrainAsk
from meshwise.run import probe
from meshwise.run.probe import Session

HEARD: list[tuple[str, int]] = []


@pytest.fixture(scope="module")
def alone() -> list[probe.Row]:
    HEARD.clear()
    return probe.measure(Session(HERE, 1, 4.0), "cpu", lambda what, done: HEARD.append((what, done)))


@pytest.fixture(scope="module")
def together() -> list[probe.Row]:
    return probe.measure(Session("here-1of2", 2, 4.0), "cpu", lambda _what, _done: None)


def test_every_kind_is_measured_or_said_to_be_missing(alone: list[probe.Row]) -> None:
    kinds = {row["kind"] for row in alone}
    assert {"machine", "gemm", "memory", "launch"} <= kinds
    told = {row["what"]: row["why"] for row in alone if row["kind"] == "missing"}
    assert "one device has no link" in told["links between devices"]
    assert "host" in told["link to the host"]
    expected = {"attention": "attention", "block": "blocks of a model", "optimizer": "optimizer", "sustained": "sustained rate"}
    assert all(kind in kinds or words in told for kind, words in expected.items())


def test_numbers_are_medians_of_repeats_with_their_spread(alone: list[probe.Row]) -> None:
    timed = [row for row in alone if row["kind"] not in ("machine", "missing", "sustained")]
    assert all(row["low"] <= row["seconds"] <= row["high"] and row["repeats"] >= 3 for row in timed)


def test_progress_is_told(alone: list[probe.Row]) -> None:
    assert HEARD[0] == ("matrix products", HEARD[0][1])
    assert HEARD[-1] == ("done", 100)
    assert [done for _, done in HEARD] == sorted(done for _, done in HEARD)


def test_two_processes_time_what_they_do_together(together: list[probe.Row]) -> None:
    wires = [row for row in together if row["kind"] == "wire"]
    assert {row["what"] for row in wires} == {"all-reduce", "all-gather", "reduce-scatter", "point-to-point"}
    assert {(row["group"], row["nodes"]) for row in wires} == {(2, 1)}
    assert len({row["size"] for row in wires}) >= 2  # a bandwidth and a latency
    assert together[0]["ranks"] == 2


def test_a_probed_cpu_can_be_planned_on_and_run_on(alone: list[probe.Row], together: list[probe.Row], home: Path) -> None:
    probe.file_away(alone, HERE)
    probe.file_away(together, "here-1of2")
    files.clear()
    chip = known_chip(HERE)
    assert chip is not None
    assert chip.kind == "cpu"
    assert here.cluster_text("cpu", 1, 1) == "1x1xhere"  # pyright: ignore[reportPrivateUsage]
    assert here.cluster_text("cpu", 2, 1) == "1x2xhere-1of2"  # pyright: ignore[reportPrivateUsage]
    assert here.cluster_text("cpu", 4, 1) == "1x4xcpu"  # pyright: ignore[reportPrivateUsage]
    both = find_cluster("1x2xhere-1of2")
    assert both.node.link is not None
    ask = TrainAsk(model="llama-debug", cluster="here", batch=8, seq=64, framework="meshwise")
    assert ask.question(find.find_model("llama-debug")).calibration == calibrations.named("probe")


@pytest.mark.skipif(bool(here.gpus()), reason="here it would work")
def test_a_worker_that_dies_says_why() -> None:
    with pytest.raises(DoesNotFit, match=r"(?i)the probe stopped with exit code 1: .*(cuda|nvidia)"):
        probe.measure(Session(HERE, 1, 2.0), "cuda", lambda _what, _done: None)


def test_the_program_runs_without_the_rest_of_meshwise() -> None:
    """As on a GPU machine that has torch alone: nothing but torch and the standard library is imported."""
    code = (
        "import sys; import meshwise.workers.probe.__main__; print(sorted(m for m in sys.modules if m.partition('.')[0] in %r))"
    )
    heavy = ("rich", "typer", "scipy", "huggingface_hub", "gguf")
    done = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []
