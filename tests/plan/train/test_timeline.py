"""The timeline of a step: a trace in the format that Perfetto and Chrome read, as long as the prediction, and its picture."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings

from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.question import Question
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.timeline import (
    INNER_PARTS,
    MAX_DETAILED_OPERATIONS,
    PARTS_AFTER_BACKWARD,
    STREAMS,
    as_file,
    simulate_step,
    trace,
)
from support.steps import chosen, eight_stages, steps
from support.train_questions import question

NANOSECOND = 1e-3
"""In the microseconds of a trace."""


def slices(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in found["traceEvents"] if event["ph"] == "X"]


def check_format(found: dict[str, Any]) -> None:
    """The Trace Event Format: what an object, a complete event and a metadata event must have."""
    assert set(found) == {"traceEvents", "displayTimeUnit", "metadata"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    for event in found["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert isinstance(event["cat"], str)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        else:
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert set(event["args"]) == {"name" if event["name"].endswith("name") else "sort_index"}


def check_tracks(found: dict[str, Any]) -> None:
    """Every slice is on a named track, and slices of a track follow each other or lie one in another."""
    named = {(e["pid"], e["tid"]) for e in found["traceEvents"] if e["name"] == "thread_name"}
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in slices(found):
        tracks[event["pid"], event["tid"]].append(event)
    assert set(tracks) <= named  # what is shorter than a nanosecond leaves its track empty
    for events in tracks.values():
        assert all(one["ts"] <= two["ts"] for one, two in pairwise(events))
        ends: list[float] = []
        for event in events:
            while ends and ends[-1] <= event["ts"] + NANOSECOND / 2:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + NANOSECOND / 2
            ends.append(event["ts"] + event["dur"])


@settings(max_examples=60, deadline=None)
@given(steps())
def test_any_step_is_a_sound_trace_as_long_as_the_prediction(case: tuple[Question, Choice]) -> None:
    q, made = case
    found = json.loads(as_file(trace(simulate_step(q, made)), "step.json"))
    check_format(found)
    check_tracks(found)
    end = max(event["ts"] + event["dur"] for event in slices(found))
    assert end / 1e6 == pytest.approx(made.step, rel=1e-6)
    assert sum(found["metadata"]["parts"].values()) == pytest.approx(made.step)


@settings(max_examples=60, deadline=None)
@given(steps())
def test_every_part_of_the_step_is_in_its_place(case: tuple[Question, Choice]) -> None:
    """The slowest stage's work adds up to the parts of the prediction, less the time lost between micro-batches: never more."""
    q, made = case
    timeline = simulate_step(q, made)
    m, time = timeline.microbatches, made.time
    busy = m * timeline.inside.sum(axis=(1, 3))
    slowest = busy[:, busy.sum(axis=0).argmax()]
    for part, seconds in zip(INNER_PARTS, slowest.tolist(), strict=True):
        if part not in ("p2p", "launch"):
            assert seconds == pytest.approx(time[part], rel=1e-6, abs=1e-9)
        else:
            assert seconds <= time[part] * (1 + 1e-6) + 1e-9
    assert timeline.after == {part: time[part] for part in PARTS_AFTER_BACKWARD}
    idle = timeline.pipeline - slowest.sum()
    assert idle >= time["bubble"] * (1 - 1e-6) - 1e-9
    assert {*INNER_PARTS, *PARTS_AFTER_BACKWARD, "bubble"} == set(TRAIN_PARTS)


def test_stages_are_processes_and_streams_are_threads() -> None:
    found = trace(eight_stages())
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    assert names == {stage: f"stage {stage}" for stage in range(8)}
    threads = {e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert threads == {"compute", "tensor-parallel", "point-to-point"}  # one replica: nothing is reduced
    on_tp = [e for e in slices(found) if e["tid"] == list(STREAMS).index("tp")]
    assert {e["name"] for e in on_tp} == {"tp"}
    forward = [e for e in slices(found) if e["cat"] == "forward" and e["name"].startswith("F")]
    assert len(forward) == 8 * 16
    assert {(e["pid"], e["args"]["microbatch"]) for e in forward} == {(stage, j) for stage in range(8) for j in range(16)}


def test_a_split_backward_pass_shows_its_gradients_of_weights() -> None:
    cats = {event["cat"] for event in slices(trace(eight_stages(schedule=2)))}
    assert cats == {"forward", "backward", "weight gradients", "step"}


def test_a_plan_made_with_other_data_is_drawn_as_long_as_it_says() -> None:
    q = question("llama-3-8b", "8x8xh100-sxm", "torchtitan", batch=16)
    made = chosen(q, {"pp": 8, "tp": 8})
    other = replace(q, calibration=replace(q.calibration, matmul=0.4))
    found = slices(trace(simulate_step(other, made)))
    assert max(e["ts"] + e["dur"] for e in found) / 1e6 == pytest.approx(made.step, rel=1e-6)


def test_a_compressed_trace_is_the_same() -> None:
    found = trace(eight_stages())
    assert gzip.decompress(as_file(found, "step.json.gz")) == as_file(found, "step.json")


def test_a_long_step_has_no_slices_inside_of_slices() -> None:
    q = question("llama-3-8b", "8x8xh100-sxm", "torchtitan", batch=MAX_DETAILED_OPERATIONS // 8)
    names = {event["name"] for event in slices(trace(simulate_step(q, chosen(q, {"pp": 8, "tp": 8}))))}
    assert "F0" in names
    assert "matmul" not in names
