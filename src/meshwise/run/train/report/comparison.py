"""The report of a run: measured beside predicted, by part, over ranks and over earlier runs. Rows in, sections out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.cost.axes import layout_name as name_of
from meshwise.cost.parts import TRAIN_WORDS
from meshwise.run.train.report.advice import Forecast, advice
from meshwise.run.train.report.sections import Section, Table
from meshwise.units import GIB
from meshwise.workers.trainer.contract.rows import (
    EVALUATIONS,
    KERNELS,
    Rank,
    Step,
    measured_steps,
    rates,
    read_kernels,
    read_ranks,
    read_rows,
    read_steps,
    typical_step,
)
from meshwise.workers.trainer.contract.settings import Settings

PASSES = ("forward", "backward", "passes")
PHASES = {
    "forward": "forward",
    "backward": "backward",
    "passes": "pipelined passes",
    "data": "reading data",
    "reduce": "gradient norm and clipping",
    "optimizer": "optimizer",
}
ONCE = ("optimizer", "offload", "fixed")
"""Parts of a prediction outside of the forward and backward passes."""
EVEN = 1.05
"""Ranks count as evenly loaded up to this ratio of largest to mean."""


@dataclass(frozen=True)
class Measured:
    """The measurements that a run left in its folder."""

    settings: Settings
    steps: list[Step]
    ranks: list[Rank]
    row: dict[str, Any]
    earlier: list[dict[str, Any]]
    """Rows of the runs before it in the same measurement.jsonl."""
    first_step: float | None = None
    """Seconds from the start to the end of the first step."""

    @property
    def since_restart(self) -> list[Step]:
        """The steps that the row summarizes: all since the workers last started."""
        return [step for step in self.steps if step.step >= int(self.row.get("first_step", 0))] or self.steps

    @property
    def tokens(self) -> int:
        return self.settings.batch * self.settings.seq

    @property
    def seconds(self) -> float:
        return float(self.row["sec_per_iter"])


def read(settings: Settings, folder: Path, started: float, before: int) -> Measured | None:
    """Return the measurements of the run that was started at `started`; None if it measured no step. `before`: rows of earlier runs."""
    rows = read_rows(folder / "measurement.jsonl")
    if len(rows) <= before:
        return None
    steps = [step for step in read_steps(folder / "steps.jsonl") if step.ended >= started]
    ranks = read_ranks(folder / "ranks.json")
    return Measured(settings, steps, ranks, rows[-1], rows[:-1], steps[0].ended - started if steps else None)


def sections(measured: Measured, forecast: Forecast | None) -> list[Section]:
    """Return the report that is printed at the end of a run."""
    return [
        headline(measured, forecast),
        *parts(measured, forecast),
        *by_kernel(measured, forecast),
        *([memory(measured, forecast)] if forecast else []),
        *validation(measured),
        *experts(measured),
        balance(measured),
        scaling(measured),
        *([next_to_try(measured, forecast)] if forecast else []),
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.4f} s" if seconds < 10 else f"{seconds:.2f} s"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def headline(measured: Measured, forecast: Forecast | None) -> Section:
    """Return time, throughput and memory of a step."""
    tokens, flops, mfu = rates(measured.settings, measured.seconds)
    devices = measured.settings.layout.devices
    measured_cells = [_time(measured.seconds), f"{tokens:,.0f}", f"{tokens / devices:,.0f}", f"{flops / 1e12:.4g}"]
    measured_cells += [f"{mfu:.1%}" if math.isfinite(mfu) else "", f"{float(measured.row['mem_gb']):.2f} GiB"]
    names = ["step", "tokens/s", "tokens/s per device", "TFLOP/s per device", "MFU", "memory, fullest device"]
    predicted_cells = [""] * len(names)
    if forecast is not None:
        rate = measured.tokens / forecast.seconds
        peak = forecast.here.mfu / forecast.scale if math.isfinite(mfu) else math.nan
        predicted_cells = [_time(forecast.seconds), f"{rate:,.0f}", f"{rate / devices:,.0f}"]
        predicted_cells += [
            f"{forecast.here.tflops['exact'] / forecast.scale:.4g}",
            f"{peak:.1%}" if math.isfinite(peak) else "",
            _gib(forecast.here.peak),
        ]
    rows = [row for row in zip(names, predicted_cells, measured_cells, strict=True) if row[2]]
    table = (
        Table(("", "predicted", "measured"), tuple(rows))
        if forecast
        else Table(("", "measured"), tuple((r[0], r[2]) for r in rows))
    )
    return Section("predicted and measured" if forecast else "measured", table, tuple(_about(measured, forecast)))


def _about(measured: Measured, forecast: Forecast | None) -> list[str]:
    """Return lines that explain how the numbers were measured and predicted."""
    timed, steps = measured_steps(measured.since_restart), measured.steps
    warm = len(measured.since_restart) - len(timed)
    since = " since the last restart" if len(measured.since_restart) < len(steps) else ""
    lines = [
        f"median of {len(timed)} step{'s' * (len(timed) != 1)} after {warm} of warm-up{since}; "
        f"loss {steps[0].loss:.4f} to {steps[-1].loss:.4f}"
    ]
    lines += [f"start to the end of the first step: {measured.first_step:.1f} s"] if measured.first_step is not None else []
    if forecast is None:
        lines.append("no prediction: this GPU is not in the catalogue; name the machine with --on, such as 1x8xh200")
    elif measured.settings.device == "cpu" and forecast.kind != "cpu":
        lines.append(f"the prediction is for the {forecast.kind.upper()} that --on or the plan names, but this ran on a CPU")
    elif forecast.generic and forecast.fitted:
        runs = f"{forecast.fitted} earlier run{'s' if forecast.fitted > 1 else ''}"
        lines.append(
            f"predicted times are for a generic 16-core CPU, times {forecast.scale:.3g}, the median of {runs} in this folder"
        )
    elif forecast.generic:
        lines.append("the prediction is for a generic 16-core CPU, not for this machine: 'meshwise probe' measures it")
    return lines


def parts(measured: Measured, forecast: Forecast | None) -> list[Section]:
    """Return seconds by part: predicted parts, and measured phases beside them. Each column adds up to its step."""
    step = typical_step(measured.since_restart)
    timed, whole = step.phases, step.seconds
    plan = {name: forecast.scale * value for name, value in forecast.here.time.items()} if forecast else {}
    inside = {name: value for name, value in plan.items() if name not in ONCE and value > 0}
    rows: list[tuple[str, float | None, float | None]] = []
    passes = sum(timed[name] for name in PASSES if name in timed) if any(name in timed for name in PASSES) else None
    rows.append(("forward and backward", sum(inside.values()) if forecast else None, passes))
    rows += [(f"  {PHASES[name]}", None, timed[name]) for name in PASSES if name in timed and len(timed.keys() & set(PASSES)) > 1]
    rows += [(f"  {TRAIN_WORDS[name]}", value, None) for name, value in sorted(inside.items(), key=lambda pair: -pair[1])]
    rows.append((PHASES["optimizer"], plan.get("optimizer"), timed.get("optimizer")))
    rows += [(TRAIN_WORDS[name], plan[name], None) for name in ("offload", "fixed") if plan.get(name, 0.0) > 0]
    rows += [(PHASES.get(name, name), None, value) for name, value in timed.items() if name not in (*PASSES, "optimizer")]
    rows += [("everything else", None, whole - sum(timed.values()))] if timed else []
    rows.append(("step", forecast.seconds if forecast else None, whole))
    kept = [row for row in rows if row[1] is not None or row[2] is not None]
    if not timed and not forecast:
        return []
    cells = [
        (name, *(_pair(plan_time, forecast.seconds) if forecast else ()), *_pair(time, whole)) for name, plan_time, time in kept
    ]
    table = Table(("", *(("predicted", "") if forecast else ()), "measured", ""), tuple(cells))
    lines = () if timed else ("no phases were timed: the step runs as one CUDA graph",)
    return [Section(f"time by part, rank 0, step {step.step + 1}, the nearest to the median", table, lines)]


KERNEL_PARTS: dict[str, tuple[str, ...]] = {
    "products": ("matmul", "recompute"),
    "attention": ("attention",),
    "other": ("elementwise",),
    "optimizer": ("optimizer",),
    "idle": ("launch", "fixed"),
}
"""Parts of a profiled step, and the predicted parts that they correspond to; all other predicted parts are communication."""
KERNEL_WORDS = {"products": "matrix products", "other": "norms and activations"}


def by_kernel(measured: Measured, forecast: Forecast | None) -> list[Section]:
    """Return seconds by part of the step whose kernels were profiled, beside the predicted ones; nothing without a GPU."""
    found = read_kernels(Path(measured.settings.out) / KERNELS)
    if found is None:
        return []
    plan = {name: forecast.scale * value for name, value in forecast.here.time.items() if value > 0} if forecast else {}
    known = {name for names in KERNEL_PARTS.values() for name in names}
    matching = {part: sum(plan.get(name, 0.0) for name in names) for part, names in KERNEL_PARTS.items()}
    matching["communication, exposed"] = sum(value for name, value in plan.items() if name not in known)
    whole = forecast.seconds if forecast else 1.0
    rows = sorted(found.parts.items(), key=lambda pair: (pair[0] == "idle", -pair[1]))
    cells = [
        (KERNEL_WORDS.get(name, name), *_pair(matching.get(name) or None, whole), *_pair(seconds, found.seconds))
        for name, seconds in rows
    ]
    cells.append(("step", *_pair(forecast.seconds if forecast else None, whole), *_pair(found.seconds, found.seconds)))
    lines = ["the prediction counts the loss with norms and activations"] if forecast and "loss" in found.parts else []
    lines += ["hidden communication overlaps with other parts"] if "communication, hidden" in found.parts else []
    table = Table(("", "predicted", "", "measured", ""), tuple(cells)).without_empty_columns()
    return [Section("time by kernel, rank 0, last step", table, tuple(lines))]


def _pair(value: float | None, whole: float) -> tuple[str, str]:
    return ("", "") if value is None else (f"{value:.5f} s", f"{value / whole:.1%}")


def memory(measured: Measured, forecast: Forecast) -> Section:
    """Return predicted bytes by kind, and the measured peak."""
    rows = [(kind, _gib(size), "") for kind, size in forecast.here.memory.items() if size > 0]
    rows.append(("peak", _gib(forecast.here.peak), f"{float(measured.row['mem_gb']):.2f} GiB"))
    kind_measured = (
        "allocated by PyTorch"
        if measured.settings.device == "cuda"
        else "resident memory of the process, including PyTorch itself"
    )
    return Section(
        "memory by kind, fullest device", Table(("", "predicted", "measured"), tuple(rows)), (f"measured: {kind_measured}",)
    )


def validation(measured: Measured) -> list[Section]:
    """Return the validation losses of the run; nothing if it had none."""
    rows = read_rows(Path(measured.settings.out) / EVALUATIONS)
    if not rows or not measured.settings.eval_text:
        return []
    cells = tuple((f"after step {row['step']}", f"{row['loss']:.4f}") for row in rows[-8:])
    return [
        Section(
            "validation loss", Table(("", "loss"), cells), (f"{rows[-1]['tokens']:,} tokens of {measured.settings.eval_text}",)
        )
    ]


def experts(measured: Measured) -> list[Section]:
    """Return how evenly the router used the experts; nothing for a model without."""
    loads = [step.imbalance for step in measured_steps(measured.since_restart) if step.imbalance]
    if not loads:
        return []
    line = (
        f"busiest expert over the mean, worst layer: {loads[0]:.2f} at first, {loads[-1]:.2f} at last, {max(loads):.2f} at most"
    )
    even = "1.00 is even; the ranks of busy experts are waited for" if measured.settings.layout.ep > 1 else "1.00 is even"
    return [Section("balance of experts", lines=(line, even))]


def balance(measured: Measured) -> Section:
    """Return whether some ranks have more work or memory than others."""
    if len(measured.ranks) < 2:
        return Section("balance over ranks", lines=("one rank: nothing to balance",))
    cpu = all(rank.cpu_seconds is not None for rank in measured.ranks)
    lines = (
        [_spread("work before the first collective of all ranks", [(r.cpu_seconds, r) for r in measured.ranks], "CPU s")]
        if cpu
        else []
    )
    lines.append(_spread("time before it, including waits for single peers", [(r.seconds, r) for r in measured.ranks], "s"))
    lines.append(_spread("memory", [(rank.memory / GIB, rank) for rank in measured.ranks], "GiB"))
    return Section("balance over ranks", lines=tuple(filter(None, lines)))


def _spread(what: str, values: Sequence[tuple[float | None, Rank]], unit: str) -> str:
    known = [(value, rank) for value, rank in values if value is not None]
    if len(known) < len(values):
        return ""
    (least, first), (most, last) = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
    mean = sum(value for value, _ in known) / len(known)
    ratio = most / mean if mean else 1.0
    verdict = "balanced" if ratio <= EVEN else f"{name_rank(last)} has {ratio - 1:.0%} more than the mean"
    return f"{what}: {least:.3f} (rank {first.rank}) to {most:.3f} {unit} (rank {last.rank}), largest over mean {ratio:.3f}: {verdict}"


def name_rank(rank: Rank) -> str:
    """Return 'rank 3 (pp 1, tp 1)': the rank, and its coordinates that are not 0."""
    place = ", ".join(f"{axis} {at}" for axis, at in rank.at.items() if at)
    return f"rank {rank.rank}" + (f" ({place})" if place else "")


SAME = ("model", "seq_len", "gpu", "precision", "compiled")
"""Columns that must be equal for runs to be compared."""


def scaling(measured: Measured) -> Section:
    """Compare tokens per second and device with runs on fewer or more devices in the same folder."""
    mine = measured.row
    alike = [row for row in measured.earlier if row.get("outcome") == "ok" and all(row.get(key) == mine.get(key) for key in SAME)]
    lines: list[str] = []
    for kind, per_device in (("strong", False), ("weak", True)):
        best = {
            int(row["n_gpus"]): row
            for row in sorted((r for r in alike if _load(r, per_device) == _load(mine, per_device)), key=_rate)
        }
        best.pop(int(mine["n_gpus"]), None)
        lines += [_efficiency(kind, *sorted((row, mine), key=lambda r: int(r["n_gpus"]))) for _, row in sorted(best.items())]
    peers = [row for row in alike if all(row.get(key) == mine.get(key) for key in ("n_gpus", "global_batch_seqs"))]
    if peers:
        top = max(peers, key=_rate)
        change = _rate(mine) / _rate(top) - 1
        earlier = f"{len(peers)} earlier run{'s' * (len(peers) > 1)}"
        lines.append(f"against the fastest of {earlier} on as many devices ({row_layout_name(top)}): {change:+.1%} tokens/s")
    return Section(
        "against earlier runs in this folder", lines=tuple(lines or ["none with this model and sequence length on this device"])
    )


def _load(row: dict[str, Any], per_device: bool) -> float:
    return int(row["global_batch_seqs"]) / (int(row["n_gpus"]) if per_device else 1)


def _rate(row: dict[str, Any]) -> float:
    return float(row["tokens_per_sec_per_gpu"])


def _efficiency(kind: str, few: dict[str, Any], many: dict[str, Any]) -> str:
    """Return a line with the speed-up from few to many devices, and the efficiency: throughput per device on many over on few."""
    same = f"batch {many['global_batch_seqs']}" if kind == "strong" else f"{_load(many, True):g} sequences per device"
    n, m, each = int(few["n_gpus"]), int(many["n_gpus"]), _rate(many) / _rate(few)
    return f"{kind} scaling ({same}), {n} to {m} devices: {each * m / n:.2f} times the tokens/s, efficiency {each:.0%}"


def row_layout_name(row: dict[str, Any]) -> str:
    """Return the name of the layout in a row of measurements."""
    words = [f"{axis}{row[axis]}" for axis in ("dp", "tp", "pp", "cp") if axis != "cp" or int(row[axis]) > 1]
    words += [f"mbs{row['micro_batch']}"] + ([f"{row['recompute']} recompute"] if row["recompute"] != "none" else [])
    return " ".join(words)


def next_to_try(measured: Measured, forecast: Forecast) -> Section:
    """Return faster layouts that the planner finds for the same model, batch and devices."""
    lines, commands = advice(measured.settings, forecast)
    if forecast.generic and not forecast.fitted:
        lines.append("The order of layouts is uncertain on a generic CPU; --sweep measures it.")
    return Section("suggested next", lines=tuple(lines), commands=tuple(commands))


def files_in(folder: Path) -> str:
    """Return one line that lists the files in the run folder."""
    names = (
        "config.json",
        "environment.json",
        "steps.jsonl",
        "evaluations.jsonl",
        "kernels.json",
        "ranks.json",
        "measurement.jsonl",
        "report.md",
        "weights",
        "adapter",
        "lengths",
        "tensorboard",
    )
    existing = [name for name in names if (folder / name).exists()]
    existing += sorted(path.name for pattern in ("trace-*.json", "memory-*.pickle") for path in folder.glob(pattern))
    return f"saved in {folder}: {', '.join(existing)}"


def title(settings: Settings) -> str:
    s, a = settings, settings.layout
    return f"{s.name}, {s.batch} x {s.seq} tokens per step, {a.devices} {s.facts.get('gpu', s.device)}"


def layout_name(forecast: Forecast | None, settings: Settings) -> str:
    a = settings.layout
    return name_of(forecast.here.layout) if forecast else f"dp{a.dp} tp{a.tp} pp{a.pp} cp{a.cp} mbs{a.mbs}"
