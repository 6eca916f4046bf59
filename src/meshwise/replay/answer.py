"""Replayed: what a trace does to a deployment. `make` answers a ReplayAsk."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwise.catalogue import records
from meshwise.cost.power import Energy
from meshwise.cost.serve.load.requests import Percentiles, Targets, percentiles
from meshwise.errors import UserError
from meshwise.output import Drawn
from meshwise.plan.serve.choice import INTERVAL_STDS
from meshwise.plan.serve.plan import ServePlan, read
from meshwise.replay import deployment as deployments
from meshwise.replay.ask import ReplayAsk
from meshwise.replay.deployment import Deployment
from meshwise.replay.energy import energy_of
from meshwise.replay.engine.clock import Clock, Fleet
from meshwise.replay.engine.record import WINDOWS, Record, Window, quantile
from meshwise.replay.traces.facts import TraceFacts, facts
from meshwise.replay.traces.made import make as make_trace
from meshwise.replay.traces.trace import Trace, adjusted, open_trace

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of the time: what the requests saw that arrived in it."""

    seconds: float  # when it begins
    rate: float  # requests per second that arrived
    ttft_p50: float
    ttft_p95: float
    tpot_p95: float
    e2e_p95: float
    waiting: float  # mean requests that waited
    running: float
    copies: float
    filled: float  # mean share of the KV cache in use
    hits: float  # share of prompt tokens found in caches
    good: float  # share of its requests that met all targets


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A replay in numbers. Seconds, dollars, shares."""

    requests: int
    rejected: int  # requests longer than the context
    retried: int  # requests that were sent again after a failure
    seconds: float  # until the last one was done
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    good: float  # share of all requests that met all targets; of those that were answered, without targets
    goodput: float  # such requests per second
    holds: bool  # whether all targets hold at their quantiles, and nothing was rejected
    output_rate: float
    waiting: float
    most_waiting: float  # mean requests that wait, and the mean of the window with most
    hits: float
    preempted: float
    copies: float  # mean number of copies that are paid for
    busy: float  # share of their time in which copies compute
    device_hours: float
    dollars: float | None
    energy: Energy | None
    """Mean power of all copies while they are paid for, and their energy; None where a chip states no power limit."""
    kwh: float | None  # that energy, at the wall
    shares: dict[str, float]  # shares of the time of all requests: by part of REPLAY_TIME


@dataclass(frozen=True, kw_only=True, repr=False)
class Replayed(Drawn):
    """A replay: its figures, those with passes faster and slower by the interval of the calibration, and its course."""

    ask: ReplayAsk
    plan: str  # the deployment in words
    engine: str
    layout: str
    copies: int
    policy: str
    trace: TraceFacts
    targets: Targets
    figures: Figures
    low: Figures
    high: Figures  # 90% of measured figures lie between these, as far as the calibration knows
    slices: tuple[Slice, ...]
    notes: tuple[str, ...]

    @property
    def command(self) -> str:
        return self.ask.command()

    def interval(self, name: str, part: str = "") -> tuple[float, float]:
        """Return the 90% interval of a figure, or of a percentile of one: interval("ttft", "p95")."""
        every = [getattr(one, name) for one in (self.low, self.figures, self.high)]
        values = [value.at(part) if part else float(value or 0.0) for value in every]
        return min(values), max(values)

    def to_json(self) -> dict[str, Any]:
        table = records.plain(self)
        return {"kind": "replay", **records.printable(table)}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per part of the time, with the columns of `--csv`."""
        return [records.plain(one) for one in self.slices]

    def __repr__(self) -> str:
        return f"<Replayed {self.figures.requests:,} requests: {self.command}>"


@dataclass(frozen=True)
class Setting:
    """A deployment and the traffic for it."""

    ask: ReplayAsk
    trace: Trace
    facts: TraceFacts
    deployment: Deployment


