"""After a GPU ran out of memory: the planner's parts, and the nearest layout that needs less, which the trainer can run."""

from pathlib import Path
from typing import Any

import pytest

from meshwise import aftermath, launch
from meshwise.launch import Wish, predicted, prepare


def ready(monkeypatch: pytest.MonkeyPatch, **wish: Any) -> launch.Launch:
    monkeypatch.setattr(launch, "gpus", lambda: ["NVIDIA H200"] * 8)
    return prepare(Wish(what="llama-3.1-8b", batch=64, seq=8192, axes={"dp_shard": 8, "mbs": 8}, **wish))


def test_the_parts_add_up_and_the_nearest_layout_keeps_the_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ready(monkeypatch)
    now = predicted(asked)
    assert now.memory > now.capacity  # 8 x 8192 tokens of Llama 3.1 8B on one GPU without recompute
    parts, near = aftermath.memory_lines(asked)
    assert parts.startswith("predicted for a device: weights ")
    assert parts.endswith(f"{now.memory / 2**30:.2f} of {now.capacity / 2**30:.2f}")
    assert near.startswith("nearest that needs less: --")
    found = aftermath.nearest(asked, aftermath.MARGIN * now.capacity)
    assert found is not None
    assert found.layout["dp_shard"] == 8
    assert found.memory <= aftermath.MARGIN * now.capacity
    # one change is enough, so no more are proposed
    assert len(near.removeprefix("nearest that needs less: ").split(":")[0].split("--")) == 2


def test_where_nothing_needs_less_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert aftermath.nearest(ready(monkeypatch), 1e6) is None


def test_a_rank_lost_without_checkpoints_says_what_would_have_kept_its_steps() -> None:
    killed = {"kind": "killed", "step": 22, "message": "rank 0 was killed by SIGKILL in step 22"}
    hint = "; no step is saved: --checkpoint-every would have kept them"
    assert aftermath.reason(killed, 1, 0) == killed["message"] + hint
    assert aftermath.reason(killed, 1, 5) == killed["message"]
    assert aftermath.reason(killed | {"step": 1}, 1, 0) == killed["message"]  # there was nothing to keep
    assert aftermath.reason({"kind": "nan", "step": 22, "message": "no number"}, 1, 0) == "no number"
    assert "exit code 7" in aftermath.reason({}, 7, 0)


def test_no_failure_file_is_no_failure(tmp_path: Path) -> None:
    assert aftermath.failure(tmp_path) == {}
    (tmp_path / "failure.json").write_text("{")
    assert aftermath.failure(tmp_path) == {}
