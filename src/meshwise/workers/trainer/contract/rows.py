"""A run as rows: its steps, its ranks, and its row in a table of measurements. No torch: the launcher reads them too."""

import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any, cast

from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.contract.settings import Settings

WARM_UP_STEPS = 2  # steps excluded from the measurement: the first ones allocate, compile and connect
UNSHARED_PHASES = ("data", "forward", "backward", "passes")
"""Phases before the first collective that all ranks share, the all-reduce of the loss."""
KERNELS = "kernels.json"  # file of the kernels of a profiled step
EVALUATIONS = "evaluations.jsonl"  # file of a run's validation losses
PREDICTED_COLUMNS = ("predicted_sec_per_iter", "predicted_mem_gb")
"""Columns of the planner's prediction, and their names in the facts of Settings."""


@dataclass(frozen=True)
class Step:
    """One step, in seconds and bytes; loss and gradient norm are over all ranks."""

    step: int
    loss: float
    grad_norm: float
    seconds: float
    memory: float
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by phase on the rank that writes the step; empty if they were not timed."""
    cpu: dict[str, float] = field(default_factory=dict[str, float])
    """CPU seconds by phase, which do not grow while a rank waits; empty on a GPU."""
    ended: float = field(default_factory=time)  # when the step ended, in seconds since 1970
    imbalance: float = 0.0  # load of the busiest expert over the mean, in the worst layer; 0 if the model has no experts


@dataclass(frozen=True)
class Kernels:
    """The kernels of one step on a GPU."""

    seconds: float  # from the first kernel's start to the last one's end
    parts: dict[str, float]  # seconds by part; with `idle` they add up to the step, but for communication that other kernels hide


@dataclass(frozen=True)
class Rank:
    """The work of one rank in the median step."""

    rank: int
    host: str
    at: dict[str, int]  # its coordinate on each axis of the mesh
    tokens: int  # tokens it reads per step; ranks that split the layers of the same samples read the same ones
    seconds: float | None  # seconds before the first collective that all ranks share; None if its phases were not timed
    cpu_seconds: float | None  # CPU seconds among these; None on a GPU
    memory: float  # the most bytes it held at once
    reserved: float | None = None  # the most bytes its allocator reserved on the GPU


def measured_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps after the warm-up, or all if there are no others."""
    return list(steps[WARM_UP_STEPS:] or steps)


def median_seconds(steps: Sequence[Step]) -> float:
    """Return the median time of the measured steps."""
    return statistics.median(step.seconds for step in measured_steps(steps))


def typical_step(steps: Sequence[Step]) -> Step:
    """Return the measured step nearest to the median (the shorter of two): an actual step, so that its phases add up to its time."""
    return min(measured_steps(steps), key=lambda step: (abs(step.seconds - median_seconds(steps)), step.seconds))


