"""After a GPU ran out of memory: the planner's parts, and the nearest layout that needs less, which the trainer can run."""

from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue import here
from meshwise.run.train import launch
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import prepare
from meshwise.run.train.report import failure, memory


def ready(monkeypatch: pytest.MonkeyPatch, **words: Any) -> launch.Launch:
    monkeypatch.setattr(here, "gpus", lambda: ["NVIDIA H200"] * 8)
    return prepare(TrainRun(what="llama-3.1-8b", batch=64, seq=8192, dp_shard=8, mbs=8, **words))


def test_the_parts_add_up_and_the_nearest_layout_keeps_the_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ready(monkeypatch)
    now = asked.predicted()
    assert now.peak > now.capacity  # 8 x 8192 tokens of Llama 3.1 8B on one GPU without recompute
    parts, near = failure.memory_lines(asked)
    assert parts.startswith("predicted per device: weights ")
    assert parts.endswith(f"{now.peak / 2**30:.2f} GiB of {now.capacity / 2**30:.2f} GiB")
    assert near.startswith("nearest layout that needs less: --")
    found = failure.nearest(asked, failure.MAX_MEMORY_SHARE * now.capacity)
    assert found is not None
    assert found.layout["dp_shard"] == 8
    assert found.peak <= failure.MAX_MEMORY_SHARE * now.capacity
    # one change is enough, so no more are proposed
    assert len(near.removeprefix("nearest layout that needs less: ").split(":")[0].split("--")) == 2


def on_cpu(monkeypatch: pytest.MonkeyPatch, gib: float, **words: Any) -> launch.Launch:
    """Prepare a run on a machine with this much memory and enough cores."""
    monkeypatch.setattr(here, "host_memory", lambda: gib * 2**30)
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 8)
    return prepare(TrainRun(what="llama-125m", device="cpu", batch=64, seq=2048, **words))


def test_on_a_cpu_weights_are_counted_in_float32_and_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = on_cpu(monkeypatch, 24, dp_shard=8, mbs=8)
    held = memory.parts(asked, asked.predicted())
    own = asked.model.params / 8
    assert (held["weights"], held["gradients"], held["optimizer"]) == pytest.approx((4 * own, 4 * own, 8 * own), rel=1e-3)
    assert held["activations"] == 2 * asked.predicted().memory["activations"]
    told = failure.memory_lines(asked)[0]
    assert told.endswith(f"{sum(held.values()) / 2**30:.2f} GiB of 3.00 GiB for each of 8 processes on this machine")


def test_a_run_that_may_exceed_the_memory_gets_a_warning_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = on_cpu(monkeypatch, 24, dp_shard=8, mbs=8)
    note = memory.memory_warning(asked, asked.predicted())
    assert note.startswith("predicted to need ")
    assert "but this machine has 24.0 GiB: it may be killed; a smaller --mbs" in note
    roomy = on_cpu(monkeypatch, 24, dp_shard=2, mbs=1, recompute="full")
    assert memory.memory_warning(roomy, roomy.predicted()) == ""


def test_without_a_smaller_layout_the_message_states_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure.nearest(ready(monkeypatch), 1e6) is None


def test_a_rank_lost_without_checkpoints_gets_the_flag_that_saves_them() -> None:
    killed = {"kind": "killed", "step": 22, "message": "rank 0 was killed by SIGKILL in step 22"}
    hint = "; no checkpoint was saved: use --checkpoint-every"
    assert failure.reason(killed, 1, 0) == killed["message"] + hint
    assert failure.reason(killed, 1, 5) == killed["message"]
    assert failure.reason(killed | {"step": 1}, 1, 0) == killed["message"]  # there was nothing to keep
    assert failure.reason({"kind": "nan", "step": 22, "message": "no number"}, 1, 0) == "no number"
    assert "exit code 7" in failure.reason({}, 7, 0)


def test_no_failure_file_is_no_failure(tmp_path: Path) -> None:
    assert failure.failure(tmp_path) == {}
    (tmp_path / "failure.json").write_text("{")
    assert failure.failure(tmp_path) == {}
