"""Choice: one layout with its predicted cost; and the messages for questions that no layout answers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from meshwise import units
from meshwise.catalogue.records import stored
from meshwise.cost import goodput, interval, modes
from meshwise.cost.axes import MINOR, layout_name
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.compute import Device
from meshwise.cost.train.memory import MOMENTS
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import Cost, moments
from meshwise.plan.train import batches
from meshwise.plan.train.search import ASKED, BOUNDABLE_CUTS, Found, search, usable_part
from meshwise.units import GIB

TIE_SHARE = 0.01  # layouts whose times differ by less than this share count as one answer: the cost model is not more precise
MAX_SINGLE_NODE_DEVICES = 8
"""Devices up to which a single node is made larger, rather than more nodes used, to find out how many would do."""
CHEAP_RECOMPUTE = ("layernorm", "moe_act")
"""Ways to recompute that add next to no work, so that layouts within 1% count as ties with those without."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layout with its predicted cost. Seconds, bytes, dollars and FLOP/s."""

    layout: dict[str, int | str]
    devices: int
    step: float = field(metadata=stored("seconds"))
    """Seconds per step."""
    low: float
    high: float
    """90% of measured steps lie between these two."""
    tokens_per_second: float
    tflops: dict[str, float]
    """TFLOP/s per device under each common formula: 6N, exact, and Megatron's, which counts masked attention and recompute."""
    mfu: float
    """Model FLOPs utilization: exact FLOPs without recompute, over the peak."""
    gradient_accumulation: int
    """Micro-batches of one data-parallel rank in a step."""
    peak: float = field(metadata=stored("memory"))
    """Bytes on the fullest device."""
    peak_low: float = field(metadata=stored("memory_low"))
    peak_high: float = field(metadata=stored("memory_high"))
    """90% of measured peaks lie between these two."""
    capacity: float
    days: float | None
    dollars: float | None
    mwh: float | None
    """Days, dollars and MWh of the whole training if nothing failed."""
    wall_days: float | None
    """Days with failures; None for a run that makes no progress."""
    wall_dollars: float | None
    """Dollars with failures, spare nodes included."""
    goodput: dict[str, float]
    """Shares of wall time by part, and the figures behind them."""
    time: dict[str, float] = field(metadata=stored("time_parts"))
    """Seconds of a step by part."""
    memory: dict[str, float] = field(metadata=stored("memory_parts"))
    """Bytes on the fullest device by kind."""
    moments: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]], metadata=stored("memory_moments"))
    """Bytes by kind at the moments of a step that may be its peak (cost/train/memory.MOMENTS), of tensors and context."""
    p_fit: float = 1.0
    """Probability that it fits, by the interval of its memory."""
    ties: int = 0
    """Layouts within 1% that differ only in axes that hardly matter here."""

    @property
    def name(self) -> str:
        return layout_name(self.layout)

    @property
    def needs(self) -> float:
        """Bytes that the device must have: those of the peak that the allocator cannot give back."""
        return self.peak - self.memory.get("allocator", 0.0)

    @property
    def peak_moment(self) -> str:
        """The moment of the peak; '' where the plan does not state its moments."""
        return max(self.moments, key=lambda name: sum(self.moments[name].values()), default="")

    @property
    def total_days(self) -> float | None:
        """Days of the whole training: with failures, unless it makes no progress with them."""
        return self.days if self.wall_days is None else self.wall_days

    @property
    def total_dollars(self) -> float | None:
        """Dollars for `total_days`."""
        return self.dollars if self.wall_dollars is None else self.wall_dollars

    @property
    def may_not_fit(self) -> bool:
        """Whether the upper end of the memory interval exceeds the device."""
        return self.peak_high > self.capacity


def too_large(q: Question, found: Found, helps: Callable[[], str] = str) -> str:
    """Explain why nothing was found: by how much the smallest layout exceeds the memory, or which rules dropped every layout. `helps`
    returns the changes that would make it fit, where there are any."""
    have, need = q.chip.memory, found.smallest
    if not math.isfinite(need):
        return no_layout(q, found.rejected)
    change, more = helps(), enough(q, need)
    advice = "; or ".join(filter(None, (change, f"{more:,} devices would do" if more else "")))
    return (
        f"{q.model.name} does not fit on {q.cluster.name}: the smallest of {found.evaluated:,} layouts of {q.work.framework.name} needs "
        f"{need / GIB:,.1f} GiB per device, {q.chip.name} has {have / GIB:.1f}{f'; {advice}' if advice else ''}"
    )


def enough(q: Question, need: float) -> int:
    """Return a number of devices on which the model fits, of equal nodes or of one node of up to 8; 0 where none of a few does."""
    node, size = q.cluster.node, q.cluster.node.devices
    least = q.cluster.devices * need / (q.chip.memory * (1 - q.work.reserve))
    for times in (1, 2, 4):
        more = math.ceil(times * least)
        alone = q.cluster.node_count == 1 and more <= MAX_SINGLE_NODE_DEVICES and not q.cluster.torus
        shape = (1, replace(node, chips=((more, q.chip),))) if alone else (math.ceil(more / size), node)
        larger = replace(q, cluster=replace(q.cluster, nodes=(shape,)))
        if len(search(larger, top=1).layouts):
            return larger.cluster.devices
    return 0


