"""Plan: a question, the layouts that answer it with their cost, and where the numbers come from. JSON both ways."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from meshwise import units
from meshwise.catalogue import calibrations, clusters, frameworks, records
from meshwise.cost import goodput, interval
from meshwise.cost.layout import Layouts, layouts_of
from meshwise.cost.reliability import Reliability
from meshwise.cost.train.compute import Device
from meshwise.cost.train.memory import KINDS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import PARTS, Cost
from meshwise.cost.work import OPTIMIZER_BYTES, PRECISIONS, Train
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.plan.train.search import ASKED, CUT_AXES, Found, fewer_nodes
from meshwise.units import GIB

FORMAT = 3
TIE = 0.01
"""Two layouts closer than this are one answer: no model of a cluster tells them apart."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question in the words of the command line, enough to ask it again."""

    model: str
    cluster: str
    batch: int
    seq: int
    framework: str = ""
    """None: the usual one for the chip."""
    precision: str = "bf16"
    optimizer: str = "adamw"
    tokens: float = 0.0
    calibration: str = ""
    ramp: tuple[int, ...] = ()
    fix: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    at_most: str = ""
    imbalance: float = Train.imbalance
    """Tokens on the busiest device of an expert-parallel group over the mean."""
    reliability: dict[str, float | bool] = field(default_factory=dict[str, float | bool])
    """What was said of failures, by the names of Reliability; the rest is as assumed there."""
    link: str = ""
    """Bandwidth between the devices of a node, instead of the chip's own."""
    within: float = 0.0
    """Seconds that training may take; 0 is no deadline."""

    def question(self, model: Model | None = None) -> Question:
        """Everything looked up, but for a model that was already."""
        if self.optimizer not in OPTIMIZER_BYTES:
            raise UserError(f"unknown optimizer {quoted(self.optimizer)}; known: {', '.join(OPTIMIZER_BYTES)}")
        if self.precision not in PRECISIONS:
            raise UserError(f"unknown precision {quoted(self.precision)}; known: {', '.join(PRECISIONS)}")
        found = clusters.find_cluster(self.cluster)
        if len(found.chips) > 1:
            raise UserError(f"cluster {quoted(self.cluster)} mixes chips; training is planned on one kind of chip")
        if len({node.devices for _, node in found.nodes}) > 1:
            raise UserError(
                f"cluster {quoted(self.cluster)} mixes nodes of several sizes; training is planned on one kind of node"
            )
        chip = found.chip
        model = model or find.find_model(self.model)
        program = frameworks.find_framework(self.framework or frameworks.usual(chip.kind, model.model_type))
        if self.link:
            found = clusters.with_link(found, self.link)
        work = Train(
            batch=self.batch,
            seq=self.seq,
            framework=program,
            precision=cast(Any, self.precision),
            optimizer=self.optimizer,
            tokens=self.tokens,
            ramp=self.ramp,
            imbalance=self.imbalance,
            reliability=Reliability(**cast(Any, self.reliability)),
        )
        fitted = calibrations.named(self.calibration) if self.calibration else calibrations.choose(chip, program.key)
        return Question.of(model, found, work, fitted)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layout with its predicted cost. Seconds, bytes, dollars and FLOP/s."""

    layout: dict[str, int | str]
    devices: int
    seconds: float
    low: float
    high: float
    tokens_per_second: float
    tflops: dict[str, float]
    """Per device and second under each common formula: 6N, exact, and Megatron's, which counts masked attention and recompute."""
    mfu: float
    """Of the peak, with exact FLOPs and no recompute."""
    memory: float
    memory_low: float
    memory_high: float
    """Of measurements, 90% lie between these two, as do seconds between `low` and `high`."""
    capacity: float
    days: float | None
    dollars: float | None
    mwh: float | None
    """These three as if nothing failed."""
    wall_days: float | None
    """With failures; none for a run that gets nowhere."""
    wall_dollars: float | None
    """With failures, the spare nodes paid for too."""
    goodput: dict[str, float]
    """Shares of wall time by part, and the figures behind them."""
    time_parts: dict[str, float]
    memory_parts: dict[str, float]
    ties: int = 0
    """Layouts within 1% that differ only in axes that hardly matter here."""