def traffic(ask: ReplayAsk) -> Trace:
    """Return the trace that a question names or wants made."""
    if ask.make:
        made = make_trace(ask.make, ask.rate, ask.hours * HOUR, day=ask.day, burst=ask.burst, seed=ask.seed)
        return adjusted(made, speed=ask.speed, users=ask.scale_users, window=ask.window)
    return open_trace(ask.trace, read=ask.read, block=ask.block, speed=ask.speed, users=ask.scale_users, window=ask.window)


def setting(ask: ReplayAsk, plan: ServePlan | None = None, trace: Trace | None = None) -> Setting:
    """Look up what a question names. `plan` stands for a plan.json, `trace` for a file."""
    ask.check()
    if plan is None and ask.model.endswith(".json") and Path(ask.model).name != "config.json":
        plan = read(Path(ask.model))
    if plan is not None and ask.on:
        raise UserError("--on does not apply to a plan, which has its own; drop it")
    trace = trace or traffic(ask)
    found = facts(trace, reuse=False)
    return Setting(ask, trace, found, deployments.of_plan(plan) if plan else deployments.of_words(ask, found))


def make(ask: ReplayAsk, plan: ServePlan | None = None, trace: Trace | None = None) -> Replayed:
    """Replay a trace through a deployment, and through ones whose passes are as fast and as slow as the calibration allows."""
    return answer(setting(ask, plan, trace))


def answer(at: Setting) -> Replayed:
    """Return the replay of a setting, with its interval."""
    stretch = math.exp(INTERVAL_STDS * at.deployment.spread)
    fleet = deployments.fleet(at.deployment, at.ask, at.facts)
    figures, slices = simulated(at, fleet)
    edges = [
        simulated(at, deployments.fleet(at.deployment, at.ask, at.facts, scale=factor))[0] for factor in (1 / stretch, stretch)
    ]
    return Replayed(
        ask=at.ask, plan=deployments.described(at.deployment), engine=at.deployment.question.engine.name,
        layout=at.deployment.name, copies=fleet.copies,
        policy=fleet.policy.words if fleet.policy else "", trace=at.facts, targets=targets_of(at), figures=figures, low=edges[0],
        high=edges[1], slices=slices, notes=(*_notes(at, fleet, figures), *at.deployment.notes),
    )  # fmt: skip


def targets_of(at: Setting) -> Targets:
    """Return the targets of the question; those of the plan where it has none."""
    from meshwise.plan.serve.lookup import targets_of

    return targets_of(at.ask) or at.deployment.question.targets


def simulated(at: Setting, fleet: Fleet) -> tuple[Figures, tuple[Slice, ...]]:
    """Run a trace through a fleet once."""
    record = Record(at.facts.seconds)
    clock = Clock(fleet, record)
    clock.run(at.trace)
    targets = targets_of(at)
    return _figures(at, clock, targets), tuple(_slices(record, targets))


def _figures(at: Setting, clock: Clock, targets: Targets) -> Figures:
    record, deployment = clock.record, at.deployment
    done = len(record.at)
    every, layout = done + record.rejected, deployment.option.layout
    good = sum(_good(record, targets)) if targets else done
    pools = [(clock.outputs, deployment.devices)]
    pools += [(clock.prompts, len(layout.prefill.cards))] if clock.prompts and layout.prefill else []
    paid = sum(clock.paid(pool) * devices for pool, devices in pools)
    seconds = max(record.last, 1e-9)
    copies = [copy for pool, _ in pools for copy in (*pool.gone, *(slot.copy for slot in pool.slots))]
    busy = sum(copy.stepping + copy.mixing for copy in copies)
    times = {name: percentiles(getattr(record, name)) for name in ("ttft", "e2e")}
    times["tpot"] = percentiles([one for one in record.tpot if one >= 0])
    holds = not record.rejected and all(
        times[name].at(target.quantile) <= target.seconds for name, target in targets.named.items()
    )
    drawn = energy_of(at.ask, deployment, at.facts, clock)
    windows = [window.waiting / max(1, window.samples) for window in record.windows]
    return Figures(
        requests=every, rejected=record.rejected, retried=record.retried, seconds=record.last, **times, good=good / max(1, every),
        goodput=good / seconds, holds=holds, output_rate=record.output / seconds, waiting=sum(windows) / len(windows),
        most_waiting=max(windows), hits=record.reused / max(1, record.prompt), preempted=record.preempted / max(1, done),
        copies=sum(clock.paid(pool) for pool, _ in pools) / seconds,
        busy=busy / max(1e-9, sum(clock.paid(pool) for pool, _ in pools)), device_hours=paid / HOUR,
        dollars=paid * deployment.rent if deployment.rent is not None else None,
        energy=drawn, kwh=drawn.kwh if drawn else None,
        shares=_shares(record, sum(copy.stalled for copy in copies)),
    )  # fmt: skip


