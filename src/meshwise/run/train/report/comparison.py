"""The numbers in the report of a run: measured beside predicted, by part, over ranks and over earlier runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwise.cost.parts import TRAIN_WORDS
from meshwise.run.meter import Meter
from meshwise.run.train.report.advice import Forecast
from meshwise.runs.run import Run
from meshwise.runs.table import run_of
from meshwise.units import GIB
from meshwise.workers.trainer.contract.rows import (
    EVALUATIONS,
    KERNELS,
    Kernels,
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
    "forward": "forward", "backward": "backward", "passes": "pipelined passes", "data": "reading data",
    "reduce": "gradient norm and clipping", "optimizer": "optimizer",
}  # fmt: skip
PARTS_OUTSIDE_PASSES = ("optimizer", "offload", "fixed")  # parts of a prediction outside of the forward and backward passes
FILES = (
    "config.json", "environment.json", "steps.jsonl", "evaluations.jsonl", "kernels.json", "ranks.json", "measurement.jsonl", "report.md",
    "weights", "adapter", "lengths", "tensorboard",
)  # fmt: skip
"""Files and folders that a run may leave, in the order in which the report names them."""
EVEN_LOAD_RATIO = 1.05  # ranks count as evenly loaded up to this ratio of largest to mean


@dataclass(frozen=True)
class Measured:
    """The measurements that a run left in its folder."""

    settings: Settings
    steps: list[Step]
    ranks: list[Rank]
    row: dict[str, Any]
    earlier: list[dict[str, Any]]  # rows of the runs before it in the same measurement.jsonl
    first_step: float | None = None  # seconds from the start to the end of the first step
    evaluations: tuple[dict[str, Any], ...] = ()  # rows of validation losses
    kernels: Kernels | None = None  # the step whose kernels were profiled; None without a GPU
    watts: float | None = None  # mean power of this node's devices in the timed steps; None without a meter

    @property
    def since_restart(self) -> list[Step]:
        """The steps that the row summarizes: all since the workers last started."""
        return [step for step in self.steps if step.step >= int(self.row.get("first_step", 0))] or self.steps

    @property
    def timed(self) -> list[Step]:
        """The steps since the workers last started, without those of the warm-up."""
        return measured_steps(self.since_restart)

    @property
    def rates(self) -> tuple[float, float, float]:
        """Tokens per second, FLOP/s per device and MFU."""
        return rates(self.settings, self.seconds)

    @property
    def tokens(self) -> int:
        """Tokens per step."""
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
    first = steps[0].ended - started if steps else None
    evaluations = tuple(read_rows(folder / EVALUATIONS))
    return Measured(settings, steps, ranks, rows[-1], rows[:-1], first, evaluations, read_kernels(folder / KERNELS))


def with_power(measured: Measured, meter: Meter) -> Measured:
    """Return measurements with the power of the timed steps, by the meter of this node."""
    timed = measured.timed
    found = meter.between(timed[0].ended - timed[0].seconds, timed[-1].ended) if timed else None
    return replace(measured, watts=found.watts if found else None)


@dataclass(frozen=True)
class Part:
    """Seconds of one part of the step; None where it was not predicted or not measured."""

    words: str
    predicted: float | None
    measured: float | None
    inner: bool = False  # whether it belongs to a part above it


def parts(measured: Measured, forecast: Forecast | None) -> list[Part]:
    """Return seconds by part, the whole step last: predicted parts, and measured phases beside them. Each column adds up to its step."""
    step = typical_step(measured.since_restart)
    timed, whole = step.phases, step.seconds
    if not timed and not forecast:
        return []
    plan = {name: forecast.scale * value for name, value in forecast.here.time.items()} if forecast else {}
    inside = {name: value for name, value in plan.items() if name not in PARTS_OUTSIDE_PASSES and value > 0}
    passes = [name for name in PASSES if name in timed]
    both = sum(timed[name] for name in passes) if passes else None
    rows = [Part("forward and backward", sum(inside.values()) if forecast else None, both)]
    rows += [Part(PHASES[name], None, timed[name], inner=True) for name in passes if len(passes) > 1]
    largest_first = sorted(inside.items(), key=lambda pair: -pair[1])
    rows += [Part(TRAIN_WORDS[name], value, None, inner=True) for name, value in largest_first]
    rows.append(Part(PHASES["optimizer"], plan.get("optimizer"), timed.get("optimizer")))
    rows += [Part(TRAIN_WORDS[name], plan[name], None) for name in ("offload", "fixed") if plan.get(name, 0.0) > 0]
    rows += [Part(PHASES.get(name, name), None, value) for name, value in timed.items() if name not in (*PASSES, "optimizer")]
    rows += [Part("everything else", None, whole - sum(timed.values()))] if timed else []
    rows.append(Part("step", forecast.seconds if forecast else None, whole))
    return [row for row in rows if row.predicted is not None or row.measured is not None]


KERNEL_PARTS: dict[str, tuple[str, ...]] = {
    "products": ("matmul", "recompute"), "attention": ("attention",), "other": ("elementwise",), "optimizer": ("optimizer",),
    "idle": ("launch", "fixed"),
}  # fmt: skip
"""Parts of a profiled step, and the predicted parts that they correspond to; all other predicted parts are communication."""
KERNEL_WORDS = {"products": "matrix products", "other": "norms and activations"}


def by_kernel(found: Kernels, forecast: Forecast | None) -> list[Part]:
    """Return seconds by part of the step whose kernels were profiled, beside the predicted ones; the whole step last."""
    plan = {name: forecast.scale * value for name, value in forecast.here.time.items() if value > 0} if forecast else {}
    known = {name for names in KERNEL_PARTS.values() for name in names}
    matching = {part: sum(plan.get(name, 0.0) for name in names) for part, names in KERNEL_PARTS.items()}
    matching["communication, exposed"] = sum(value for name, value in plan.items() if name not in known)
    rows = sorted(found.parts.items(), key=lambda pair: (pair[0] == "idle", -pair[1]))
    kinds = [Part(KERNEL_WORDS.get(name, name), matching.get(name) or None, seconds) for name, seconds in rows]
    return [*kinds, Part("step", forecast.seconds if forecast else None, found.seconds)]


@dataclass(frozen=True)
class Spread:
    """The least and the most of something over all ranks."""

    words: str
    unit: str
    least: tuple[float, Rank]
    most: tuple[float, Rank]
    ratio: float  # the most over the mean

    @property
    def even(self) -> bool:
        return self.ratio <= EVEN_LOAD_RATIO


def balance(ranks: Sequence[Rank]) -> list[Spread]:
    """Return how work, time and memory spread over ranks; without what some rank has no figure of."""
    every = [
        _spread("work before the first collective of all ranks", "CPU s", [(rank.cpu_seconds, rank) for rank in ranks]),
        _spread("time before it, including waits for single peers", "s", [(rank.seconds, rank) for rank in ranks]),
        _spread("memory", "GiB", [(rank.memory / GIB, rank) for rank in ranks]),
    ]
    return [spread for spread in every if spread]


def _spread(words: str, unit: str, values: Sequence[tuple[float | None, Rank]]) -> Spread | None:
    known = [(value, rank) for value, rank in values if value is not None]
    if len(known) < len(values):
        return None
    mean = sum(value for value, _ in known) / len(known)
    least, most = (pick(known, key=lambda pair: pair[0]) for pick in (min, max))
    return Spread(words, unit, least, most, most[0] / mean if mean else 1.0)


EQUAL_COLUMNS = ("model", "seq_len", "gpu", "precision", "compiled")  # columns that must be equal for runs to be compared


@dataclass(frozen=True)
class Scaling:
    """Two runs on different numbers of devices: with the same batch (strong), or the same batch per device (weak)."""

    weak: bool
    load: float  # sequences per step that both have, in all or per device
    few: int
    many: int
    efficiency: float  # throughput per device on many devices over that on few

    @property
    def speedup(self) -> float:
        return self.efficiency * self.many / self.few


@dataclass(frozen=True)
class Rival:
    """The fastest of the earlier runs on as many devices, and how much faster this run is."""

    row: dict[str, Any]
    runs: int
    change: float


def scaling(measured: Measured) -> tuple[list[Scaling], Rival | None]:
    """Compare tokens per second and device with runs on fewer or more devices in the same folder, and with those on as many."""
    own, mine = measured.row, run_of(measured.row)
    alike = [
        row
        for row in measured.earlier
        if row.get("outcome") == "ok" and all(row.get(key) == own.get(key) for key in EQUAL_COLUMNS)
    ]
    runs = [run_of(row) for row in alike]
    found: list[Scaling] = []
    for weak in (False, True):
        same = sorted((run for run in runs if _load(run, weak) == _load(mine, weak)), key=_rate)
        best = {_devices(run): run for run in same}
        best.pop(_devices(mine), None)
        for _, run in sorted(best.items()):
            few, many = sorted((run, mine), key=_devices)
            found.append(Scaling(weak, _load(many, weak), _devices(few), _devices(many), _rate(many) / _rate(few)))
    size = (_devices(mine), mine.whole("batch"))
    peers = [(_rate(run), row) for run, row in zip(runs, alike, strict=True) if (_devices(run), run.whole("batch")) == size]
    rate, top = max(peers, key=lambda peer: peer[0], default=(0.0, None))
    return found, Rival(top, len(peers), _rate(mine) / rate - 1) if top else None


def _devices(run: Run) -> int:
    return run.whole("devices")


def _load(run: Run, per_device: bool) -> float:
    return run.whole("batch") / (_devices(run) if per_device else 1)


def _rate(run: Run) -> float:
    return run.number("tokens_per_second_per_device")


def files_in(folder: Path) -> str:
    """Return one line that lists the files in the run folder."""
    existing = [name for name in FILES if (folder / name).exists()]
    existing += sorted(path.name for pattern in ("trace-*.json", "memory-*.pickle") for path in folder.glob(pattern))
    return f"saved in {folder}: {', '.join(existing)}"
