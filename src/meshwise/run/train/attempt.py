"""One start of a run's workers, from its settings to its measurements."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from meshwise.plan.train.choice import Choice
from meshwise.run.callbacks import Progress, Say
from meshwise.run.meter import Meter, Metered
from meshwise.run.train import hosts, launch, processes
from meshwise.run.train.launch import Launch
from meshwise.run.train.processes import Watch
from meshwise.run.train.report import comparison, memory
from meshwise.run.train.report.comparison import Measured
from meshwise.units import GIB
from meshwise.workers.trainer.contract.process.stop import CUT_OFF
from meshwise.workers.trainer.contract.rows import PREDICTED_COLUMNS, read_rows
from meshwise.workers.trainer.contract.settings import Settings


@dataclass(frozen=True)
class Attempt:
    """How the workers of this node ended."""

    code: int  # exit code
    stopped: bool  # whether a signal to this launcher stopped them
    measured: Measured | None  # their measurements; None on nodes that do not report, or if no step was done


def with_prediction(ready: Launch) -> tuple[Launch, Choice | None]:
    """Add the planner's prediction to the run's facts, so that the measurement row carries both."""
    if not ready.on:
        return ready, None
    predicted = ready.predicted()
    facts = ready.settings.facts | dict(zip(PREDICTED_COLUMNS, (predicted.step, predicted.peak / GIB), strict=True))
    return replace(ready, settings=replace(ready.settings, facts=facts)), predicted


def write(ready: Launch, out: Path, say: Say) -> Launch:
    """Tokenize the data and write the settings that workers read; print what will be trained, on the first node."""
    ready, predicted = with_prediction(processes.tokenize(ready, out, say))
    processes.write_settings(ready, out)
    for line in _announcement(ready) if ready.hosts.rank == 0 else ():
        say(line)
    if predicted and (warning := memory.memory_warning(ready, predicted)):
        say(warning)
    return ready


def run(ready: Launch, out: Path, say: Say, progress: Progress | None, watch: Watch | None = None) -> Attempt:
    """Start the workers of this node with the settings in `out`, again when a cut link to node 0 is back, and wait for their end."""
    hosts.wait_for_node_0(ready.hosts, say)
    started, before = time.time(), len(read_rows(out / "measurement.jsonl"))
    (out / "failure.json").unlink(missing_ok=True)
    command, environment = launch.command(ready, out / "config.json"), processes.environment(ready)
    left = ready.max_restarts
    with Meter(devices=ready.processes_here) as meter:
        while True:
            code, stopped = processes.follow(command, environment, ready.settings.steps, say, progress, watch)
            if code != CUT_OFF or stopped or not left or not hosts.comes_back(ready.hosts, say):
                break
            left -= 1
    if meter.metered and code == 0:
        say(power_line(meter.metered))
    measured = comparison.read(ready.settings, out, started, before) if ready.hosts.rank == 0 else None
    return Attempt(code, stopped, comparison.with_power(measured, meter) if measured else None)


def power_line(metered: Metered) -> str:
    """Return what the devices of this node drew from start to end; the report has their power in a step."""
    return (
        f"energy of this node's devices: {metered.joules / 3.6e6:.3g} kWh by {metered.meter}, {metered.watts:,.0f} W on average over "
        f"{metered.seconds:.0f} s, start included"
    )


def _announcement(ready: Launch) -> list[str]:
    """Return the model, batch, precision and devices of a run, and its notes."""
    s = ready.settings
    workers, parts = _plural(s.layout.devices, f"{s.device} process"), _plural(s.microbatches, "micro-batch")
    nodes = f" on {ready.hosts.nodes} nodes" if ready.hosts.nodes > 1 else ""
    return [
        f"{s.name}: {ready.model.params:,} parameters, {s.batch} x {s.seq} tokens per step in {parts}, "
        f"{s.precision} on {workers}{nodes}",
        f"learning rate {s.lr:g} {_course(s)}; gradient clipped to {s.clip:g}, weight decay {s.weight_decay:g}"
        f"{'' if s.moments == 'fp32' else f'; moments in {s.moments}'}{_accumulation(s)}",
        *ready.notes,
    ]


def _course(s: Settings) -> str:
    """Return how the learning rate rises and falls; a run may end before it has risen."""
    warm_up = f"after {s.warmup} step{'s' * (s.warmup != 1)} of warm-up"
    return f"{warm_up}, then {s.lr_schedule}" if s.warmup < s.steps else f"only {warm_up}, of which this run has {s.steps}"


def _accumulation(s: Settings) -> str:
    """Return how many micro-batches a step accumulates, if several."""
    if s.microbatches == 1:
        return ""
    ranks = " on each data-parallel rank" if s.layout.dp > 1 else ""
    return f"; gradients of {s.microbatches} micro-batches of {s.layout.mbs} sequence{'s' * (s.layout.mbs != 1)} are accumulated{ranks}"


def _plural(number: int, what: str) -> str:
    return f"{number} {what}{'es' if number > 1 else ''}"
