"""A run that resumes reports what has changed, or refuses."""

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.marker import (
    Marker,
    Trained,
    complete_steps,
    damaged_steps,
    read_marker,
    resume_changes,
    resume_refusal,
    unfinished_steps,
)
from support.tiny_runs import PLAIN

BEFORE = Trained.of(PLAIN, 5 * PLAIN.batch)
MARKER = Marker(step=5, skipped=1, trained=BEFORE, files={".metadata": (10, 11), "__0_0.distcp": (12, 13)})
STRANGE = ("step-old", "step-007", "step-0", "step-٣", "step-99999999999999999999", "step--1")


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


LORA = replace(PLAIN, finetune=FinetuneMethod(method="lora", rank=4, alpha=8.0, targets=("all-linear",)), weights="hf", base="1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 8}, "of lora:4 with alpha 8 on 28 layers (q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj), now lora:8"),
        ({"alpha": 16.0}, "now lora:4 with alpha 16 on 28 layers"),
        ({"targets": ("q_proj",)}, "now lora:4 with alpha 8 on 4 layers (q_proj)"),
        ({"method": "dora"}, "now dora:4"),
        ({"method": "qlora"}, "now qlora:4"),
        ({"method": "full", "targets": ()}, "now full"),
    ],
)  # fmt: skip
def test_another_method_is_refused(change: dict[str, Any], words: str) -> None:
    now = replace(LORA, finetune=replace(LORA.finetune, **change))
    told = resume_refusal(Path("run"), Trained.of(LORA, 8), now)
    assert words in told
    assert told.endswith("repeat its settings to resume, or choose another --out")
    assert "\n" not in told


def test_the_same_layers_in_other_words_another_dropout_and_moved_weights_resume() -> None:
    names = ("attention", "mlp")
    now = replace(LORA, weights="/moved/hf", finetune=replace(LORA.finetune, targets=names, dropout=0.1, merge=True))
    assert resume_refusal(Path("run"), Trained.of(LORA, 8), now) == ""


def test_other_frozen_weights_are_refused_but_trained_ones_are_in_the_checkpoint() -> None:
    before = Trained.of(LORA, 8)
    told = resume_refusal(Path("run"), before, replace(LORA, weights="other", base="2"))
    assert told == "run holds lora of other weights, not of other: repeat its --weights to resume, or choose another --out"
    assert "not of random ones" in resume_refusal(Path("run"), before, replace(LORA, weights="", base=""))
    assert "lora of random weights" in resume_refusal(Path("run"), replace(before, base=""), LORA)
    whole = replace(PLAIN, weights="hf")
    assert resume_refusal(Path("run"), Trained.of(whole, 8), replace(whole, weights="other")) == ""


def written(folder: Path, text: str, name: str = "step-5") -> Path:
    target = folder / name
    target.mkdir(exist_ok=True)
    (target / "complete").write_text(text, encoding="utf-8", errors="surrogateescape")
    return target


def test_a_marker_returns_what_was_written_and_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    target = written(tmp_path, MARKER.text())
    assert read_marker(target) == MARKER
    good = MARKER.text().encode()
    believed: list[tuple[int, bytes]] = []
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        (target / "complete").write_bytes(flipped)
        if read_marker(target) not in (None, MARKER):
            believed.append((bit, bytes(flipped)))
    assert believed == []


def test_a_checkpoint_from_before_methods_were_recorded_resumes(tmp_path: Path) -> None:
    values = json.loads(MARKER.text())
    del values["checksum"], values["trained"]["finetune"], values["trained"]["base"]
    folder = tmp_path / "step-5"
    folder.mkdir()
    checksum = zlib.crc32(json.dumps(values, sort_keys=True).encode())
    (folder / "complete").write_text(json.dumps(values | {"checksum": checksum}))
    found = read_marker(folder)
    assert found is not None
    assert resume_refusal(tmp_path, found.trained, LORA) == resume_refusal(tmp_path, found.trained, PLAIN) == ""


def test_values_that_no_run_writes_are_damage_even_with_a_right_checksum(tmp_path: Path) -> None:
    def forged(**changes: Any) -> str:
        values: dict[str, Any] = json.loads(MARKER.text()) | changes
        del values["checksum"]
        return json.dumps(values | {"checksum": zlib.crc32(json.dumps(values, sort_keys=True).encode())})

    assert read_marker(written(tmp_path, forged())) == MARKER
    before = BEFORE.to_json()
    changes: list[dict[str, Any]] = [
        {"trained": 5}, {"trained": None}, {"trained": {}}, {"trained": before | {"samples": -1}}, {"trained": before | {"lr": "x"}},
        {"trained": before | {"lr": float("nan")}}, {"trained": before | {"text": 3}}, {"trained": before | {"finetune": 3}},
        {"trained": before | {"base": None}}, {"trained": before | {"batch": True}},
        {"skipped": "x"}, {"skipped": 6}, {"skipped": -1}, {"skipped": 0.5}, {"step": 4}, {"step": "5"}, {"step": 10**400},
        {"files": []}, {"files": {"../x": [1, 2]}}, {"files": {".metadata": 1}}, {"files": {".metadata": [1, 2, 3]}},
        {"files": {".metadata": [-1, 2]}}, {"files": {"/etc/passwd": [1, 2]}},
    ]  # fmt: skip
    assert [change for change in changes if read_marker(written(tmp_path, forged(**change))) is not None] == []
    texts = ["", "5", "null", "[]", "{}", "{" * 100_000, '{"checksum": 0}', MARKER.text()[:-1], "\udcff"]
    assert [text[:20] for text in texts if read_marker(written(tmp_path, text)) is not None] == []
    assert read_marker(tmp_path / "none") is None


def test_folders_are_classified_by_name_and_marker(tmp_path: Path) -> None:
    for name in ("step-3", "step-12", "step-6", "damaged-step-9", *STRANGE):
        (tmp_path / name).mkdir()
    for name in ("step-3", "step-12", "damaged-step-9", *STRANGE):
        (tmp_path / name / "complete").touch()
    assert (complete_steps(tmp_path), damaged_steps(tmp_path), unfinished_steps(tmp_path)) == ([12, 3], [9], [6])
    assert (complete_steps(tmp_path / "none"), damaged_steps(tmp_path / "none"), unfinished_steps(tmp_path / "none")) == (
        [],
        [],
        [],
    )
