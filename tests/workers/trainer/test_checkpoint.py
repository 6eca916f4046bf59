"""A stopped run resumes as if it had not stopped, in another layout too."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.workers.trainer.contract.settings import Layout
from support.nursery import Nursery
from support.tiny_runs import DEEPSEEK, WHOLE, losses, trained


def test_a_stopped_run_resumes_in_another_layout_with_the_losses_of_an_unbroken_one(nursery: Nursery, tmp_path: Path) -> None:
    unbroken = losses(nursery, WHOLE, tmp_path / "unbroken")
    sharded = replace(WHOLE, layout=Layout(dp_shard=2))
    losses(nursery, sharded, tmp_path / "stopped")
    # as if it had been killed while it wrote its second checkpoint
    cut_off = tmp_path / "stopped" / "checkpoints" / "step-6" / "complete"
    cut_off.unlink()
    again = losses(nursery, replace(WHOLE, layout=Layout(pp=2)), tmp_path / "stopped", "resuming after step 3")
    rows = (tmp_path / "stopped" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1, 2, 3, 4, 5]  # each once, though 3 to 5 were done twice
    assert [again[step] for step in range(6)] == pytest.approx([unbroken[step] for step in range(6)], rel=1e-5)
    assert unbroken[5] < unbroken[0]


@pytest.mark.slow
def test_experts_and_the_biases_that_balance_them_resume_in_another_layout(nursery: Nursery, tmp_path: Path) -> None:
    experts = replace(WHOLE, model=DEEPSEEK, lr=1e-2)
    unbroken = losses(nursery, experts, tmp_path / "unbroken")
    spread = replace(experts, layout=Layout(dp_shard=2, ep=2))
    losses(nursery, spread, tmp_path / "stopped")
    (tmp_path / "stopped" / "checkpoints" / "step-6" / "complete").unlink()
    again = losses(nursery, replace(experts, layout=Layout(tp=2, mbs=4)), tmp_path / "stopped", "resuming after step 3")
    assert again == pytest.approx(unbroken, rel=1e-4)
    assert unbroken[5] < unbroken[0]


def test_a_run_that_resumes_with_another_batch_reads_every_sample_once(nursery: Nursery, tmp_path: Path) -> None:
    still = replace(WHOLE, lr=0.0, checkpoint_every=2)  # nothing is learned, so that a loss depends on its samples alone
    unbroken = losses(nursery, still, tmp_path / "unbroken")
    losses(nursery, replace(still, steps=2), tmp_path / "stopped")  # 16 samples
    printed = trained(nursery, replace(still, batch=4), tmp_path / "stopped")
    assert "4 samples per step, 8 before: 16 were read, and reading continues after them" in printed
    again = losses(nursery, replace(still, batch=16, steps=7, layout=Layout(dp_shard=2)), tmp_path / "stopped", "32 were read")
    halves = [(again[step] + again[step + 1]) / 2 for step in (2, 4)]
    assert halves == pytest.approx([unbroken[2], unbroken[3]], rel=1e-5)
    assert again[6] == pytest.approx((unbroken[4] + unbroken[5]) / 2, rel=1e-5)
    assert json.loads((tmp_path / "stopped" / "checkpoints" / "step-7" / "complete").read_text())["trained"]["samples"] == 48


def test_a_run_that_resumes_with_moments_of_another_format_converts_them(nursery: Nursery, tmp_path: Path) -> None:
    nursery.run(str(Path(__file__).with_name("moments_worker.py")), str(tmp_path))


def test_problems_with_checkpoints_are_reported_and_nothing_is_started_over(nursery: Nursery, tmp_path: Path) -> None:
    losses(nursery, replace(WHOLE, checkpoint_every=2), tmp_path)
    folder = tmp_path / "checkpoints"
    (folder / "step-6" / "complete").unlink()
    marker = folder / "step-4" / "complete"
    marker.write_text(marker.read_text().replace('"skipped": 0', '"skipped": 1'))
    printed = trained(nursery, WHOLE, tmp_path)
    assert "the checkpoint after step 6 is incomplete and was removed\n" in printed
    assert "the checkpoint after step 4 is damaged (its marker cannot be read, or has changed since it was written)" in printed
    assert "resuming after step 2" in printed
    shutil.rmtree(folder / "damaged-step-4")

    steps = (tmp_path / "steps.jsonl").read_bytes()
    for one in folder.iterdir():
        part = next(one.glob("__0_*"))
        part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(AssertionError) as ended:
        trained(nursery, WHOLE, tmp_path)
    assert "the checkpoint after step 2 is damaged" in str(ended.value)
    assert "resuming" not in str(ended.value)
    why = "is damaged (damaged-step-6, damaged-step-3, damaged-step-2): remove them to start from step 1, or choose another --out"
    assert json.loads((tmp_path / "failure.json").read_text())["message"] == f"every checkpoint in {folder} {why}"
    assert (tmp_path / "steps.jsonl").read_bytes() == steps
    shutil.rmtree(folder)
    assert len(losses(nursery, replace(WHOLE, steps=1), tmp_path)) == 1


def test_workers_that_were_started_without_the_launcher_refuse_another_order_too(nursery: Nursery, tmp_path: Path) -> None:
    losses(nursery, replace(WHOLE, steps=3), tmp_path)
    with pytest.raises(AssertionError, match=r"holds a run with seed 0 \(now 1\), which orders samples differently"):
        trained(nursery, replace(WHOLE, seed=1), tmp_path)