def no_progress(q: Question, best: Choice) -> str:
    """Return the message for a run that failures stop: its goodput, the largest loss and the times behind it."""
    g = best.goodput
    between, down, save = (units.show(g[name], "seconds", digits=2) for name in ("between", "down", "save"))
    worst = max(goodput.LOSSES, key=lambda part: g[part])
    return (
        f"{q.model.name} would make no progress on {q.cluster.name}: goodput is under {goodput.MIN_GOODPUT:.0%}, and {g[worst]:.0%} of "
        f"the time goes into {goodput.LOSSES[worst]}, with an interruption every {between}, {down} to restart and {save} to write a "
        "checkpoint"
    )


def no_layout(q: Question, rejected: dict[str, int]) -> str:
    """Return the message where no layout satisfies every rule: the layouts that each rule dropped, and the part of the cluster that
    could be used."""
    fixed = [rule.removeprefix(ASKED).strip() for rule in rejected if rule.startswith(ASKED)]
    fixed = [axis for axis in fixed if axis in BOUNDABLE_CUTS]
    others = {rule: count for rule, count in rejected.items() if rule.removeprefix(ASKED).strip() not in fixed}
    if not others:
        return f"no layout of {q.cluster.devices:,} devices satisfies {ASKED} {', '.join(fixed)}"
    dropped = ", ".join(f"{rule} ({count:,})" for rule, count in others.items())
    within = f" with {ASKED} {', '.join(fixed)}" if fixed else ""
    usable = "" if fixed else "".join([_usable(q), *(f"; {line}" for line in batches.gains(q, {}, 0.0))])
    return f"no layout{within} satisfies every rule on {q.cluster.devices:,} devices{usable}; dropped layouts by rule: {dropped}"


def _usable(q: Question) -> str:
    """Return the part of the cluster over which the model can be cut, with the flag that selects it; '' where there is none."""
    part = usable_part(q)
    if part is None:
        return ""
    nodes, devices = part
    if devices == q.cluster.node.devices:
        return f"; {nodes:,} of the {q.cluster.node_count:,} nodes can be used: --at-most '{nodes} nodes'"
    return f"; {nodes}x{devices}x{q.chip.key} can be used"


def distinct(q: Question, found: Found, top: int) -> Iterator[Choice]:
    """Yield the best of each group of near-ties: layouts within 1% that give every device the same work."""
    step, best = found.cost.step, list[int]()
    groups = [_work(found.layouts, i) for i in range(len(found.layouts))]
    first: dict[tuple[object, ...], int] = {}
    for i, group in enumerate(groups):
        if group in first and step[i] <= step[first[group]] * (1 + TIE_SHARE):
            continue
        if len(best) < top:
            first[group] = i
            best.append(i)
    for i in best:
        near = [j for j, group in enumerate(groups) if group == groups[i] and abs(step[j] / step[i] - 1) <= TIE_SHARE]
        yield choice(q, found.layouts, found.cost, i, ties=sum(j not in best for j in near))


def _work(layouts: Layouts, i: int) -> tuple[object, ...]:
    """Return the key under which layouts count as ties: per-device work, ignoring how data parallelism is split."""
    row = layouts.row(i)
    if row["recompute"] in CHEAP_RECOMPUTE:
        row["recompute"] = "none"
    ranks, part = int(layouts.dp[i]) * int(row["cp"]), int(row["mbs"]) / int(row["cp"])
    return (ranks, part, *(value for name, value in row.items() if name not in (*MINOR, "cp", "mbs")))


