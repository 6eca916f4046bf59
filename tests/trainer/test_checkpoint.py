"""A run that was stopped goes on as if it had not been, in another layout too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_layouts import TIED

from meshwise.trainer.settings import Layout, Settings
from nursery import Nursery

WHOLE = Settings(name="tiny", model=TIED, layout=Layout(), batch=8, seq=16, steps=6, precision="fp32", checkpoint_every=3)


def losses(nursery: Nursery, settings: Settings, out: Path, says: str = "") -> dict[int, float]:
    """The loss of each step that a run of these settings takes."""
    out.mkdir(exist_ok=True)
    settings = replace(settings, out=str(out))
    settings.write(out / "config.json")
    said = nursery.run("-m", "meshwise.trainer", str(out / "config.json"), processes=settings.layout.devices)
    assert says in said
    rows = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def test_a_stopped_run_goes_on_in_another_layout_with_the_losses_of_an_unbroken_one(nursery: Nursery, tmp_path: Path) -> None:
    unbroken = losses(nursery, WHOLE, tmp_path / "unbroken")
    sharded = replace(WHOLE, layout=Layout(dp_shard=2))
    losses(nursery, sharded, tmp_path / "stopped")
    # as if it had been killed while it wrote its second checkpoint
    cut_off = tmp_path / "stopped" / "checkpoints" / "step-6" / "complete"
    cut_off.unlink()
    again = losses(nursery, replace(WHOLE, layout=Layout(pp=2)), tmp_path / "stopped", "going on after step 3")
    rows = (tmp_path / "stopped" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1, 2, 3, 4, 5]  # each once, though 3 to 5 were done twice
    assert [again[step] for step in range(6)] == pytest.approx([unbroken[step] for step in range(6)], rel=1e-5)
    assert unbroken[5] < unbroken[0]
