"""Checkpoint markers: the settings a checkpoint was trained with, and whether a run can resume from it. No torch: launchers read them."""

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from meshwise.workers.trainer.contract.finetune.targets import described
from meshwise.workers.trainer.contract.settings import Settings

MARKER = "complete"  # name of the marker file; a checkpoint folder without it was never finished
CHECKSUM = "checksum"
MAX_MARKER_BYTES = 1 << 26  # bytes of a marker at most: those of a million files
MAX_COUNT = 2**62  # no count in a marker is larger
DESCRIPTION = "tensors.json"  # name of the file that says what a checkpoint holds
PART = re.compile(r"\.metadata|tensors\.json|__[0-9]{1,9}_[0-9]{1,9}\.distcp", re.ASCII)
"""Names of the files of a checkpoint: DCP's, and the description."""
STEP = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)
DAMAGED_PREFIX = "damaged-"  # prefix of a checkpoint that was found damaged


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The settings of a run that decide which samples come next, the learning rate, and which weights its checkpoints hold."""

    samples: int  # samples read so far
    batch: int
    seq: int
    seed: int
    text: str
    fingerprint: str
    finetune: str  # fine-tuning method, as `described`; empty in checkpoints that were written before this was recorded
    base: str  # fingerprint of the frozen weights; empty if there are none, or if they are random
    lr: float
    warmup: int
    steps: int

    @staticmethod
    def of(settings: Settings, samples: int) -> "Trained":
        same = {f.name: getattr(settings, f.name) for f in fields(Trained) if f.name not in ("samples", "finetune")}
        return Trained(samples=samples, finetune=described(settings.model, settings.finetune), **same)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Marker:
    """The record of a finished checkpoint. Its file has a checksum of its own: one flipped bit would train other samples."""

    step: int  # steps done
    skipped: int  # steps among them that were not applied
    trained: Trained
    files: Mapping[str, tuple[int, int]]  # size in bytes and CRC-32 of every file, by name

    def text(self) -> str:
        """Return the content of the marker's file."""
        values: dict[str, Any] = {"step": self.step, "skipped": self.skipped, "trained": self.trained.to_json()}
        values["files"] = {name: list(file) for name, file in self.files.items()}
        return json.dumps(values | {CHECKSUM: _checksum(values)})


def read_marker(target: Path) -> Marker | None:
    """Return the marker of a checkpoint `step-N`; None if it cannot be read, is damaged, or belongs to another step."""
    try:
        with (target / MARKER).open("rb") as file:
            text = file.read(MAX_MARKER_BYTES + 1)
        values: object = json.loads(text) if len(text) <= MAX_MARKER_BYTES else None
        if not isinstance(values, dict):
            return None
        marker = _marker(cast("dict[str, Any]", values))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return marker if target.name in (f"step-{marker.step}", f"{DAMAGED_PREFIX}step-{marker.step}") else None


def _marker(values: dict[str, Any]) -> Marker:
    """Check the types and ranges of a marker's values; raise ValueError, KeyError or TypeError for those that no run writes."""
    stated = values.pop(CHECKSUM)
    if stated != _checksum(values):
        raise ValueError("the checksum differs")
    step = _whole(values["step"], 1)
    return Marker(
        step=step,
        skipped=_whole(values["skipped"], 0, step),
        trained=_trained(values["trained"]),
        files={_plain_name(name): (_whole(size), _whole(crc)) for name, (size, crc) in values["files"].items()},
    )


def _trained(values: dict[str, Any]) -> Trained:
    least = {"samples": 0, "batch": 1, "seq": 1, "seed": 0, "warmup": 0, "steps": 1}
    numbers = {name: _whole(values[name], low) for name, low in least.items()}
    words = {name: values.get(name, "") for name in ("finetune", "base")}
    words |= {name: values[name] for name in ("text", "fingerprint")}
    rate = values["lr"]
    if not isinstance(rate, int | float) or not math.isfinite(rate) or not all(isinstance(word, str) for word in words.values()):
        raise ValueError("settings of a wrong type")
    return Trained(lr=rate, **numbers, **words)


def _whole(value: object, least: int = 0, most: int = MAX_COUNT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError("not a whole number in its range")
    return value


def _plain_name(name: str) -> str:
    if not PART.fullmatch(name):
        raise ValueError("a file that no checkpoint has")
    return name


def _checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def complete_steps(folder: Path) -> list[int]:
    """Return the step numbers of the finished checkpoints, newest first."""
    return _steps(folder, f"step-*/{MARKER}", "step-")


def damaged_steps(folder: Path) -> list[int]:
    """Return the step numbers of the checkpoints that were found damaged, newest first."""
    return _steps(folder, f"{DAMAGED_PREFIX}step-*/", f"{DAMAGED_PREFIX}step-")


def unfinished_steps(folder: Path) -> list[int]:
    """Return the step numbers of the checkpoints that were never finished, newest first."""
    return [step for step in _steps(folder, "step-*/", "step-") if not (folder / f"step-{step}" / MARKER).exists()]


def _steps(folder: Path, pattern: str, prefix: str) -> list[int]:
    paths = (path if path.is_dir() else path.parent for path in folder.glob(pattern))
    names = [path.name.removeprefix(prefix) for path in paths]
    # step-007 and a step in Arabic digits are folders of others
    return sorted((int(name) for name in names if STEP.fullmatch(name)), reverse=True)


def all_damaged(folder: Path, damaged: list[int]) -> str:
    """Return why a run neither resumes nor starts over: the damaged checkpoints might still be repaired."""
    names = ", ".join(f"{DAMAGED_PREFIX}step-{step}" for step in damaged)
    return f"every checkpoint in {folder} is damaged ({names}): remove them to start from step 1, or choose another --out"


def format_refusal(target: Path) -> str:
    """Return why a checkpoint that an older version wrote cannot be read; empty for any other."""
    marker = read_marker(target)
    if marker is None or DESCRIPTION in marker.files:
        return ""
    return (
        f"{target} is from a version of meshwise that described checkpoints in a pickle, which is not read any more: "
        "resume it with that version, or choose another --out"
    )


def resume_refusal(folder: Path, before: Trained, now: Settings) -> str:
    """Return why a run cannot resume from a checkpoint in this folder; empty if it can."""
    return _other_weights(folder, before, now) or _other_samples(folder, before, now)


def _other_weights(folder: Path, before: Trained, now: Settings) -> str:
    """Return why the weights of a checkpoint are not those of a run; empty if they are."""
    trained = described(now.model, now.finetune)
    if not before.finetune:  # not recorded; the shapes of the weights are compared when they are read
        return ""
    if before.finetune != trained:
        return f"{folder} holds a run of {before.finetune}, now {trained}: repeat its settings to resume, or choose another --out"
    if now.finetune.freezes and before.base != now.base:
        old, new = ("other weights" if before.base else "random weights"), (now.weights or "random ones")
        return f"{folder} holds {now.finetune.method} of {old}, not of {new}: repeat its --weights to resume, or choose another --out"
    return ""


def _other_samples(folder: Path, before: Trained, now: Settings) -> str:
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


def resume_changes(before: Trained, now: Settings, step: int) -> list[str]:
    """Describe how a run that resumes after `step` differs from before, one line per change."""
    if step >= now.steps:
        return []
    whole = bool(now.weights) and not now.finetune.freezes  # frozen weights are not in a checkpoint
    lines = [f"--weights {now.weights} is not used: the run resumes from its checkpoint"] if whole else []
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
