"""Exhaustive search: enumerate layouts, drop those that break a rule, evaluate the rest in blocks, keep the best. 'Best' is exact
under the cost model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

import numpy as np

from meshwise.cost.axes import CUTS, INNER, OFFLOAD, RECOMPUTE, SCHEDULES, Bounds
from meshwise.cost.layout import Ints, Layouts
from meshwise.cost.parts import TRAIN_KINDS, TRAIN_PARTS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import Cost, evaluate, peak
from meshwise.errors import UserError
from meshwise.plan.train.rules import TP_IN_NODE, Mask, attends, batch_rules, choice_rules, cut_rules

BLOCK = 1 << 14
"""Layouts evaluated at once: enough that many share a cut, few enough that their arrays stay in a core's cache."""
PAIRS = 1 << 18
"""Pairs of cut and model shape whose rules are checked at once."""
PARTS_TRIED = 4096
"""Smaller clusters that are tried where a model cannot be cut over the whole one."""
TIES = 32
"""Layouts kept per requested one, since near-ties are merged later."""
ASKED = "--fix or --allow"


@dataclass(frozen=True)
class Found:
    """The best layouts that fit, fastest first, and counts of the others."""

    layouts: Layouts
    cost: Cost
    evaluated: int
    rejected: dict[str, int]
    """Dropped layouts by rule, in the order in which rules are checked."""
    smallest: float
    """Smallest peak memory per device of any evaluated layout."""


def search(q: Question, *, bounds: Bounds | None = None, top: int = 10, nodes: tuple[int, ...] = ()) -> Found:
    """Return the `top` fastest layouts on the whole cluster, or on any of the node counts in `nodes`."""
    limits = dict(bounds or {})
    capacity = q.chip.memory * (1 - q.work.reserve)
    rejected: dict[str, int] = {}
    best = _nothing()
    kept = max(top, 1) * TIES
    evaluated, smallest = 0, np.inf
    for asked, block in blocks(q, limits, nodes, rejected):
        weight = peak(asked, block)
        evaluated += len(block)
        smallest = min(smallest, float(weight.min()))
        fits = weight <= capacity
        _count(rejected, f"fits in memory, {q.work.reserve:.0%} kept free", ~fits)
        if not fits.any():
            continue
        block = block.take(fits)
        cost = evaluate(asked, block)
        step = cost.step
        rows = np.arange(len(block))
        if len(rows) > kept:
            rows = np.flatnonzero(step <= np.partition(step, kept)[kept])  # whatever ties for the last place, too
        best = _fastest(best, (block.take(rows), _take(cost, rows)), kept)
    return Found(*best, evaluated, {rule: number for rule, number in rejected.items() if number}, float(smallest))


def _take(cost: Cost, rows: Ints) -> Cost:
    return Cost({k: v[rows] for k, v in cost.time.items()}, {k: v[rows] for k, v in cost.memory.items()})


def _nothing() -> tuple[Layouts, Cost]:
    none = np.zeros(0, dtype=np.int64)
    return Layouts.of(tp=none), Cost(dict.fromkeys(TRAIN_PARTS, none), dict.fromkeys(TRAIN_KINDS, none))


def _fastest(best: tuple[Layouts, Cost], more: tuple[Layouts, Cost], kept: int) -> tuple[Layouts, Cost]:
    """Merge two sets of layouts and keep the fastest. Equal times (to 1e-7) are sorted by cp and then by the other axes, so that
    the result does not depend on the order of the search."""
    (_, a), (_, b) = best, more
    layouts = _concatenated([best[0], more[0]])
    time = {name: np.concatenate([a.time[name], b.time[name]]) for name in a.time}
    cost = Cost(time, {name: np.concatenate([a.memory[name], b.memory[name]]) for name in a.memory})
    keys = [*(getattr(layouts, f.name) for f in fields(Layouts)), layouts.cp, cost.step.astype(np.float32)]
    order = np.lexsort(keys)[:kept]
    return layouts.take(order), _take(cost, order)


def _count(rejected: dict[str, int], rule: str, dropped: Mask) -> None:
    rejected[rule] = rejected.get(rule, 0) + int(np.count_nonzero(dropped))


