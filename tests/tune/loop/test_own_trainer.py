"""The loop with meshwise's own trainer on CPU processes: nothing is pretended."""

import json
from pathlib import Path

import pytest

import meshwise
from meshwise.plan.train.plan import TrainPlan

pytestmark = pytest.mark.slow


def test_two_runs_of_a_tiny_model_end_with_the_faster_one(tmp_path: Path) -> None:
    plan = meshwise.plan("llama-debug", on="1x1xcpu", batch="2x64", framework="meshwise")
    said: list[str] = []
    tuned = meshwise.tune(plan, own=True, device="cpu", runs=2, steps=4, gain=0.0, folder=str(tmp_path / "tune"), say=said.append)
    assert [run.outcome for run in tuned.runs] == ["ok", "ok"], said
    rows = [json.loads(line) for line in (tmp_path / "tune" / "measurement.jsonl").read_text().splitlines()]
    times = [row["sec_per_iter"] for row in rows]
    assert tuned.best is not None
    assert tuned.best.seconds == pytest.approx(min(times))
    plans = [json.loads((tmp_path / "tune" / f"run-00{number}" / "plan.json").read_text()) for number in (1, 2)]
    assert [row["micro_batch"] for row in rows] == [plan["choices"][0]["layout"]["mbs"] for plan in plans]
    best = meshwise.load(tmp_path / "tune" / "plan.json")
    assert isinstance(best, TrainPlan)
    assert best.best.step == pytest.approx(min(times))
    assert (tmp_path / "tune" / "run-001" / "out" / "steps.jsonl").exists()


def test_a_plan_for_another_program_is_refused(tmp_path: Path) -> None:
    plan = meshwise.plan("llama-debug", on="1x1xcpu", batch="2x64", framework="fsdp")
    with pytest.raises(meshwise.UserError, match="plan with --framework meshwise"):
        meshwise.tune(plan, own=True, folder=str(tmp_path))
