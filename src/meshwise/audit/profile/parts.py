"""A run of `meshwise run` part by part: what the planner predicted, and what the profiler's trace of it shows."""

import json
import math
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from meshwise.audit.profile import trace
from meshwise.errors import UserError, quoted
from meshwise.models.model import build
from meshwise.plan import of_run
from meshwise.plan.train.choice import Choice
from meshwise.units import GIB
from meshwise.workers.trainer.settings import Layout, Settings

OF_THE_PLANNER = {
    "matmul": ("matmul", "recompute"),
    "attention": ("attention",),
    "communication": ("tp", "cp", "ep", "p2p", "dp"),
    "optimizer": ("optimizer",),
    "elementwise": ("elementwise",),
    "idle": ("launch", "bubble", "fixed", "offload"),
}
"""A trace cannot tell one collective from another, or a recomputed product from a first one: the planner's parts by what it can."""


@dataclass(frozen=True)
class Row:
    """Seconds of a step in one part; None where there is nothing to say it from."""

    part: str
    predicted: float | None
    measured: float | None


@dataclass(frozen=True)
class Parts:
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(folder: Path) -> Parts:
    """The folder of a run: config.json and measurement.jsonl, and trace-rank0.json where it was profiled."""
    if not folder.is_dir():
        raise UserError(f"--predicted {quoted(str(folder), 200)}: there is no such folder; give what 'meshwise run --out' wrote")
    settings, seen = _settings(folder / "config.json"), _measured(folder / "measurement.jsonl")
    choice, notes = _predicted(settings)
    traced = _traced(folder, settings, notes)
    rows = [
        Row(part, sum(choice.time[name] for name in names) if choice else None, traced.get(part))
        for part, names in OF_THE_PLANNER.items()
    ]
    rows.append(Row("step", choice.step if choice else None, seen["sec_per_iter"]))
    notes.append(_balance(folder / "ranks.json"))
    if choice:
        notes.append(f"memory: {choice.peak / GIB:.2f} GiB predicted, {seen['mem_gb']:.2f} GiB measured")
        notes.append(_largest(rows))
    return Parts(
        f"{settings.name} on {settings.layout.devices} x {settings.facts.get('gpu', settings.device)}",
        tuple(rows),
        tuple(note for note in notes if note),
    )


def _settings(path: Path) -> Settings:
    """The settings of a run, also of a version that had others: what this one does not know says nothing of the prediction."""
    try:
        values = cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
        known: dict[str, Any] = {f.name: values[f.name] for f in fields(Settings) if f.name in values}
        layout = {f.name: values["layout"][f.name] for f in fields(Layout) if f.name in values["layout"]}
        known["layout"] = Layout(**layout)
        return Settings(**known)
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: not the config.json of a run ({error})") from None


def _measured(path: Path) -> dict[str, float]:
    """The last row: that of the last run into this folder."""
    try:
        last = path.read_text(encoding="utf-8").splitlines()[-1]
        values = cast(dict[str, object], json.loads(last))
        found = {name: float(str(values[name])) for name in ("sec_per_iter", "mem_gb")}
        if not all(0 < value < math.inf for value in found.values()):
            raise ValueError("a time or a memory that nothing can have")
        return found
    except OSError as error:
        raise UserError(f"cannot read {quoted(str(path), 200)}: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{path}: its last line is not the row of a run ({type(error).__name__})") from None


def _predicted(settings: Settings) -> tuple[Choice | None, list[str]]:
    on = f"1x{settings.layout.devices}x{settings.facts.get('gpu', 'cpu')}"
    try:
        model = build(settings.model, settings.name, "")
        choice = of_run.predicted(settings, model, on)
    except UserError as error:
        return None, [f"no prediction: {error}"]
    cpu = settings.device == "cpu" and "gpu" not in settings.facts
    return choice, ["the prediction is for a generic 16-core CPU, not for this machine"] if cpu else []


def _traced(folder: Path, settings: Settings, notes: list[str]) -> dict[str, float]:
    path = folder / "trace-rank0.json"
    if not path.is_file():
        notes.append("no trace-rank0.json here: run with --profile for the parts")
        return {}
    some = trace.spans(path)
    steps = _steps(folder, some)
    notes.append(
        f"trace of {steps} step{'s' * (steps > 1)} on the {'GPU' if some and some[0].gpu else 'CPU'} of rank 0; "
        "communication is what nothing computes beside"
    )
    return {part: seconds / steps for part, seconds in trace.parts(some).items()}


def _balance(path: Path) -> str:
    """How far apart the ranks were, where the run kept what each did."""
    try:
        ranks = cast(list[dict[str, float]], json.loads(path.read_text(encoding="utf-8")))
        seconds = [float(rank["seconds"]) for rank in ranks if rank["seconds"]]
        memory = [float(rank["memory"]) / GIB for rank in ranks]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if len(memory) < 2:
        return ""
    apart = f", the slowest {max(seconds) * len(seconds) / sum(seconds):.2f} times the mean" if seconds and sum(seconds) else ""
    return f"{len(memory)} ranks{apart}; memory {min(memory):.2f} to {max(memory):.2f} GiB"


def _steps(folder: Path, some: list[trace.Span]) -> int:
    """How many steps a trace holds: as the run's settings say; else as often as the optimizer's update came."""
    try:
        told = cast(dict[str, object], json.loads((folder / "config.json").read_text(encoding="utf-8"))).get("profile_steps")
    except (OSError, ValueError):
        told = None
    if isinstance(told, int) and told > 0:
        return told
    return max(1, sum(bool(re.search(r"fused_adam", span.name)) for span in some))


def _largest(rows: list[Row]) -> str:
    """The part in which prediction and measurement are furthest apart."""
    pairs = [
        (row.part, row.measured - row.predicted) for row in rows[:-1] if row.measured is not None and row.predicted is not None
    ]
    if not pairs:
        return ""
    part, off = max(pairs, key=lambda pair: abs(pair[1]))
    return f"the largest difference is in {part}: {abs(off) * 1e3:.3g} ms {'more' if off > 0 else 'less'} than predicted"