def days_of(choice: Choice) -> float | None:
    """How long training takes in days, as a deadline sees it: with failures, where a run gets anywhere at all."""
    return choice.wall_days if choice.wall_days is not None else choice.days


def dollars_of(choice: Choice) -> float | None:
    """What training costs to rent, for as long as `days_of` says."""
    return choice.wall_dollars if choice.wall_dollars is not None else choice.dollars


@dataclass(frozen=True, kw_only=True)
class Plan:
    ask: Ask
    choices: tuple[Choice, ...]
    priced: int
    rejected: dict[str, int]
    calibration: dict[str, str]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


def node_counts(ask: Ask, q: Question) -> tuple[int, ...]:
    """Every number of nodes up to what `--at-most` says; nothing asks for the whole cluster."""
    if not ask.at_most:
        return ()
    most = q.cluster.node_count
    number = ask.at_most.lower().removesuffix("nodes").removesuffix("node").strip()
    if not number.isdecimal() or len(number) > 8 or not 1 <= int(number) <= most:
        raise UserError(f"--at-most {quoted(ask.at_most)}: expected 1 to {most} nodes, such as '{most} nodes'")
    return tuple(range(1, int(number) + 1))


def make(ask: Ask, q: Question, found: Found, top: int) -> Plan:
    """The plan for what a search found; a question that nothing fits says by how much."""
    if len(found.layouts) == 0:
        raise DoesNotFit(too_large(q, found))
    choices = tuple(_distinct(q, found, top))
    if (ask.tokens or ask.reliability) and choices[0].goodput["effective"] < goodput.HOPELESS:
        raise DoesNotFit(_hopeless(q, choices[0]))
    fitted = q.calibration
    about = {"name": fitted.key or "default prior", "fitted_on": fitted.fitted_on, "date": fitted.date}
    return Plan(
        ask=ask,
        choices=choices,
        priced=found.priced,
        rejected=found.rejected,
        calibration=about,
        notes=(*q.model.notes, *q.cluster.notes, *_assumptions(q), *_in_time(ask, choices)),
        versions={"meshwise": version("meshwise")} | {name: _digest(part) for name, part in _data_of(q).items()},
    )


def _in_time(ask: Ask, choices: tuple[Choice, ...]) -> tuple[str, ...]:
    """Which of the layouts meet the deadline; where none does, that is the answer."""
    if not ask.within:
        return ()
    limit = units.show(ask.within, "seconds")
    days = [days_of(one) or math.inf for one in choices]
    rows = [str(i + 1) for i, value in enumerate(days) if value * 86400 <= ask.within]
    if not rows:
        raise DoesNotFit(f"nothing trains within {limit}: the fastest layout on {ask.cluster} takes {min(days):,.1f} days")
    return (f"within {limit}: {'rows' if len(rows) > 1 else 'row'} {', '.join(rows)} of {len(choices)}",)


def _assumptions(q: Question) -> list[str]:
    """What the cost of experts and of 8 bits rests on, where no measurement does."""
    f, c = q.work.framework, q.calibration
    found: list[str] = []
    if any(op.expert for op in q.model.ops):
        sent = "to each node once" if f.sends_once else "to each expert apart"
        behind = ", behind another micro-batch's computing" if f.overlaps_experts else ""
        aside = f", with {f.communication_sms} SMs set aside for it" if f.communication_sms else ""
        found.append(
            f"assumed of experts in {f.name}: the busiest device has {q.work.imbalance:g} times the mean tokens (--imbalance); "
            f"a token goes {sent}{behind}{aside}"
        )
    if q.work.precision == "fp8" and "fp8" in q.chip.flops:
        found.append(
            f"assumed of fp8: products reach {c.matmul * c.fp8:.2f} of its peak and keep their inputs in 8 bits; "
            "attention and the head stay in 16"
        )
    if q.work.precision == "fp8" and "fp8" not in q.chip.flops:
        found.append(f"{q.chip.name} has no fp8 products: they are computed in 16 bits")
    return found


