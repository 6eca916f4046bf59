"""Exhaustive search: enumerate layouts, drop those that break a rule, evaluate the rest in blocks, keep the best. 'Best' is exact
under the cost model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from itertools import product

import numpy as np

from meshwise import wanted
from meshwise.cost.axes import CUTS, INNER, OFFLOAD, RECOMPUTE, SCHEDULES, Bounds
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.parts import TRAIN_KINDS, TRAIN_PARTS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import Cost, evaluate, host_fits, peak_and_needs
from meshwise.cost.work import MAX_BATCH_TOKENS
from meshwise.errors import UserError
from meshwise.plan.train.floors import ROUNDING_FACTOR, time_floors
from meshwise.plan.train.rank import Rank
from meshwise.plan.train.rules import TP_IN_NODE, Mask, batch_rules, choice_rules, cut_rules, recomputes, saves

BLOCK_SIZE = 1 << 14
"""Layouts evaluated at once: enough that many share a cut, few enough that their arrays stay in a core's cache."""
BLOCK_PAIRS = 1 << 18  # pairs of cut and model shape whose rules are checked at once
BLOCK_CUTS = 1 << 16  # cuts that are looked at at once: 98,304 devices have 442,272 with experts
MAX_SUBCLUSTERS = 4096  # smaller clusters to try where a model cannot be cut over the whole cluster
MIN_LAYOUTS_FOR_BOUNDS = 1 << 18  # layouts from which on lower bounds of partial layouts save more time than they take
TIES_PER_CHOICE = 32  # layouts kept per requested one, since near-ties are merged later
ASKED = "--fix or --allow"
HOST_FITS = "offloaded state fits in the hosts' memory"


@dataclass(frozen=True)
class Found:
    """The best layouts that fit, by expected seconds, those that may not fit last; and counts of the others."""

    layouts: Layouts
    cost: Cost
    evaluated: int
    rejected: dict[str, int]  # dropped layouts by rule, in the order in which rules are checked
    smallest: float  # smallest peak memory per device of any evaluated layout whose offloaded state fits in the hosts' memory
    safe: int = 0  # layouts, the first of `layouts`, whose chance of not fitting is accepted

    @property
    def value(self) -> tuple[bool, float]:
        """Sort key of the best layout among those of other questions: whether it may not fit, and its seconds."""
        return self.safe == 0, float(self.cost.step[0])


def search(
    q: Question, *, bounds: Bounds | None = None, top: int = 10, nodes: tuple[int, ...] = (), faster_than: float = math.inf
) -> Found:
    """Return the `top` fastest layouts on the whole cluster, or on any of the node counts in `nodes`. Offload, which costs time, is tried
    where nothing fits without it, and where `bounds` allow it by name. Layouts whose lower bound exceeds `faster_than` seconds are
    neither evaluated nor counted."""
    if q.work.batch_tokens > MAX_BATCH_TOKENS:
        raise UserError(f"a batch of {q.work.batch_tokens:.3g} tokens is too large: expected at most {MAX_BATCH_TOKENS:.0e}")
    limits = dict(bounds or {})
    found = _search(q, limits, top, nodes, offloads="offload" in limits, faster_than=faster_than)
    if len(found.layouts) or not q.work.framework.offload or "offload" in limits:
        return found
    return _search(q, limits, top, nodes, offloads=True)


