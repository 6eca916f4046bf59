"""The table of a replay at any width."""

import numpy as np
import pytest
from rich.console import Console

from meshwise.tune.replay.groups import Strategy
from meshwise.tune.replay.replay import Replay
from meshwise.ui.views.tune import replay_view

CURVE = np.array([21.63, 0.123, 0.0456, 0.00123, 0.0])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_strategy_and_number_of_runs_is_shown_within_the_width(width: int):
    result = Replay(
        table="runs",
        groups=("a", "b"),
        sizes=(7, 93),
        skipped=3,
        runs=5,
        strategies=(Strategy("meshwise tune", (CURVE, CURVE)), Strategy("random order", (2 * CURVE, CURVE))),
        notes=("predictions by h100-nanotron",),
    )
    console = Console(width=width)
    with console.capture() as captured:
        console.print(replay_view(result, width))
    lines = captured.get().splitlines()
    text = " ".join(captured.get().split())
    assert max(len(line.rstrip()) for line in lines) <= width
    assert "1 run 2 runs 3 runs 5 runs" in text
    assert "meshwise tune 2163% 12% 4.6% 0" in text
    assert "mean over 2 groups of 7 to 93 runs; 3 rows not used" in text