def _data_of(q: Question) -> dict[str, object]:
    """The data a plan rests on: another chip file or calibration makes another plan."""
    return {"model": q.model.placed, "cluster": q.cluster, "framework": q.work.framework, "calibration": q.calibration}


def _digest(part: object) -> str:
    return hashlib.sha256(repr(part).encode()).hexdigest()[:12]


def too_large(q: Question, found: Found) -> str:
    """Why nothing was found: by how much the leanest layout is too large, or the rules that left none."""
    have, need = q.chip.memory, found.smallest
    if not math.isfinite(need):
        return no_layout(q, found.rejected)
    more = math.ceil(q.cluster.devices * need / (have * (1 - q.work.reserve)))
    return (
        f"{q.model.name} does not fit on {q.cluster.name}: the leanest of {found.priced:,} layouts needs {need / GIB:.1f} GiB a device, "
        f"{q.chip.name} has {have / GIB:.1f}; about {more:,} devices would do, or a smaller batch, or --framework fsdp, which can offload"
    )


def _hopeless(q: Question, best: Choice) -> str:
    g = best.goodput
    between, down, save = (units.show(g[name], "seconds", digits=2) for name in ("between", "down", "save"))
    worst = max(goodput.LOSSES, key=lambda part: g[part])
    return (
        f"{q.model.name} would get nowhere on {q.cluster.name}: under {goodput.HOPELESS:.0%} of the time is useful and {g[worst]:.0%} "
        f"goes into {goodput.LOSSES[worst]}, with an interruption every {between}, {down} to restart and {save} to write a checkpoint"
    )


def no_layout(q: Question, rejected: dict[str, int]) -> str:
    """The rules that dropped what a user left open; where there never was such a cut, what they fixed."""
    fixed = [rule.removeprefix(ASKED).strip() for rule in rejected if rule.startswith(ASKED)]
    fixed = [axis for axis in fixed if axis in CUT_AXES]
    others = {rule: count for rule, count in rejected.items() if rule.removeprefix(ASKED).strip() not in fixed}
    within = f"{ASKED} {', '.join(fixed)}"
    if not others:
        return f"no way to cut {q.cluster.devices:,} devices keeps to {within}"
    dropped = ", ".join(f"{rule} ({count:,})" for rule, count in others.items())
    fewer = 0 if fixed else fewer_nodes(q)
    instead = f"; {fewer:,} of the {q.cluster.node_count:,} nodes can be used" if fewer else ""
    return f"no layout{f' within {within}' if fixed else ''} keeps to every rule{instead}: {dropped}"


_MINOR = ("dp_replicate", "dp_shard", "zero", "sp", "schedule", "offload")


def _distinct(q: Question, found: Found, top: int) -> Iterator[Choice]:
    """The best of each group of near-ties: layouts that give every device the same work in another way, and within 1%."""
    step, best = found.cost.step, list[int]()
    groups = [_work_of(found.layouts, i) for i in range(len(found.layouts))]
    first: dict[tuple[object, ...], int] = {}
    for i, group in enumerate(groups):
        if group in first and step[i] <= step[first[group]] * (1 + TIE):
            continue
        if len(best) < top:
            first[group] = i
            best.append(i)
    for i in best:
        near = [j for j, group in enumerate(groups) if group == groups[i] and abs(step[j] / step[i] - 1) <= TIE]
        yield choice(q, found.layouts, found.cost, i, ties=sum(j not in best for j in near))


def _work_of(layouts: Layouts, i: int) -> tuple[object, ...]:
    """What one device does: the same whether sequences are shared out whole or in parts, and whoever keeps the optimizer's state."""
    row = layouts.row(i)
    ranks, part = int(layouts.dp[i]) * int(row["cp"]), int(row["mbs"]) / int(row["cp"])
    return (ranks, part, *(value for name, value in row.items() if name not in (*_MINOR, "cp", "mbs")))