def _search(
    q: Question, limits: Bounds, top: int, nodes: tuple[int, ...], *, offloads: bool, faster_than: float = math.inf
) -> Found:
    capacity = q.chip.memory * (1 - q.work.reserve)
    rejected: dict[str, int] = {}
    kept = max(top, 1) * TIES_PER_CHOICE
    pools = {risky: Pool.empty(kept) for risky in (False, True)}
    evaluated, smallest = 0, np.inf
    for block_question, block, floor in blocks(q, limits, nodes, rejected, offloads=offloads, faster_than=faster_than):
        weight, needs = peak_and_needs(block_question, block)
        evaluated += len(block)
        fits = weight <= capacity
        _count(rejected, f"fits in memory, {q.work.reserve:.0%} kept free", ~fits)
        on_host = host_fits(block_question, block)
        smallest = min(smallest, float(weight[on_host].min(initial=np.inf)))
        _count(rejected, HOST_FITS, fits & ~on_host)
        rank = Rank.of(block_question, block, needs)
        floor = floor * rank.factor
        last = {risky: pool.last * ROUNDING_FACTOR for risky, pool in pools.items()}
        fits &= on_host & (floor <= np.where(rank.risky, last[True], last[False]))
        if not fits.any():
            continue
        cost = evaluate(block_question, block.take(fits))
        expected, risky, block = cost.step * rank.factor[fits], rank.risky[fits], block.take(fits)
        for which, pool in pools.items():
            rows = np.flatnonzero(risky == which)
            pools[which] = pool.joined(block.take(rows), _take(cost, rows), expected[rows])
    safe, risky = pools[False], pools[True]
    layouts, cost = concatenated([safe.layouts, risky.layouts]), _concatenated(safe.cost, risky.cost)
    counts = {rule: number for rule, number in rejected.items() if number}
    return Found(layouts, cost, evaluated, counts, float(smallest), len(safe.layouts))


@dataclass(frozen=True)
class Pool:
    """The best layouts so far, by expected seconds."""

    layouts: Layouts
    cost: Cost
    expected: Floats
    kept: int  # most layouts that it holds

    @staticmethod
    def empty(kept: int) -> "Pool":
        none = np.zeros(0, dtype=np.int64)
        cost = Cost(dict.fromkeys(TRAIN_PARTS, none), dict.fromkeys(TRAIN_KINDS, none))
        return Pool(Layouts.of(tp=none), cost, np.zeros(0), kept)

    @property
    def last(self) -> float:
        """Expected seconds of the last layout; infinity while there is room."""
        return float(self.expected[-1]) if len(self.expected) == self.kept else math.inf

    def joined(self, layouts: Layouts, cost: Cost, expected: Floats) -> "Pool":
        """Return the best of these and of other layouts. Equal seconds (to 1e-7) are sorted by cp and then by the other axes, so that the
        result does not depend on the order of the search."""
        if len(expected) > self.kept:
            rows = np.flatnonzero(expected <= np.partition(expected, self.kept)[self.kept])  # with all ties for the last place
            layouts, cost, expected = layouts.take(rows), _take(cost, rows), expected[rows]
        both = concatenated([self.layouts, layouts])
        seconds = np.concatenate([self.expected, expected])
        keys = [*(getattr(both, f.name) for f in fields(Layouts)), both.cp, seconds.astype(np.float32)]
        order = np.lexsort(keys)[: self.kept]
        return Pool(both.take(order), _take(_concatenated(self.cost, cost), order), seconds[order], self.kept)


def _take(cost: Cost, rows: Ints) -> Cost:
    return Cost({k: v[rows] for k, v in cost.time.items()}, {k: v[rows] for k, v in cost.memory.items()})


def _concatenated(a: Cost, b: Cost) -> Cost:
    pairs = ((a.time, b.time), (a.memory, b.memory))
    return Cost(*({name: np.concatenate([one[name], other[name]]) for name in one} for one, other in pairs))


def _count(rejected: dict[str, int], rule: str, dropped: Mask) -> None:
    rejected[rule] = rejected.get(rule, 0) + int(np.count_nonzero(dropped))


def check_divides(q: Question, limits: Bounds, nodes: tuple[int, ...] = ()) -> None:
    """Refuse a fixed axis that does not divide the number of devices."""
    devices = [count * q.cluster.node.devices for count in nodes or (q.cluster.node_count,)]
    whole = sorted({n for number in devices for n in divisors(number)})
    for axis, (least, most) in limits.items():
        if axis in BOUNDABLE_CUTS and not any(least <= n <= most for n in whole):
            near = [max(n for n in whole if n < least), *(n for n in whole if n > most)][:2]
            span = f"{least}" if least == most else f"{least}..{most}"
            raise UserError(
                f"{ASKED} {axis}={span}: none divides the {devices[-1]:,} devices; the nearest that does is {' or '.join(map(str, near))}"
            )