def median_or_none(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def rates(settings: Settings, seconds: float) -> tuple[float, float, float]:
    """Return tokens per second of the run, FLOP/s per device, and MFU; the latter two are NaN if unknown."""
    tokens, devices = settings.batch * settings.seq / seconds, settings.layout.devices
    flops = tokens * float(settings.facts.get("flops_per_token", math.nan)) / devices
    return tokens, flops, flops / float(settings.facts.get("peak", math.nan))


def run_columns(settings: Settings, per_node: int) -> dict[str, object]:
    """Return the columns of a measurement table that describe the run."""
    a, m, now = settings.layout, sizes_of(settings.model), datetime.now(UTC)
    return {
        "source": "meshwise run", "row_id": now.strftime("run-%Y%m%dT%H%M%S"), "model": settings.name,
        "params_b": float(settings.facts["params"]) / 1e9 if "params" in settings.facts else "", "n_layers": m.layers,
        "d_model": m.hidden, "d_ff": m.ffn, "n_heads": m.heads, "n_kv_heads": m.kv_heads, "vocab": m.vocab,
        "seq_len": settings.seq, "gpu": settings.facts.get("gpu", settings.device), "n_gpus": a.devices,
        "gpus_per_node": per_node, "framework": "meshwise", "precision": settings.precision,
        **({"optimizer": f"adamw-{settings.moments}"} if settings.moments != "fp32" else {}), "dp": a.dp, "tp": a.tp,
        "pp": a.pp, "cp": a.cp, **({"ep": a.ep} if m.experts else {}), "zero_stage": a.zero if a.dp_shard > 1 else 0,
        "sharding": "hsdp" if a.dp_replicate > 1 and a.dp_shard > 1 else "fsdp" if a.dp_shard > 1 else "ddp",
        "micro_batch": a.mbs, "global_batch_seqs": settings.batch, "recompute": a.recompute,
        "seq_parallel": "yes" if a.tp > 1 else "no", "interleave": a.chunks, "compiled": "yes" if settings.compile else "no",
        "schedule": a.schedule, **({"tune": settings.facts["finetune"]} if "finetune" in settings.facts else {}),
        "date": now.date().isoformat(), **{name: settings.facts[name] for name in PREDICTED_COLUMNS if name in settings.facts},
    }  # fmt: skip


def measurement(settings: Settings, steps: Sequence[Step], per_node: int, memory: float | None = None) -> dict[str, object]:
    """Return the row of a run: its median step and its peak memory, `memory` or else that of the given steps. Blank if not measured."""
    measured, seconds = measured_steps(steps), median_seconds(steps)
    tokens, flops, mfu = rates(settings, seconds)
    return run_columns(settings, per_node) | {
        "sec_per_iter": seconds, "tokens_per_sec_per_gpu": tokens / settings.layout.devices,
        "mfu": 100 * mfu if math.isfinite(mfu) else "",
        "mem_gb": (max(step.memory for step in steps) if memory is None else memory) / 2**30, "mem_unit": "GiB",
        "outcome": "ok", "first_step": steps[0].step, "loss_first": _finite(steps[0].loss),
        "loss_last": _finite(steps[-1].loss),
        "note": f"{len(measured)} steps after {len(steps) - len(measured)}, schedule {settings.layout.schedule}, "
        f"loss {steps[0].loss:.4f} to {steps[-1].loss:.4f}, {flops / 1e12:.4g} TFLOP/s a device",
    }  # fmt: skip


def failure(settings: Settings, per_node: int, outcome: str, note: str) -> dict[str, object]:
    """Return the row of a run without a measurement: `outcome` is oom or fail."""
    blank = dict.fromkeys(("sec_per_iter", "tokens_per_sec_per_gpu", "mfu", "mem_gb"), "")
    return run_columns(settings, per_node) | blank | {"mem_unit": "GiB", "outcome": outcome, "note": note}


def add_row(path: Path, row: dict[str, object]) -> None:
    """Append a row. A line that a full disk or a killed run cut short stays a line of its own."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        cut_short = bool(end) and file.read(1) != b"\n"
        file.write(b"\n" * cut_short + json.dumps(row).encode() + b"\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a .jsonl file; lines that were cut short are ignored."""
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(cast("dict[str, Any]", row))
    return rows


def _finite(value: float) -> float | None:
    """Return the value, or None for NaN and infinity, which JSON cannot express."""
    return value if math.isfinite(value) else None


def step_row(step: Step) -> dict[str, Any]:
    return asdict(step) | {name: _finite(getattr(step, name)) for name in ("loss", "grad_norm")}


def read_steps(path: Path) -> list[Step]:
    blank: dict[str, Any] = {"loss": math.nan, "grad_norm": math.nan}
    return [Step(**(row | {name: blank[name] for name in blank if row[name] is None})) for row in read_rows(path)]


def read_ranks(path: Path) -> list[Rank]:
    return [Rank(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []


def read_kernels(path: Path) -> Kernels | None:
    return Kernels(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def write_ranks(path: Path, ranks: Sequence[Rank]) -> None:
    path.write_text(json.dumps([asdict(rank) for rank in ranks], indent=2) + "\n", encoding="utf-8")
