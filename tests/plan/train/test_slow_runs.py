"""Plans with a calibration of which some runs were slow: the interval is that of normal runs, and the share of slow ones is stated."""

from dataclasses import replace
from pathlib import Path

import meshwise
from meshwise.plan.train.plan import TrainPlan
from support import modes as slow


def planned(pp: int) -> TrainPlan:
    return meshwise.plan("llama-3.1-8b", on="2x8xh100-sxm", batch="256x4096", framework="nanotron", fix=[f"pp={pp}"])


def test_a_plan_states_the_share_of_slow_runs_beside_the_interval_of_normal_ones(home: Path) -> None:
    slow.install(home)
    before = planned(4)
    slow.install(home, slow.SLOW)
    after = planned(4)
    (note,) = (note for note in after.notes if note.startswith("slow runs"))
    assert "20% of the runs with several stages behind the calibration slow took 1.2 s longer for each micro-batch" in note
    assert (after.best.low, after.best.high) == (before.best.low, before.best.high)
    assert not any(note.startswith("slow runs") for note in (*before.notes, *planned(1).notes))


def test_a_mode_that_most_runs_are_in_raises_the_interval(home: Path) -> None:
    slow.install(home, replace(slow.SLOW, share=0.9))
    best = planned(4).best
    micro_batches = best.gradient_accumulation
    assert best.high >= best.step + 1.2 * micro_batches