@cache
def divisors(n: int) -> tuple[int, ...]:
    """Return every divisor of n, the smallest first."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return tuple(sorted({*small, *(n // i for i in small)}))


def blocks(
    q: Question, limits: Bounds, nodes: tuple[int, ...], rejected: dict[str, int], *, offloads: bool = False,
    faster_than: float = math.inf,
) -> Iterator[tuple[Question, Layouts, Floats]]:  # fmt: skip
    """Yield valid layouts in blocks of about BLOCK_SIZE, each with its question, whose model has the shape of every layout in the
    block, and lower bounds on their seconds. Partial layouts that cannot be `faster_than` this are left out. Offload, which no lower
    bound covers, and searches so small that bounds cost as much as they save have bounds of 0."""
    choices = InnerChoices(q, limits, offloads=offloads)
    waiting: list[PartialLayouts] = []
    for count in nodes or (q.cluster.node_count,):
        for partial in partial_layouts(q, limits, count, choices, rejected):
            if not offloads and partial.number >= MIN_LAYOUTS_FOR_BOUNDS:
                partial = replace(partial, floor=time_floors(q, partial.shape, partial.layouts))
                partial = partial.take(partial.floor <= faster_than * ROUNDING_FACTOR) if math.isfinite(faster_than) else partial
            waiting.append(partial)
            if sum(part.number for part in waiting) >= BLOCK_SIZE:
                yield from completed(q, PartialLayouts.joined(waiting), choices)
                waiting = []
    if sum(part.number for part in waiting):
        yield from completed(q, PartialLayouts.joined(waiting), choices)


@dataclass(frozen=True)
class PartialLayouts:
    """Partial layouts (device cut + micro-batch), before ZeRO stage, recompute, schedule and offload are chosen. One row each."""

    shape: Ints
    layouts: Layouts
    kind: Ints  # index into `InnerChoices.tables` for each row
    size: Ints  # number of inner choices of each row
    floor: Floats  # lower bound on the seconds of each row; 0 where it was not computed

    @property
    def number(self) -> int:
        """Number of complete layouts."""
        return int(self.size.sum())

    def take(self, rows: Ints | Mask) -> "PartialLayouts":
        return PartialLayouts(self.shape[rows], self.layouts.take(rows), self.kind[rows], self.size[rows], self.floor[rows])

    @staticmethod
    def joined(parts: "list[PartialLayouts]") -> "PartialLayouts":
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shape", "kind", "size", "floor"))
        shape, kind, size, floor = arrays
        return PartialLayouts(shape, concatenated([part.layouts for part in parts]), kind, size, floor)


class InnerChoices:
    """The inner choices (ZeRO stage, recompute, sp, schedule, vpp, offload) of each kind of partial layout, computed once per kind
    with rules applied."""

    def __init__(self, q: Question, limits: Bounds, *, offloads: bool = False) -> None:
        self.q, self.limits, self.offloads = q, limits, offloads
        self.kinds: dict[tuple[int, ...], int] = {}
        self.tables: list[dict[str, Ints]] = []
        self.all: list[int] = []
        """Number of choices per kind, before rules are applied."""
        self.dropped: list[dict[str, int]] = []

    def of(self, a: Layouts, layers: Ints) -> Ints:
        """Return the index into `tables` for each (cut, micro-batch): which inner choices it allows."""
        steady = -(-int(self.q.work.batch) // (a.dp * a.mbs)) % a.pp == 0
        per_stage = np.where(a.pp > 1, _per_stage(self.q, layers, a.pp), 1)
        columns = (a.pp, per_stage, a.dp_shard * a.cp > 1, a.tp > 1, steady)
        code = np.zeros(len(a), dtype=np.int64)
        for column in columns:
            code = code * (int(np.max(column, initial=0)) + 1) + column
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        kinds = [self._kind(tuple(int(column[i]) for column in columns)) for i in first.tolist()]
        return np.array(kinds, dtype=np.int64)[which]

    def _kind(self, key: tuple[int, ...]) -> int:
        """Return the index into `tables` for a kind, whose table is computed when it first occurs."""
        if key not in self.kinds:
            self.kinds[key] = len(self.tables)
            *chosen, steady = key
            table = _inner(self.q, *chosen, offloads=self.offloads, named="recompute" in self.limits)
            dropped: dict[str, int] = {}
            rest = dict.fromkeys((*CUTS, "mbs"), np.ones_like(table["zero"]))  # no rule on inner choices reads these axes
            layouts = Layouts(**rest, **table)
            rules = choice_rules(self.q, layouts, bool(steady)) | _bounded(layouts, self.limits, INNER)
            kept = _passing(rules, dropped, len(layouts))
            self.tables.append({axis: values[kept] for axis, values in table.items()})
            self.all.append(len(layouts))
            self.dropped.append(dropped)
        return self.kinds[key]


def partial_layouts(
    q: Question, limits: Bounds, nodes: int, choices: InnerChoices, rejected: dict[str, int]
) -> Iterator[PartialLayouts]:
    """Yield partial layouts on this many nodes: every cut, shape and micro-batch that satisfies the rules, many at a time."""
    for shapes, cuts in _paired(q, _cuts(nodes * q.cluster.node.devices, any(op.expert for op in q.model.ops))):
        wanted.check()
        # --fix and --allow first, so that the counts of other rules only cover layouts that the user allows
        rules = _bounded(cuts, limits, BOUNDABLE_CUTS)
        rules |= _without_node_rule(cut_rules(replace(q, model=q.model.take(shapes)), cuts), limits)
        kept = _passing(rules, rejected, len(cuts))
        shapes, cuts = shapes[kept], cuts.take(kept)
        ranks, rank_index = np.unique(cuts.dp, return_inverse=True)
        sizes = [np.array(divisors(math.ceil(int(q.work.batch) / dp)), dtype=np.int64) for dp in ranks.tolist()]
        cut_index, size_index = _pair_with_choices(np.array([len(size) for size in sizes], dtype=np.int64), rank_index)
        if not len(cut_index):
            continue
        shapes = shapes[cut_index]
        layouts = replace(cuts.take(cut_index), mbs=np.concatenate(sizes)[size_index])
        model = q.model.take(shapes)
        kind = choices.of(layouts, np.broadcast_to(model.decoder.layers, len(layouts)))
        weights = np.array(choices.all, dtype=np.int64)[kind]
        rules = batch_rules(replace(q, model=model), layouts) | _bounded(layouts, limits, ("mbs",))
        kept = _passing(rules, rejected, len(layouts), weights)
        for dropped, times in zip(choices.dropped, np.bincount(kind[kept]).tolist(), strict=False):
            for rule, number in dropped.items():
                rejected[rule] = rejected.get(rule, 0) + number * times
        size = np.array([len(table["zero"]) for table in choices.tables], dtype=np.int64)[kind]
        kept &= size > 0
        if kept.any():
            floor = np.zeros(np.count_nonzero(kept))
            yield PartialLayouts(shapes[kept], layouts.take(kept), kind[kept], size[kept], floor)


def _pair_with_choices(sizes: Ints, kinds: Ints) -> tuple[Ints, Ints]:
    """Pair every row with every choice of its kind (`sizes[kind]` of them): return the row index and the choice index of each pair."""
    size = sizes[kinds]
    outer = np.repeat(np.arange(len(kinds)), size)
    first = (np.cumsum(sizes) - sizes)[kinds] - (np.cumsum(size) - size)
    return outer, np.arange(len(outer)) + first[outer]


def _paired(q: Question, cuts: Layouts) -> Iterator[tuple[Ints, Layouts]]:
    """Yield every cut with every shape (its index), many at a time. Shapes are strided, so that the first block resembles the rest."""
    shapes = np.arange(np.size(q.model.variant))
    parts = -(-len(shapes) // max(1, BLOCK_PAIRS // len(cuts)))
    for part in range(parts):
        chosen = shapes[part::parts]
        for first in range(0, len(cuts), BLOCK_CUTS):
            rows = np.arange(first, min(first + BLOCK_CUTS, len(cuts)))
            yield np.repeat(chosen, len(rows)), cuts.take(np.tile(rows, len(chosen)))


def completed(q: Question, partial: PartialLayouts, choices: InnerChoices) -> Iterator[tuple[Question, Layouts, Floats]]:
    """Yield partial layouts completed with all their inner choices, in blocks of about BLOCK_SIZE, with their lower bounds."""
    columns = {axis: np.concatenate([table[axis] for table in choices.tables]) for axis in INNER}
    sizes = np.array([len(table["zero"]) for table in choices.tables], dtype=np.int64)
    ends: Ints = np.cumsum(partial.size)
    first = before = 0
    while first < len(ends):
        wanted.check()
        last = max(first + 1, int(np.searchsorted(ends, before + BLOCK_SIZE, side="right")))
        outer, inner = _pair_with_choices(sizes, partial.kind[first:last])
        outer += first
        axes = {axis: getattr(partial.layouts, axis)[outer] for axis in (*CUTS, "mbs")}
        layouts = Layouts(**axes, **{axis: values[inner] for axis, values in columns.items()})
        yield replace(q, model=q.model.take(partial.shape[outer])), layouts, partial.floor[outer]
        first, before = last, int(ends[last - 1])


def _without_node_rule(rules: dict[str, Mask], limits: Bounds) -> dict[str, Mask]:
    """Return the rules; where the user bounds tp, without the one that keeps tp inside a node."""
    return {rule: mask for rule, mask in rules.items() if not (rule == TP_IN_NODE and "tp" in limits)}


BOUNDABLE_CUTS = ("dp", *CUTS)


def concatenated(parts: Sequence[Layouts]) -> Layouts:
    """Return the rows of several blocks of layouts, one after another."""
    return Layouts(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Layouts)})


def _passing(rules: dict[str, Mask], rejected: dict[str, int], length: int, weights: Ints | None = None) -> Mask:
    """Return a mask of the rows that pass every rule. A dropped row counts under the first rule it breaks, once or `weights` times."""
    passing = np.ones(length, dtype=bool)
    for rule, mask in rules.items():
        dropped: Mask = passing & ~mask
        rejected[rule] = rejected.get(rule, 0) + int(dropped.sum() if weights is None else weights[dropped].sum())
        passing &= mask
    return passing


def _bounded(a: Layouts, limits: Mapping[str, tuple[int, int]], axes: tuple[str, ...]) -> dict[str, Mask]:
    """Return --fix and --allow as rules."""
    masks: dict[str, Mask] = {}
    for axis, (least, most) in limits.items():
        if axis in axes:
            values = getattr(a, axis)
            masks[f"{ASKED} {axis}"] = (values >= least) & (values <= most)
    return masks


@lru_cache(maxsize=4)
def _cuts(devices: int, mixture: bool) -> Layouts:
    """Return every factorization of `devices` into dp_replicate x dp_shard x tp x pp x cp, with every ep that divides dp_shard x cp x tp /
    etp, for experts that are whole (etp 1) or cut like the other layers (etp = tp)."""
    rows: list[tuple[int, ...]] = []
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            for cp in divisors(devices // (tp * pp)):
                dp = devices // (tp * pp * cp)
                for shard in divisors(dp):
                    if not mixture:
                        rows.append((dp // shard, shard, tp, pp, cp, 1, 1))
                        continue
                    for etp in sorted({1, tp}):
                        sizes = divisors(shard * cp * tp // etp)
                        # whole experts on every tensor-parallel rank would be as many copies
                        rows += [(dp // shard, shard, tp, pp, cp, ep, etp) for ep in sizes if ep > 1 or etp == tp]
    table = np.array(rows, dtype=np.int64)
    return Layouts.of(**dict(zip(CUTS, table.T, strict=True)))


def usable_part(q: Question) -> tuple[int, int] | None:
    """Return the largest part of the cluster, as nodes and devices per node, over which the model can be cut; None where it cannot be cut
    over any of the nearest parts. 100,000 devices are 2^5 x 5^5: no batch, head or layer count has those fives, but 98,304 devices fit."""
    most, size = q.cluster.node_count, q.cluster.node.devices
    nodes = range(most, max(0, int(0.8 * most) - 1), -1)
    every = ((n, d) for n in nodes for d in range(size, 0, -1) if n and (n, d) != (most, size))
    parts = sorted(every, key=lambda p: -p[0] * p[1])
    for count, devices in parts[:MAX_SUBCLUSTERS]:
        node = replace(q.cluster.node, chips=((devices, q.chip),))
        part = replace(q, cluster=replace(q.cluster, nodes=((count, node),)))
        if np.logical_and.reduce(list(cut_rules(part, _copied(count * devices)).values())).any():
            return count, devices
    return None


def _copied(devices: int) -> Layouts:
    """Return all cuts with dp_shard = ep = 1. If any cut passes the rules on devices, one of these does, so they suffice to test
    feasibility."""
    rows = [(tp, pp, cp) for tp in divisors(devices) for pp in divisors(devices // tp) for cp in divisors(devices // (tp * pp))]
    tp, pp, cp = np.array(rows, dtype=np.int64).T
    return Layouts.of(dp_replicate=devices // (tp * pp * cp), tp=tp, pp=pp, cp=cp)


def _inner(
    q: Question, pp: int, per_stage: int, sharded: int, tensor: int, *, offloads: bool = False, named: bool = False
) -> dict[str, Ints]:
    """Return every combination of ZeRO stage, recompute, sequence parallelism, schedule and offload for partial layouts with these
    stages. `sharded`: dp_shard x cp > 1; `tensor`: tp > 1; `named`: the user bounds recompute, so that no way is left out."""
    f = q.work.framework
    schedules = [(SCHEDULES.index("1f1b"), 1)] if pp == 1 or "1f1b" in f.schedules else []
    if pp > 1 and "naive" in f.schedules:
        schedules.append((SCHEDULES.index("naive"), 1))
    if pp > 1 and "interleaved" in f.schedules:
        schedules += [(SCHEDULES.index("interleaved"), v) for v in divisors(per_stage)[1:]]
    if pp > 1 and "zero-bubble" in f.schedules:
        schedules.append((SCHEDULES.index("zero-bubble"), 1))
    choices: dict[str, list[int]] = {
        "zero": list(f.zero) if sharded else [0],
        "recompute": [RECOMPUTE.index(how) for how in f.recompute if recomputes(q, how) and (named or saves(q, how))],
        "sp": {"never": [0], "choice": [0, 1], "always": [1]}[f.sequence_parallel] if tensor else [0],
        "plan": list(range(len(schedules))),
        "offload": [0, *(map(OFFLOAD.index, f.offload) if offloads else ())],
    }
    axes = dict(zip(choices, np.array(list(product(*choices.values())), dtype=np.int64).T, strict=True))
    which = axes.pop("plan")
    table = np.array(schedules, dtype=np.int64)
    return axes | {"schedule": table[which, 0], "vpp": table[which, 1]}


def _per_stage(q: Question, layers: Ints, pp: Ints) -> Ints:
    """Return the layers per stage where stages are equal, counting the embedding and the head where the framework can; else 1."""
    counted = q.work.framework.embedding_layers & ((layers + 2) % pp == 0)
    return np.where(layers % pp == 0, layers // pp, np.where(counted, (layers + 2) // pp, 1))