def choice(q: Question, layouts: Layouts, cost: Cost, i: int, ties: int = 0) -> Choice:
    """One priced row in all its units."""
    seconds = float(cost.step[i])
    row = layouts.row(i)
    devices = int(layouts.devices[i])
    tokens = float(q.work.batch_tokens)
    parts = {name: float(value[i]) for name, value in cost.time.items()}
    low, high = interval.step(q.calibration, parts, devices)
    heavier = math.exp(interval.NORMAL * q.calibration.memory_spread)
    exact = q.model.flops(tokens, q.work.seq)
    megatron = q.model.flops_megatron(tokens, q.work.seq, recompute=row["recompute"] == "full")
    rates = {"6N": q.model.flops_6n(tokens), "exact": exact, "Megatron": megatron}
    peak = Device.of(q.chip, q.calibration, q.work.precision).peak
    steps = q.work.tokens / tokens if q.work.tokens else None
    hours = steps * seconds / 3600 if steps else None
    rent = q.cluster.rent
    power = q.chip.tdp
    dollars = hours * 3600 * rent * devices / q.cluster.devices if hours and rent else None
    lasting, spares = _lasting(q, devices, seconds)
    longer = 1 / lasting["effective"] if lasting["effective"] >= goodput.HOPELESS else None
    return Choice(
        layout=row,
        devices=devices,
        seconds=seconds,
        low=seconds * low,
        high=seconds * high,
        tokens_per_second=tokens / seconds,
        tflops={name: value / seconds / devices / 1e12 for name, value in rates.items()},
        mfu=exact / seconds / devices / peak,
        memory=float(cost.peak[i]),
        memory_low=float(cost.peak[i]) / heavier,
        memory_high=float(cost.peak[i]) * heavier,
        capacity=q.chip.memory,
        days=hours / 24 if hours else None,
        dollars=dollars,
        mwh=hours * power * devices / 1e6 if hours and power else None,
        wall_days=hours / 24 * longer if hours and longer else None,
        wall_dollars=dollars * longer * (1 + spares / devices) if dollars and longer else None,
        goodput=lasting,
        time_parts=parts,
        memory_parts={name: float(value[i]) for name, value in cost.memory.items()},
        ties=ties,
    )


def _lasting(q: Question, devices: int, seconds: float) -> tuple[dict[str, float], float]:
    """What failures leave of a run of steps of so many seconds, and the devices in its spare nodes."""
    per_node = q.chip.per_node if q.cluster.torus else q.cluster.node.devices
    found = goodput.goodput(
        q.work.reliability,
        devices,
        checkpoint_bytes=q.work.checkpoint_bytes(q.model.params),
        staging=(q.chip.host or q.chip).bandwidth,
        step=seconds,
        per_node=per_node,
    ).at()
    return found, found["spares"] * per_node


def read(path: Path) -> Plan:
    """A plan.json; one of another format is refused with the reason."""
    table = records.plan_table(path, FORMAT)
    try:
        found = records.restore(Plan, {f.name: table[f.name] for f in fields(Plan)})
        if not found.choices or min(found.ask.batch, found.ask.seq) <= 0:
            raise ValueError("it has no layouts, or no batch")
        Reliability(**cast(Any, found.ask.reliability))
        for row in found.choices:
            _check_sums(row)
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: a damaged plan ({error}); make it again") from None


def _check_sums(row: Choice) -> None:
    """What is printed divides by these, and names every part."""
    if min(row.seconds, row.tokens_per_second, row.capacity) <= 0 or int(layouts_of(row.layout).devices[0]) != row.devices:
        raise ValueError("a layout takes no time, or not the devices it says")
    if set(row.time_parts) != set(PARTS) or set(row.memory_parts) != set(KINDS):
        raise ValueError("a layout has other parts than this version knows")
    if set(row.goodput) != {f.name for f in fields(goodput.Goodput)}:
        raise ValueError("a layout has other shares of time than this version knows")
