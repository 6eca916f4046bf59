"""Checkpoint markers: the settings a checkpoint was trained with, and whether a run can resume from it. No torch: launchers read them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from meshwise.workers.trainer.settings import Settings

MARKER = "complete"
"""Name of the marker file; a checkpoint folder without it was never finished."""
DAMAGED = "damaged-"
"""Prefix of a checkpoint that was found damaged."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The settings of a run that decide which samples come next, and the learning rate."""

    samples: int
    """Samples read so far."""
    batch: int
    seq: int
    seed: int
    text: str
    fingerprint: str
    lr: float
    warmup: int
    steps: int

    @staticmethod
    def of(settings: Settings, samples: int) -> "Trained":
        same = {f.name: getattr(settings, f.name) for f in fields(Trained) if f.name != "samples"}
        return Trained(samples=samples, **same)

    @staticmethod
    def read(values: Mapping[str, Any]) -> "Trained | None":
        """Read the settings from a marker; None if it has none, like markers of earlier versions."""
        trained = cast("dict[str, Any]", values.get("trained") or {})
        names = {f.name for f in fields(Trained)}
        return Trained(**{name: trained[name] for name in names}) if names <= set(trained) else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def complete_steps(folder: Path) -> list[int]:
    """Return the step numbers of the finished checkpoints, newest first."""
    return _steps(folder, f"step-*/{MARKER}", "step-")


def damaged_steps(folder: Path) -> list[int]:
    """Return the step numbers of the checkpoints that were found damaged, newest first."""
    return _steps(folder, f"{DAMAGED}step-*/", f"{DAMAGED}step-")


def unfinished_steps(folder: Path) -> list[int]:
    """Return the step numbers of the checkpoints that were never finished, newest first."""
    return [step for step in _steps(folder, "step-*/", "step-") if not (folder / f"step-{step}" / MARKER).exists()]


def _steps(folder: Path, pattern: str, prefix: str) -> list[int]:
    paths = (path if path.is_dir() else path.parent for path in folder.glob(pattern))
    names = [path.name.removeprefix(prefix) for path in paths]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def read_marker(target: Path) -> dict[str, Any]:
    """Return the values of a checkpoint's marker; empty if it cannot be read."""
    try:
        marker = cast("dict[str, Any]", json.loads((target / MARKER).read_text(encoding="utf-8")))
        return marker if {"step", "skipped", "files"} <= set(marker) else {}
    except (OSError, ValueError, TypeError):
        return {}


def all_damaged(folder: Path, damaged: list[int]) -> str:
    """Return why a run neither resumes nor starts over: the damaged checkpoints might still be repaired."""
    names = ", ".join(f"{DAMAGED}step-{step}" for step in damaged)
    return f"every checkpoint in {folder} is damaged ({names}): remove them to start from step 1, or choose another --out"


def resume_refusal(folder: Path, before: Trained | None, now: Settings) -> str:
    """Return why a run cannot resume from a checkpoint in this folder; empty if it can."""
    if before is None:
        return ""
    differences = [
        f"{name} {old} (now {new})"
        for name, old, new in (("seed", before.seed, now.seed), ("sequences of", before.seq, now.seq))
        if old != new
    ]
    known = before.fingerprint and now.fingerprint
    if (before.fingerprint != now.fingerprint) if known else (before.text != now.text):
        old, new = before.text or "the embedded text", now.text or "the embedded text"
        differences.append(f"{old} (now {new})" if old != new else f"different content in {old}")
    if not differences:
        return ""
    listed = " and ".join([", ".join(differences[:-1]), differences[-1]] if differences[1:] else differences)
    return f"{folder} holds a run with {listed}, which orders samples differently: repeat its settings to resume, or choose another --out"


def resume_changes(before: Trained | None, now: Settings, step: int) -> list[str]:
    """Describe how a run that resumes after `step` differs from before, one line per change."""
    if step >= now.steps:
        return []
    lines = [f"--weights {now.weights} is not used: the run resumes from its checkpoint"] if now.weights else []
    if before is None:
        return [*lines, f"the checkpoint does not record its settings: assuming {now.batch} samples per step, as now"]
    if before.batch != now.batch:
        lines.append(
            f"{now.batch} samples per step, {before.batch} before: {before.samples:,} were read, and reading continues after them"
        )
    rates = [
        f"{name} {new:g} ({old:g} before)"
        for name, old, new in (
            ("peak", before.lr, now.lr),
            ("warm-up steps", before.warmup, now.warmup),
            ("minimum at step", before.steps, now.steps),
        )
        if old != new
    ]
    return [*lines, *([f"the learning rate changes from step {step + 1} on: {', '.join(rates)}"] if rates else [])]