def _shares(record: Record, stalled: float) -> dict[str, float]:
    """Return where the time of all requests goes. A token that waits for the prompt of another request is no work of its own."""
    stalled = min(stalled, record.generated)
    parts = {
        "queue": record.queued, "prompt": record.prefilled, "transfer": record.transferred, "tokens": record.generated - stalled,
        "others": stalled,
    }  # fmt: skip
    total = sum(parts.values()) or 1.0
    return {name: value / total for name, value in parts.items()}


def _good(record: Record, targets: Targets) -> list[bool]:
    """Return of each request whether it met all targets."""
    bounds = [(getattr(record, name), target.seconds) for name, target in targets.named.items()]
    return [all(values[i] <= most for values, most in bounds) for i in range(len(record.at))]


def _slices(record: Record, targets: Targets) -> "list[Slice]":
    """Return the course over time."""
    groups: list[list[int]] = [[] for _ in range(WINDOWS)]
    for i, at in enumerate(record.at):
        groups[min(WINDOWS - 1, int(at / record.seconds * WINDOWS))].append(i)
    good = _good(record, targets)
    each = record.seconds / WINDOWS
    return [
        _slice(record, i * each, each, window, group, good)
        for i, (window, group) in enumerate(zip(record.windows, groups, strict=True))
    ]


def _slice(record: Record, at: float, each: float, window: Window, group: Sequence[int], good: Sequence[bool]) -> Slice:
    def sorted_times(values: "array[float]") -> list[float]:
        return sorted(values[i] for i in group if values[i] >= 0)

    ttft, samples = sorted_times(record.ttft), max(1, window.samples)
    return Slice(
        seconds=at, rate=window.arrived / each, ttft_p50=quantile(ttft, 0.5), ttft_p95=quantile(ttft, 0.95),
        tpot_p95=quantile(sorted_times(record.tpot), 0.95), e2e_p95=quantile(sorted_times(record.e2e), 0.95),
        waiting=window.waiting / samples, running=window.running / samples, copies=window.copies / samples,
        filled=window.filled / samples, hits=1 - window.computed / window.prompt if window.prompt else 0.0,
        good=sum(good[i] for i in group) / len(group) if group else 1.0,
    )  # fmt: skip


def _notes(at: Setting, fleet: Fleet, figures: Figures) -> list[str]:
    """Return what a reader must know about the figures."""
    notes: list[str] = []
    q, planned = at.deployment.question, at.deployment.option.layout.replicas
    if figures.rejected:
        notes.append(
            f"{figures.rejected:,} of {figures.requests:,} requests are longer than the context of {q.work.context:,} and rejected; "
            "--context allows more"
        )
    if fleet.copies > planned or (fleet.policy and fleet.policy.most > planned):
        notes.append(
            f"{q.cluster.name} has devices for {planned} {'copy' if planned == 1 else 'copies'}; more are rented for the same price"
        )
    if at.facts.block and not fleet.engine.block:
        notes.append("prefixes are not kept" + ("" if q.runtime.prefixes else f": {q.engine.name} cannot"))
    if (fleet.policy or at.ask.mtbf) and not at.ask.start_up:
        notes.append(f"a new copy serves after {fleet.start_up:.0f} s, an assumption; --start-up states your own")
    return notes
