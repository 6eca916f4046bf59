"""A run that resumes reports what has changed, or refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.workers.trainer.marker import (
    Trained,
    complete_steps,
    damaged_steps,
    resume_changes,
    resume_refusal,
    unfinished_steps,
)
from support.tiny_runs import PLAIN

BEFORE = Trained.of(PLAIN, 5 * PLAIN.batch)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"save": True, "device": "cuda"}, []),
        ({"weights": "hf"}, ["--weights hf is not used: the run resumes from its checkpoint"]),
        ({"lr": 1e-3}, [f"the learning rate changes from step 6 on: peak 0.001 ({PLAIN.lr:g} before)"]),
        ({"batch": 99}, [f"99 samples per step, {PLAIN.batch} before: {5 * PLAIN.batch} were read, and reading continues after them"]),
        ({"steps": 5, "batch": 99, "lr": 1.0}, []),  # nothing is left to do
        ({"steps": 99}, [f"the learning rate changes from step 6 on: minimum at step 99 ({PLAIN.steps} before)"]),
        ({"warmup": 9, "lr": 1.0}, [f"the learning rate changes from step 6 on: peak 1 ({PLAIN.lr:g} before), warm-up steps 9 (5 before)"]),
    ],
)  # fmt: skip
def test_each_change_is_one_line(change: dict[str, Any], expected: list[str]) -> None:
    now = replace(PLAIN, **change)
    assert resume_changes(BEFORE, now, 5) == expected
    assert resume_refusal(Path("run"), BEFORE, now) == ""


def test_texts_are_compared_by_description_if_there_is_no_fingerprint() -> None:
    assert "the embedded text (now a.txt)" in resume_refusal(Path("run"), BEFORE, replace(PLAIN, text="a.txt"))
    known = replace(BEFORE, text="a.txt", fingerprint="1")
    assert resume_refusal(Path("run"), known, replace(PLAIN, text="/home/a.txt", fingerprint="1")) == ""
    assert "different content in a.txt" in resume_refusal(Path("run"), known, replace(PLAIN, text="a.txt", fingerprint="2"))


def test_a_marker_returns_the_settings_that_it_was_given() -> None:
    assert Trained.read({"trained": BEFORE.to_json() | {"a key of a later version": 1}}) == BEFORE
    assert Trained.read({"step": 5}) is None


def test_folders_are_classified_by_name_and_marker(tmp_path: Path) -> None:
    for name in ("step-3", "step-12", "step-6", "damaged-step-9", "step-old"):
        (tmp_path / name).mkdir()
    for name in ("step-3", "step-12", "damaged-step-9", "step-old"):
        (tmp_path / name / "complete").touch()
    assert (complete_steps(tmp_path), damaged_steps(tmp_path), unfinished_steps(tmp_path)) == ([12, 3], [9], [6])
    assert (complete_steps(tmp_path / "none"), damaged_steps(tmp_path / "none"), unfinished_steps(tmp_path / "none")) == (
        [],
        [],
        [],
    )