def check_divides(q: Question, limits: Bounds, nodes: tuple[int, ...] = ()) -> None:
    """Refuse a fixed axis that does not divide the number of devices."""
    devices = [count * q.cluster.node.devices for count in nodes or (q.cluster.node_count,)]
    whole = sorted({n for number in devices for n in divisors(number)})
    for axis, (least, most) in limits.items():
        if axis in BOUNDED_CUTS and not any(least <= n <= most for n in whole):
            near = [max(n for n in whole if n < least), *(n for n in whole if n > most)][:2]
            span = f"{least}" if least == most else f"{least}..{most}"
            raise UserError(
                f"{ASKED} {axis}={span}: none divides the {devices[-1]:,} devices; the nearest that does is {' or '.join(map(str, near))}"
            )


@cache
def divisors(n: int) -> tuple[int, ...]:
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return tuple(sorted({*small, *(n // i for i in small)}))


def blocks(q: Question, limits: Bounds, nodes: tuple[int, ...], rejected: dict[str, int]) -> Iterator[tuple[Question, Layouts]]:
    """Yield valid layouts in blocks of about BLOCK, each with its question: for a stack of shapes, the model of every layout."""
    choices = InnerChoices(q, limits)
    waiting: list[PartialLayouts] = []
    for count in nodes or (q.cluster.node_count,):
        for some in partial_layouts(q, limits, count, choices, rejected):
            waiting.append(some)
            if sum(part.number for part in waiting) >= BLOCK:
                yield from completed(q, PartialLayouts.joined(waiting), choices)
                waiting = []
    if waiting:
        yield from completed(q, PartialLayouts.joined(waiting), choices)


@dataclass(frozen=True)
class PartialLayouts:
    """Partial layouts (device cut + micro-batch), before ZeRO stage, recompute, schedule and offload are chosen. One row each."""

    shape: Ints
    layouts: Layouts
    kind: Ints
    """Index into `InnerChoices.tables` for each row."""
    size: Ints
    """Number of inner choices of each row."""

    @property
    def number(self) -> int:
        """Number of complete layouts."""
        return int(self.size.sum())

    def take(self, rows: Ints | Mask) -> "PartialLayouts":
        return PartialLayouts(self.shape[rows], self.layouts.take(rows), self.kind[rows], self.size[rows])

    @staticmethod
    def joined(parts: "list[PartialLayouts]") -> "PartialLayouts":
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shape", "kind", "size"))
        shape, kind, size = arrays
        return PartialLayouts(shape, _concatenated([part.layouts for part in parts]), kind, size)


class InnerChoices:
    """The inner choices (ZeRO stage, recompute, sp, schedule, vpp, offload) of each kind of partial layout, computed once per kind
    with rules applied."""

    def __init__(self, q: Question, limits: Bounds) -> None:
        self.q, self.limits = q, limits
        self.kinds: dict[tuple[int, ...], int] = {}
        self.tables: list[dict[str, Ints]] = []
        self.all: list[int] = []
        """Number of choices per kind before rules."""
        self.dropped: list[dict[str, int]] = []

    def of(self, a: Layouts, layers: Ints) -> Ints:
        """Return the index into `tables` for each (cut, micro-batch): which inner choices it allows."""
        steady = -(-int(self.q.work.batch) // (a.dp * a.mbs)) % a.pp == 0
        per_stage = np.where(a.pp > 1, _per_stage(self.q, layers, a.pp), 1)
        columns = (a.pp, per_stage, a.dp_shard > 1, a.tp > 1, steady)
        code = np.zeros(len(a), dtype=np.int64)
        for column in columns:
            code = code * (int(np.max(column, initial=0)) + 1) + column
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        found = [self._kind(tuple(int(column[i]) for column in columns)) for i in first.tolist()]
        return np.array(found, dtype=np.int64)[which]

    def _kind(self, key: tuple[int, ...]) -> int:
        if key not in self.kinds:
            self.kinds[key] = len(self.tables)
            *chosen, steady = key
            table = _inner(self.q, *chosen)
            dropped: dict[str, int] = {}
            rest = dict.fromkeys((*CUTS, "mbs"), np.ones_like(table["zero"]))  # no rule of choices asks for these
            some = Layouts(**rest, **table)
            kept = _all(choice_rules(self.q, some, bool(steady)) | _bounded(some, self.limits, INNER), dropped, len(some))
            self.tables.append({axis: values[kept] for axis, values in table.items()})
            self.all.append(len(some))
            self.dropped.append(dropped)
        return self.kinds[key]


def partial_layouts(
    q: Question, limits: Bounds, nodes: int, choices: InnerChoices, rejected: dict[str, int]
) -> Iterator[PartialLayouts]:
    """Yield partial layouts on this many nodes: every cut, shape and micro-batch that satisfies the rules, many at a time."""
    for pairs, cuts in _paired(q, _cuts(q, nodes * q.cluster.node.devices)):
        here = replace(q, model=q.model.take(pairs))
        # What the user left open first: a rule that drops none of it is not why nothing is left.
        kept = _all(_bounded(cuts, limits, BOUNDED_CUTS) | _allowed(cut_rules(here, cuts), limits), rejected, len(cuts))
        pairs, cuts = pairs[kept], cuts.take(kept)
        distinct, which = np.unique(cuts.dp, return_inverse=True)
        sizes = [np.array(divisors(math.ceil(int(q.work.batch) / dp)), dtype=np.int64) for dp in distinct.tolist()]
        outer, inner = _each(np.array([len(size) for size in sizes], dtype=np.int64), which)
        if not len(outer):
            continue
        pairs, some = pairs[outer], replace(cuts.take(outer), mbs=np.concatenate(sizes)[inner])
        model = q.model.take(pairs)
        kind = choices.of(some, np.broadcast_to(model.decoder.layers, len(some)))
        weights = np.array(choices.all, dtype=np.int64)[kind]
        rules = batch_rules(replace(q, model=model), some) | _bounded(some, limits, ("mbs",))
        kept = _all(rules, rejected, len(some), weights)
        for which, times in enumerate(np.bincount(kind[kept]).tolist()):
            for rule, number in choices.dropped[which].items():
                rejected[rule] = rejected.get(rule, 0) + number * times
        size = np.array([len(table["zero"]) for table in choices.tables], dtype=np.int64)[kind]
        kept &= size > 0
        if kept.any():
            yield PartialLayouts(pairs[kept], some.take(kept), kind[kept], size[kept])


def _each(sizes: Ints, which: Ints) -> tuple[Ints, Ints]:
    """Pair every row with every choice of its kind (`sizes[kind]` of them): return the row index and the choice index of each pair."""
    size = sizes[which]
    outer = np.repeat(np.arange(len(which)), size)
    first = (np.cumsum(sizes) - sizes)[which] - (np.cumsum(size) - size)
    return outer, np.arange(len(outer)) + first[outer]


def _paired(q: Question, cuts: Layouts) -> Iterator[tuple[Ints, Layouts]]:
    """Yield every cut with every shape, many at a time. Shapes are strided, so that the first block resembles the rest."""
    shapes = np.arange(np.size(q.model.variant))
    parts = -(-len(shapes) // max(1, PAIRS // len(cuts)))
    for some in (shapes[part::parts] for part in range(parts)):
        yield np.repeat(some, len(cuts)), cuts.take(np.tile(np.arange(len(cuts)), len(some)))


def completed(q: Question, some: PartialLayouts, choices: InnerChoices) -> Iterator[tuple[Question, Layouts]]:
    """Complete partial layouts with all their inner choices, in blocks of about BLOCK."""
    table = {axis: np.concatenate([one[axis] for one in choices.tables]) for axis in INNER}
    sizes = np.array([len(one["zero"]) for one in choices.tables], dtype=np.int64)
    ends: Ints = np.cumsum(some.size)
    first = before = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, before + BLOCK, side="right")))
        outer, inner = _each(sizes, some.kind[first:last])
        outer += first
        axes = {axis: getattr(some.layouts, axis)[outer] for axis in (*CUTS, "mbs")}
        layouts = Layouts(**axes, **{axis: values[inner] for axis, values in table.items()})
        yield replace(q, model=q.model.take(some.shape[outer])), layouts
        first, before = last, int(ends[last - 1])


def _allowed(rules: dict[str, Mask], limits: Bounds) -> dict[str, Mask]:
    """Drop the rule that tp stays inside a node where the user bounds tp."""
    return {rule: mask for rule, mask in rules.items() if not (rule == TP_IN_NODE and "tp" in limits)}


BOUNDED_CUTS = ("dp", *CUTS)


def _concatenated(parts: list[Layouts]) -> Layouts:
    return Layouts(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Layouts)})


def _all(rules: dict[str, Mask], rejected: dict[str, int], length: int, weights: Ints | None = None) -> Mask:
    """Return a mask of the rows that pass every rule. A dropped row counts under the first rule it breaks, once or `weights` times."""
    left = np.ones(length, dtype=bool)
    for rule, mask in rules.items():
        gone: Mask = left & ~mask
        rejected[rule] = rejected.get(rule, 0) + int(gone.sum() if weights is None else weights[gone].sum())
        left &= mask
    return left


def _bounded(a: Layouts, limits: Mapping[str, tuple[int, int]], axes: tuple[str, ...]) -> dict[str, Mask]:
    """Return --fix and --allow as rules."""
    masks: dict[str, Mask] = {}
    for axis, (least, most) in limits.items():
        if axis in axes:
            values = getattr(a, axis)
            masks[f"{ASKED} {axis}"] = (values >= least) & (values <= most)
    return masks


def _cuts(q: Question, devices: int) -> Layouts:
    """Return every factorization of `devices` into dp_replicate x dp_shard x tp x pp x cp, with every ep that divides dp_shard x cp."""
    rows: list[tuple[int, ...]] = []
    mixture = any(op.expert for op in q.model.ops)
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            for cp in divisors(devices // (tp * pp)):
                dp = devices // (tp * pp * cp)
                for shard in divisors(dp):
                    rows += [(dp // shard, shard, tp, pp, cp, ep) for ep in (divisors(shard * cp) if mixture else (1,))]
    table = np.array(rows, dtype=np.int64)
    return Layouts.of(**dict(zip(CUTS, table.T, strict=True)))


def usable_part(q: Question) -> tuple[int, int] | None:
    """Return the largest part of the cluster, as nodes and devices per node, over which the model can be cut at all; None where none of
    the nearest parts can. 100,000 devices are 2^5 x 5^5: no batch, head or layer count has those fives, and 98,304 of them do."""
    whole, each = q.cluster.node_count, q.cluster.node.devices
    nodes = range(whole, max(0, int(0.8 * whole) - 1), -1)
    parts = sorted(
        ((n, d) for n in nodes for d in range(each, 0, -1) if n and (n, d) != (whole, each)), key=lambda p: -p[0] * p[1]
    )
    for count, devices in parts[:PARTS_TRIED]:
        node = replace(q.cluster.node, chips=((devices, q.chip),))
        here = replace(q, cluster=replace(q.cluster, nodes=((count, node),)))
        if np.logical_and.reduce(list(cut_rules(here, _cuts(here, count * devices)).values())).any():
            return count, devices
    return None


def _inner(q: Question, pp: int, per_stage: int, shared: int, cut: int) -> dict[str, Ints]:
    """Return every combination of ZeRO stage, recompute, sequence parallelism, schedule and offload for partial layouts with these
    stages. `shared`: dp_shard > 1; `cut`: tp > 1."""
    f = q.work.framework
    schedules = [(SCHEDULES.index("1f1b"), 1)]
    if pp > 1 and "interleaved" in f.schedules:
        schedules += [(SCHEDULES.index("interleaved"), v) for v in divisors(per_stage)[1:]]
    if pp > 1 and "zero-bubble" in f.schedules:
        schedules.append((SCHEDULES.index("zero-bubble"), 1))
    choices: dict[str, list[int]] = {
        "zero": list(f.zero) if shared else [0],
        "recompute": [RECOMPUTE.index(how) for how in f.recompute if how != "selective" or attends(q)],
        "sp": {"never": [0], "choice": [0, 1], "always": [1]}[f.sequence_parallel] if cut else [0],
        "plan": list(range(len(schedules))),
        "offload": list(range(len(OFFLOAD))) if f.offload else [0],
    }
    axes = dict(zip(choices, np.array(list(product(*choices.values())), dtype=np.int64).T, strict=True))
    which = axes.pop("plan")
    table = np.array(schedules, dtype=np.int64)
    return axes | {"schedule": table[which, 0], "vpp": table[which, 1]}


def _per_stage(q: Question, layers: Ints, pp: Ints) -> Ints:
    """Return the layers per stage where stages are equal, counting the embedding and the head where the framework can; else 1."""
    counted = q.work.framework.embedding_layers & ((layers + 2) % pp == 0)
    return np.where(layers % pp == 0, layers // pp, np.where(counted, (layers + 2) // pp, 1))
