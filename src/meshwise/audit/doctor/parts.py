"""Compare a run of `meshwise run` by part of the step: the planner's prediction and the profiler's trace."""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from meshwise.audit.doctor import kinds, timeline
from meshwise.audit.doctor.split import Split, split
from meshwise.catalogue import files
from meshwise.errors import UserError, quoted
from meshwise.models.model import build
from meshwise.plan.train import own_run
from meshwise.plan.train.choice import Choice
from meshwise.units import GIB
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.settings import Layout, Settings

MAX_LOG_BYTES = 1 << 28  # bytes of a table of runs, at most
PLANNER_PARTS = {"matmul": ("matmul", "recompute"), "attention": ("attention",), "communication": ("tp", "cp", "ep", "p2p", "dp"),
    "optimizer": ("optimizer",), "elementwise": ("elementwise",), "idle": ("launch", "bubble", "fixed", "offload")}  # fmt: skip
"""The planner's parts that make up each part of a trace, which cannot distinguish collectives, or recomputed from first products."""
TRACED_PARTS = {"communication": kinds.COMMUNICATION, "elementwise": ("elementwise", "loss"), "idle": ("copy", *kinds.IDLE)}  # fmt: skip
"""The doctor's parts that make up one of these, where it is not the part of that name."""


@dataclass(frozen=True)
class Row:
    """Seconds of a step in one part; None if unknown."""

    part: str
    predicted: float | None
    measured: float | None


@dataclass(frozen=True)
class PartComparison:
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(folder: Path) -> PartComparison:
    """Compare the run in a folder: config.json, measurement.jsonl, and trace-rank0.json if it was profiled."""
    if not folder.is_dir():
        raise UserError(f"--predicted {quoted(str(folder), 200)} is not a folder; give one that 'meshwise run --out' wrote")
    settings, measured = _settings(folder / "config.json"), _measured(folder / "measurement.jsonl")
    choice, notes = _predicted(settings)
    traced = _traced(folder, settings, notes)
    rows = [Row(part, sum(choice.time[name] for name in names) if choice else None, traced.get(part))
        for part, names in PLANNER_PARTS.items()]  # fmt: skip
    rows.append(Row("step", choice.step if choice else None, measured["sec_per_iter"]))
    notes.append(_rank_balance(folder / "ranks.json"))
    if choice:
        notes.append(f"memory: {choice.peak / GIB:.2f} GiB predicted, {measured['mem_gb']:.2f} GiB measured")
        notes.append(_largest_difference(rows))
    return PartComparison(f"{settings.name} on {settings.layout.devices} x {settings.facts.get('gpu', settings.device)}", tuple(rows),
        tuple(note for note in notes if note))  # fmt: skip


def predicted_of(path: Path) -> tuple[Choice | None, list[str]]:
    """Return the prediction of the run that a config.json of our trainer describes, with notes; None where it has none."""
    return _predicted(_settings(path))


def _settings(path: Path) -> Settings:
    """Read the settings of a run. Settings of other versions that this one does not know are ignored: no prediction uses them."""
    try:
        values = cast(dict[str, Any], json.loads(files.text_of(path)))
        known: dict[str, Any] = {f.name: values[f.name] for f in fields(Settings) if f.name in values}
        layout = {f.name: values["layout"][f.name] for f in fields(Layout) if f.name in values["layout"]}
        known |= {"layout": Layout(**layout), "finetune": FinetuneMethod.of(values.get("finetune", {}))}
        return Settings(**known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: not the config.json of a run ({error})") from None


def _measured(path: Path) -> dict[str, float]:
    """Read the last row, which belongs to the last run into this folder."""
    try:
        last = files.text_of(path, MAX_LOG_BYTES).splitlines()[-1]
        values = cast(dict[str, object], json.loads(last))
        figures = {name: float(str(values[name])) for name in ("sec_per_iter", "mem_gb")}
        if not all(0 < value < math.inf for value in figures.values()):
            raise ValueError("time and memory must be finite and above zero")
        return figures
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: its last line is not the row of a run ({type(error).__name__})") from None


def _predicted(settings: Settings) -> tuple[Choice | None, list[str]]:
    on = f"1x{settings.layout.devices}x{settings.facts.get('gpu', 'cpu')}"
    try:
        model = build(settings.model, settings.name, "")
        choice = own_run.predict(settings, model, on)
    except UserError as error:
        return None, [f"no prediction: {error}"]
    cpu = settings.device == "cpu" and "gpu" not in settings.facts
    return choice, ["the prediction is for a generic 16-core CPU, not for this machine"] if cpu else []


def _traced(folder: Path, settings: Settings, notes: list[str]) -> dict[str, float]:
    path = folder / "trace-rank0.json"
    if not path.is_file():
        notes.append("the folder has no trace-rank0.json: run with --profile to measure the parts")
        return {}
    traced = timeline.read(path)
    found = split(traced)
    marked = found.steps.found_by != "whole trace"
    steps = found.steps.count if marked else max(1, settings.profile_steps)
    notes.append(f"trace of {steps} step{'s' * (steps > 1)} on the {'GPU' if traced.on_gpu else 'CPU'} of rank 0; "
        "communication counts only while nothing computes")  # fmt: skip
    return {part: seconds / steps for part, seconds in traced_parts(found).items()}


def traced_parts(found: Split) -> dict[str, float]:
    """Return seconds by part over the steps of a trace, which sum to their length."""
    return {part: sum(float(found.parts[name].sum()) for name in TRACED_PARTS.get(part, (part,)) if name in found.parts)
        for part in PLANNER_PARTS}  # fmt: skip


def _rank_balance(path: Path) -> str:
    """Return the spread of time and memory over the ranks, or '' if the run did not keep them."""
    try:
        ranks = cast(list[dict[str, float]], json.loads(files.text_of(path)))
        seconds = [float(rank["seconds"]) for rank in ranks if rank["seconds"]]
        memory = [float(rank["memory"]) / GIB for rank in ranks]
    except (UserError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""
    if len(memory) < 2:
        return ""
    slowest = f", the slowest {max(seconds) * len(seconds) / sum(seconds):.2f} times the mean" if seconds and sum(seconds) else ""
    return f"{len(memory)} ranks{slowest}; memory {min(memory):.2f} to {max(memory):.2f} GiB"


def _largest_difference(rows: list[Row]) -> str:
    """Name the part in which prediction and measurement differ most."""
    pairs = [
        (row.part, row.measured - row.predicted) for row in rows[:-1] if row.measured is not None and row.predicted is not None
    ]
    if not pairs:
        return ""
    part, difference = max(pairs, key=lambda pair: abs(pair[1]))
    return f"the largest difference is in {part}: {abs(difference) * 1e3:.3g} ms {'more' if difference > 0 else 'less'} than predicted"