def choice(q: Question, layouts: Layouts, cost: Cost, i: int, ties: int = 0) -> Choice:
    """Convert row i of an evaluated block into a Choice."""
    seconds = float(cost.step[i])
    row = layouts.row(i)
    devices = int(layouts.devices[i])
    tokens = float(q.work.batch_tokens)
    parts = {name: float(value[i]) for name, value in cost.time.items()}
    low, high = interval.step(q.calibration, parts, devices, any(op.expert for op in q.model.ops))
    high = _with_usual_modes(q, layouts, i, seconds, seconds * high)
    memory_factor = math.exp(interval.COVERAGE_STDS * q.calibration.memory_spread)
    memory = {name: float(value[i]) for name, value in cost.memory.items()}
    needs = float(cost.peak[i]) - memory["allocator"]
    likely = min(float(cost.peak[i]) * memory_factor, q.chip.memory) if memory["allocator"] else 0.0
    exact = _exact_flops(q, tokens)
    megatron = q.model.flops_megatron(tokens, q.work.seq, recompute=row["recompute"] == "full")
    rates = {"6N": q.model.flops_6n(tokens), "exact": exact, "Megatron": megatron}
    # MFU is over the datasheet's peak, not over what the chip's power limit sustains
    peak = Device.of(q.chip, q.calibration, q.work.precision).peak / q.chip.sustained
    steps = q.work.tokens / tokens if q.work.tokens else None
    hours = steps * seconds / 3600 if steps else None
    rent = q.cluster.rent
    power = q.chip.tdp
    dollars = hours * 3600 * rent * devices / q.cluster.devices if hours and rent else None
    lasting, spares = _goodput(q, devices, seconds)
    longer = 1 / lasting["effective"] if lasting["effective"] >= goodput.MIN_GOODPUT else None
    return Choice(
        layout=row, devices=devices, step=seconds, low=seconds * low, high=high, tokens_per_second=tokens / seconds,
        tflops={name: value / seconds / devices / 1e12 for name, value in rates.items()}, mfu=exact / seconds / devices / peak,
        gradient_accumulation=math.ceil(int(q.work.batch) / (int(layouts.dp[i]) * int(row["mbs"]))), peak=float(cost.peak[i]),
        peak_low=float(cost.peak[i]) / memory_factor, peak_high=max(needs * memory_factor, likely), capacity=q.chip.memory,
        days=hours / 24 if hours else None, dollars=dollars, mwh=hours * power * devices / 1e6 if hours and power else None,
        wall_days=hours / 24 * longer if hours and longer else None,
        wall_dollars=dollars * longer * (1 + spares / devices) if dollars and longer else None, goodput=lasting, time=parts,
        memory=memory, moments=_moments(replace(q, model=q.model.take(np.array([i]))), layouts.take(np.array([i]))), ties=ties,
        p_fit=float(interval.fits(np.array([needs]), q.chip.memory, q.calibration.memory_spread)[0]),
    )  # fmt: skip


def _moments(q: Question, layout: Layouts) -> dict[str, dict[str, float]]:
    """Return the bytes of one layout by kind at each moment of a step."""
    found = moments(q, layout)
    return {name: {kind: float(values[row, 0]) for kind, values in found.sizes.items()} for row, name in enumerate(MOMENTS)}


def sizes(q: Question, layouts: Layouts) -> modes.Sizes:
    """Return what modes of slow runs count in layouts."""
    whole = np.ones(len(layouts))
    dp, mbs, pp, tp = (np.asarray(axis, dtype=np.float64) for axis in (layouts.dp, layouts.mbs, layouts.pp, layouts.tp))
    return modes.Sizes.of(len(q.model.layers) * whole, float(q.work.batch) * whole, dp, mbs, pp, tp)


def _with_usual_modes(q: Question, layouts: Layouts, i: int, seconds: float, high: float) -> float:
    """Return the high end of the interval, with modes that most runs of the calibration were in."""
    if not q.calibration.modes:
        return high
    normal = np.full(len(layouts), seconds)
    return float(modes.upper_end(q.calibration.modes, np.full(len(layouts), high), normal, sizes(q, layouts))[i])


def _exact_flops(q: Question, tokens: float) -> float:
    """Return the FLOPs of a step without recompute: forward, and backward as far as gradients are needed."""
    how = finetuned(q.model, q.work.finetune)
    products, attention = q.model.matmul_flops(tokens), q.model.attention_flops(tokens, q.work.seq)
    if how.frozen is None and not q.work.objective.forwards:
        return q.model.flops(tokens, q.work.seq)
    forward = (1 + q.work.objective.forwards) * (products + attention)
    adapters = 6 * tokens * how.trained.dense if how.adapted else 0.0
    return forward + (how.inputs + how.weights) * products + 2 * how.inputs * attention + adapters


def _goodput(q: Question, devices: int, seconds: float) -> tuple[dict[str, float], float]:
    """Return the goodput of a run with steps of this many seconds, and the devices in its spare nodes."""
    per_node = q.chip.per_node if q.cluster.torus else q.cluster.node.devices
    shares = goodput.goodput(
        q.work.reliability, devices,
        checkpoint_bytes=q.work.checkpoint_bytes(
            finetuned(q.model, q.work.finetune).trained.total if q.work.finetune.adapts else q.model.params
        ),
        staging=(q.chip.host or q.chip).bandwidth, step=seconds, per_node=per_node,
    ).at()  # fmt: skip
    return shares, shares["spares"] * per_node


@dataclass(frozen=True)
class Difference:
    """Seconds of one part of the step in two layouts."""

    part: str
    mine: float
    other: float

    @property
    def gained(self) -> float:
        """Seconds that the other layout takes longer."""
        return self.other - self.mine


def differences(mine: Choice, other: Choice) -> list[Difference]:
    """Return the parts in which two layouts differ by more than a thousandth of the step, largest first."""
    rows = [Difference(part, mine.time.get(part, 0.0), other.time.get(part, 0.0)) for part in TRAIN_PARTS]
    return sorted((row for row in rows if abs(row.gained) > 1e-3 * mine.step), key=lambda row: -abs(row.gained))
