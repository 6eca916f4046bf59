"""Curves of a run: a file that Prometheus reads, and dashboards by their own functions."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwise.workers.trainer.report.trackers import MetricsFile, trackers
from support.tiny_runs import PLAIN


def test_the_metrics_file_holds_the_latest_values_of_every_name(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "run.prom", 'a "name"')
    file.log(1, {"loss": 2.5, "phases/forward": 0.25})
    file.log(2, {"loss": float("nan")})
    lines = (tmp_path / "run.prom").read_text().splitlines()
    assert lines[1::2] == [
        'meshwise_step{run="a \\"name\\""} 2.0',
        'meshwise_loss{run="a \\"name\\""} NaN',
        'meshwise_phases_forward{run="a \\"name\\""} 0.25',
    ]
    assert all(line.startswith("# TYPE meshwise_") for line in lines[::2])
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]


def test_a_dashboard_gets_settings_steps_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the functions that wandb and trackio share; neither is installed here."""
    calls: list[tuple[str, Any]] = []
    package = SimpleNamespace(
        init=lambda **given: calls.append(("init", given)),
        log=lambda values, step: calls.append(("log", (values, step))),
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, "trackio", package)
    (tracker,) = trackers(replace(PLAIN, track=("trackio",)), tmp_path)
    tracker.log(3, {"loss": 1.5, "mfu": float("nan")})
    tracker.close()
    assert [name for name, _ in calls] == ["init", "log", "finish"]
    assert calls[0][1]["config"]["batch"] == PLAIN.batch
    assert calls[1][1] == ({"loss": 1.5}, 3)
