"""Phases: seconds by phase that add up, and nothing where nothing can be timed."""

import time

import pytest
import torch

from meshwise.workers.trainer import phases as module
from meshwise.workers.trainer.phases import Phases


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A wall clock that the test moves; the CPU works half of that time."""
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module, "process_time", lambda: now[0] / 2)
    return now


def test_phases_of_one_name_add_up_and_cpu_time_is_kept_apart(clock: list[float]) -> None:
    phases = Phases(torch.device("cpu"))
    for seconds in (1.0, 3.0):
        with phases("forward"):
            clock[0] += seconds
        with phases("backward"):
            clock[0] += 2 * seconds
    parts = phases.end()
    assert parts.seconds() == {"forward": 4.0, "backward": 8.0}
    assert parts.cpu_seconds() == {"forward": 2.0, "backward": 4.0}


def test_a_step_begins_with_nothing(clock: list[float]) -> None:
    phases = Phases(torch.device("cpu"))
    with phases("data"):
        clock[0] += 1.0
    phases.end()
    assert phases.end().seconds() == {}


def test_waiting_costs_no_processor_time() -> None:
    phases = Phases(torch.device("cpu"))
    with phases("waiting"):
        time.sleep(0.05)
    parts = phases.end()
    assert parts.cpu_seconds()["waiting"] < parts.seconds()["waiting"] / 2


def test_an_error_inside_a_part_passes_through_and_is_not_timed(clock: list[float]) -> None:
    phases = Phases(torch.device("cpu"))
    with pytest.raises(ValueError, match="torn"), phases("forward"):
        raise ValueError("torn")
    assert phases.end().seconds() == {}


def test_nothing_is_recorded_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: pytest.fail("an event was made"))
    phases = Phases(torch.device("cuda"))
    with phases("forward"):
        pass
    assert phases.end().marks == ()


def test_a_part_that_the_gpu_has_not_passed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.passed = False

        def record(self) -> None:
            pass

        def query(self) -> bool:
            return self.passed

        def elapsed_time(self, other: object) -> float:
            return 1500.0

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    phases = Phases(torch.device("cuda"))
    for name in ("forward", "backward"):
        with phases(name):
            pass
    parts = phases.end()
    parts.marks[0][2].passed = True  # pyright: ignore[reportAttributeAccessIssue]
    assert parts.seconds() == {"forward": 1.5}
    assert parts.cpu_seconds() == {}
