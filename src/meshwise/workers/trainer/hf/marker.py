"""What a checkpoint was trained with, from its marker, and whether a run can go on from it. No torch here: the launcher asks too."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from meshwise.workers.trainer.settings import Settings

DONE = "complete"
"""The marker: a folder without it is a checkpoint that was cut off."""
ASIDE = "damaged-"
"""Before the name of a checkpoint that was found damaged."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What decides which samples come next, and the rate of learning."""

    samples: int
    """That were read so far."""
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
    def read(words: Mapping[str, Any]) -> "Trained | None":
        """As a marker has it; None where it does not say, as those of earlier versions."""
        found = cast("dict[str, Any]", words.get("trained") or {})
        names = {f.name for f in fields(Trained)}
        return Trained(**{name: found[name] for name in names}) if names <= set(found) else None

    def words(self) -> dict[str, Any]:
        return asdict(self)


def whole(folder: Path) -> list[int]:
    """Steps behind each checkpoint that was finished, newest first."""
    return _steps(folder, f"step-*/{DONE}", "step-")


def put_aside(folder: Path) -> list[int]:
    """Steps behind each checkpoint that was found damaged, newest first."""
    return _steps(folder, f"{ASIDE}step-*/", f"{ASIDE}step-")


def cut_off(folder: Path) -> list[int]:
    """Steps behind each checkpoint that was never finished, newest first."""
    return [step for step in _steps(folder, "step-*/", "step-") if not (folder / f"step-{step}" / DONE).exists()]


def _steps(folder: Path, pattern: str, before: str) -> list[int]:
    paths = (path if path.is_dir() else path.parent for path in folder.glob(pattern))
    names = [path.name.removeprefix(before) for path in paths]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def marker(target: Path) -> dict[str, Any]:
    """What the marker says; nothing where it cannot be read."""
    try:
        found = cast("dict[str, Any]", json.loads((target / DONE).read_text(encoding="utf-8")))
        return found if {"step", "skipped", "files"} <= set(found) else {}
    except (OSError, ValueError, TypeError):
        return {}


def none_left(folder: Path, damaged: list[int]) -> str:
    """Why a run neither goes on nor starts again over what may still be mended."""
    names = ", ".join(f"{ASIDE}step-{step}" for step in damaged)
    return f"no checkpoint in {folder} is whole ({names}): remove them to start from step 1, or give another --out"


def refusal(folder: Path, before: Trained | None, now: Settings) -> str:
    """Why a run cannot go on from a checkpoint in this folder; nothing where it can."""
    if before is None:
        return ""
    found = [
        f"{name} {old} (now {new})"
        for name, old, new in (("seed", before.seed, now.seed), ("sequences of", before.seq, now.seq))
        if old != new
    ]
    known = before.fingerprint and now.fingerprint
    if (before.fingerprint != now.fingerprint) if known else (before.text != now.text):
        old, new = before.text or "the embedded text", now.text or "the embedded text"
        found.append(f"{old} (now {new})" if old != new else f"another content of {old}")
    if not found:
        return ""
    listed = " and ".join([", ".join(found[:-1]), found[-1]] if found[1:] else found)
    return f"{folder} is of a run with {listed}: its samples have another order; give the same to go on, or another --out"


def changes(before: Trained | None, now: Settings, step: int) -> list[str]:
    """What a run that goes on after `step` does in another way than before, a line each."""
    if step >= now.steps:
        return []
    found = [f"--weights {now.weights} is not used: the run goes on from its checkpoint"] if now.weights else []
    if before is None:
        return [*found, f"the checkpoint does not say with what it was trained: taken to be {now.batch} samples a step, as now"]
    if before.batch != now.batch:
        found.append(
            f"{now.batch} samples a step, {before.batch} before: {before.samples:,} were read, and the one after them is next"
        )
    rates = [
        f"{name} {new:g} ({old:g} before)"
        for name, old, new in (
            ("at most", before.lr, now.lr),
            ("warm-up steps", before.warmup, now.warmup),
            ("lowest after step", before.steps, now.steps),
        )
        if old != new
    ]
    return [*found, *([f"another learning rate from step {step + 1} on: {', '.join(rates)}"] if rates else [])]
