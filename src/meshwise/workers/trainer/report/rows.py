"""A run as rows: its steps, its ranks, and its line in a table of measurements. No torch here: the launcher uses them too."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

from meshwise.workers.trainer.settings import Settings, Sizes

WARM_UP = 2
"""Steps left out of the measurement: the first ones allocate, compile and connect."""
UNSHARED = ("data", "forward", "backward", "passes")
"""Phases that come before the first collective that all ranks share, the sum of the loss."""


PREDICTED = ("predicted_sec_per_iter", "predicted_mem_gb")
"""What the planner said before the run, beside what was measured: the columns, and the names among the facts of Settings."""


@dataclass(frozen=True)
class Step:
    """One step as all ranks saw it. Seconds and bytes."""

    step: int
    loss: float
    grad_norm: float
    seconds: float
    memory: float
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Of the rank that writes it, by part, where they were timed."""
    cpu: dict[str, float] = field(default_factory=dict[str, float])
    """The same in seconds of the processor, which stand still while a rank waits; nothing on a GPU."""
    ended: float = field(default_factory=time)
    """When, in seconds since 1970."""


@dataclass(frozen=True)
class Rank:
    """What one rank did by itself in the median step."""

    rank: int
    host: str
    at: dict[str, int]
    """Its place on each axis of the mesh."""
    tokens: int
    """That it reads in a step; ranks that cut layers or sequences of the same samples read the same ones."""
    seconds: float | None
    """Before the first collective that all ranks share; nothing where its phases were not timed."""
    cpu_seconds: float | None
    """Of these, what the processor worked; nothing on a GPU."""
    memory: float
    """The most bytes it held at once."""
    reserved: float | None = None
    """The most bytes its allocator took from the GPU."""


def counted(steps: Sequence[Step]) -> list[Step]:
    """The steps that are measured: those after the warm-up, or all where there are no others."""
    return list(steps[WARM_UP:] or steps)


def median(steps: Sequence[Step]) -> float:
    """Seconds of a step: the median of the counted ones."""
    return statistics.median(one.seconds for one in counted(steps))


def usual(steps: Sequence[Step]) -> Step:
    """The counted step nearest to the median (the shorter of two): a step that was, so that its phases add up to its time."""
    return min(counted(steps), key=lambda one: (abs(one.seconds - median(steps)), one.seconds))


def middle(values: Sequence[float]) -> float | None:
    """The median, or nothing of nothing."""
    return statistics.median(values) if values else None


def rates(settings: Settings, seconds: float) -> tuple[float, float, float]:
    """Tokens a second in all, FLOP/s of one device, and its share of the peak (NaN where no peak is known)."""
    tokens, devices = settings.batch * settings.seq / seconds, settings.layout.devices
    flops = tokens * float(settings.facts.get("flops_per_token", math.nan)) / devices
    return tokens, flops, flops / float(settings.facts.get("peak", math.nan))


def described(settings: Settings, per_node: int) -> dict[str, object]:
    """What was run, in the columns of meshwise's tables of measurements."""
    a, m, now = settings.layout, Sizes.of(settings.model), datetime.now(UTC)
    return {
        "source": "meshwise run",
        "row_id": now.strftime("run-%Y%m%dT%H%M%S"),
        "model": settings.name,
        "params_b": float(settings.facts["params"]) / 1e9 if "params" in settings.facts else "",
        "n_layers": m.layers,
        "d_model": m.hidden,
        "d_ff": m.ffn,
        "n_heads": m.heads,
        "n_kv_heads": m.kv_heads,
        "vocab": m.vocab,
        "seq_len": settings.seq,
        "gpu": settings.facts.get("gpu", settings.device),
        "n_gpus": a.devices,
        "gpus_per_node": per_node,
        "framework": "meshwise",
        "precision": settings.precision,
        "dp": a.dp,
        "tp": a.tp,
        "pp": a.pp,
        "cp": a.cp,
        "zero_stage": a.zero if a.dp_shard > 1 else 0,
        "sharding": "hsdp" if a.dp_replicate > 1 and a.dp_shard > 1 else "fsdp" if a.dp_shard > 1 else "ddp",
        "micro_batch": a.mbs,
        "global_batch_seqs": settings.batch,
        "recompute": a.recompute,
        "seq_parallel": "yes" if a.tp > 1 else "no",
        "interleave": a.chunks,
        "compiled": "yes" if settings.compile else "no",
        "schedule": a.schedule,
        "date": now.date().isoformat(),
        **{name: settings.facts[name] for name in PREDICTED if name in settings.facts},
    }


def measurement(settings: Settings, steps: Sequence[Step], per_node: int, memory: float | None = None) -> dict[str, object]:
    """The row of a run: its median step, and the most bytes that any rank held, or the first. Blank where nothing was measured."""
    some, seconds = counted(steps), median(steps)
    tokens, flops, mfu = rates(settings, seconds)
    return described(settings, per_node) | {
        "sec_per_iter": seconds,
        "tokens_per_sec_per_gpu": tokens / settings.layout.devices,
        "mfu": 100 * mfu if math.isfinite(mfu) else "",
        "mem_gb": (max(one.memory for one in steps) if memory is None else memory) / 2**30,
        "mem_unit": "GiB",
        "outcome": "ok",
        "first_step": steps[0].step,
        "loss_first": _number(steps[0].loss),
        "loss_last": _number(steps[-1].loss),
        "note": f"{len(some)} steps after {len(steps) - len(some)}, schedule {settings.layout.schedule}, "
        f"loss {steps[0].loss:.4f} to {steps[-1].loss:.4f}, {flops / 1e12:.4g} TFLOP/s a device",
    }


def failure(settings: Settings, per_node: int, outcome: str, note: str) -> dict[str, object]:
    """The row of a run that gave no measurement: `outcome` is oom or fail."""
    blank = dict.fromkeys(("sec_per_iter", "tokens_per_sec_per_gpu", "mfu", "mem_gb"), "")
    return described(settings, per_node) | blank | {"mem_unit": "GiB", "outcome": outcome, "note": note}


def add_row(path: Path, row: dict[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; a last line that was cut off while it was written is none."""
    found: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _number(value: float) -> float | None:
    """JSON has no word for a number that is none."""
    return value if math.isfinite(value) else None


def step_row(one: Step) -> dict[str, Any]:
    return asdict(one) | {name: _number(getattr(one, name)) for name in ("loss", "grad_norm")}


def read_steps(path: Path) -> list[Step]:
    blank: dict[str, Any] = {"loss": math.nan, "grad_norm": math.nan}
    return [Step(**(row | {name: blank[name] for name in blank if row[name] is None})) for row in read_rows(path)]


def read_ranks(path: Path) -> list[Rank]:
    return [Rank(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []


def write_ranks(path: Path, ranks: Sequence[Rank]) -> None:
    path.write_text(json.dumps([asdict(one) for one in ranks], indent=2) + "\n", encoding="utf-8")
