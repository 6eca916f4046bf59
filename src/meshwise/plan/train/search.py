"""Search: enumerate layouts, drop those that break a rule, price the rest in blocks, keep the best. Exhaustive, so 'best' is exact."""

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
"""Layouts priced at once: enough that many share a cut, and few enough that their arrays stay in a core's cache."""
PAIRS = 1 << 18
"""Cuts, each with a shape, that rules are asked of at once."""
TIES = 32
"""Layouts kept for each that is asked for: near-ties are told as one."""
ASKED = "--fix or --allow"


@dataclass(frozen=True)
class Found:
    """The best layouts that fit, fastest first, and what became of the others."""

    layouts: Layouts
    cost: Cost
    priced: int
    rejected: dict[str, int]
    """Layouts by the rule that dropped them, in the order in which rules are asked."""
    smallest: float
    """Least memory that any priced layout needs per device: by how much a model that fits nowhere fails."""


def search(q: Question, *, bounds: Bounds | None = None, top: int = 10, nodes: tuple[int, ...] = ()) -> Found:
    """The `top` fastest layouts of the whole cluster, or of each number of `nodes`."""
    limits = dict(bounds or {})
    capacity = q.chip.memory * (1 - q.work.reserve)
    rejected: dict[str, int] = {}
    best = _nothing()
    kept = max(top, 1) * TIES
    priced, smallest = 0, np.inf
    for asked, block in blocks(q, limits, nodes, rejected):
        weight = peak(asked, block)
        priced += len(block)
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
    return Found(*best, priced, {rule: number for rule, number in rejected.items() if number}, float(smallest))


def _take(cost: Cost, rows: Ints) -> Cost:
    return Cost({k: v[rows] for k, v in cost.time.items()}, {k: v[rows] for k, v in cost.memory.items()})


def _nothing() -> tuple[Layouts, Cost]:
    none = np.zeros(0, dtype=np.int64)
    return Layouts.of(tp=none), Cost(dict.fromkeys(TRAIN_PARTS, none), dict.fromkeys(TRAIN_KINDS, none))


def _fastest(best: tuple[Layouts, Cost], more: tuple[Layouts, Cost], kept: int) -> tuple[Layouts, Cost]:
    """The fastest of both. Equals (to 1e-7) stand by their cp, the simplest first, and in the order of their other axes, so that the
    order of the search does not show."""
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
    """Axes that cut devices multiply to their number, so what a user fixes has to divide it."""
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
    """Valid layouts in blocks of about BLOCK, with the question each block is priced under: a stack of shapes is taken apart to match."""
    choices = Choices(q, limits)
    waiting: list[Starts] = []
    for count in nodes or (q.cluster.node_count,):
        for some in starts(q, limits, count, choices, rejected):
            waiting.append(some)
            if sum(part.number for part in waiting) >= BLOCK:
                yield from expanded(q, Starts.joined(waiting), choices)
                waiting = []
    if waiting:
        yield from expanded(q, Starts.joined(waiting), choices)


@dataclass(frozen=True)
class Starts:
    """Cuts of a shape with a micro-batch: all of a layout but what is chosen inside it. One row each."""

    shape: Ints
    layouts: Layouts
    kind: Ints
    """Which of the tables of choices it has."""
    size: Ints
    """How many choices those are."""

    @property
    def number(self) -> int:
        """Layouts that these are the starts of."""
        return int(self.size.sum())

    def take(self, rows: Ints | Mask) -> "Starts":
        return Starts(self.shape[rows], self.layouts.take(rows), self.kind[rows], self.size[rows])

    @staticmethod
    def joined(parts: "list[Starts]") -> "Starts":
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shape", "kind", "size"))
        shape, kind, size = arrays
        return Starts(shape, _concatenated([part.layouts for part in parts]), kind, size)


class Choices:
    """What can be chosen inside a cut with a micro-batch, by all that it depends on. Every kind is worked out once, rules and all."""

    def __init__(self, q: Question, limits: Bounds) -> None:
        self.q, self.limits = q, limits
        self.kinds: dict[tuple[int, ...], int] = {}
        self.tables: list[dict[str, Ints]] = []
        self.all: list[int] = []
        """Per kind, how many there are before rules."""
        self.dropped: list[dict[str, int]] = []

    def of(self, a: Layouts, layers: Ints) -> Ints:
        """The kind of each start."""
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


def starts(q: Question, limits: Bounds, nodes: int, choices: Choices, rejected: dict[str, int]) -> Iterator[Starts]:
    """Every cut of so many nodes, with every shape and every micro-batch, that keeps to the rules; many at a time."""
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
            yield Starts(pairs[kept], some.take(kept), kind[kept], size[kept])


def _each(sizes: Ints, which: Ints) -> tuple[Ints, Ints]:
    """Every row with every choice of its kind, of which there are `sizes`: the number of the row, and that of the choice."""
    size = sizes[which]
    outer = np.repeat(np.arange(len(which)), size)
    first = (np.cumsum(sizes) - sizes)[which] - (np.cumsum(size) - size)
    return outer, np.arange(len(outer)) + first[outer]


def _paired(q: Question, cuts: Layouts) -> Iterator[tuple[Ints, Layouts]]:
    """Every cut with every shape, many at a time: which shape, and the cut. Shapes from all over, so that the first are like the rest."""
    shapes = np.arange(np.size(q.model.variant))
    parts = -(-len(shapes) // max(1, PAIRS // len(cuts)))
    for some in (shapes[part::parts] for part in range(parts)):
        yield np.repeat(some, len(cuts)), cuts.take(np.tile(np.arange(len(cuts)), len(some)))


def expanded(q: Question, some: Starts, choices: Choices) -> Iterator[tuple[Question, Layouts]]:
    """Every start with all that can be chosen inside it, in blocks of about BLOCK."""
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
    """A user who names a range of tp has decided for themselves whether it may leave a node."""
    return {rule: mask for rule, mask in rules.items() if not (rule == TP_IN_NODE and "tp" in limits)}


BOUNDED_CUTS = ("dp", *CUTS)


def _concatenated(parts: list[Layouts]) -> Layouts:
    return Layouts(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Layouts)})


def _all(rules: dict[str, Mask], rejected: dict[str, int], length: int, weights: Ints | None = None) -> Mask:
    """Rows that pass every rule; each row that does not is counted under the first it breaks, as one or as many as it stands for."""
    left = np.ones(length, dtype=bool)
    for rule, mask in rules.items():
        gone: Mask = left & ~mask
        rejected[rule] = rejected.get(rule, 0) + int(gone.sum() if weights is None else weights[gone].sum())
        left &= mask
    return left


def _bounded(a: Layouts, limits: Mapping[str, tuple[int, int]], axes: tuple[str, ...]) -> dict[str, Mask]:
    """What the user fixed or allowed, as rules."""
    masks: dict[str, Mask] = {}
    for axis, (least, most) in limits.items():
        if axis in axes:
            values = getattr(a, axis)
            masks[f"{ASKED} {axis}"] = (values >= least) & (values <= most)
    return masks


def _cuts(q: Question, devices: int) -> Layouts:
    """Every way to write `devices` as dp_replicate x dp_shard x tp x pp x cp, with every ep that divides what it is laid over."""
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


def fewer_nodes(q: Question) -> int:
    """The most nodes, fewer than there are, over which the model can be cut at all; 0 where none of the nearest fifth is.

    100,000 devices are 2^5 x 5^5: no batch, head or layer count has those fives, and 98,304 of them do.
    """
    whole, each = q.cluster.node_count, q.cluster.node.devices
    for count in range(whole - 1, int(0.8 * whole), -1):
        cuts = _cuts(q, count * each)
        if np.logical_and.reduce(list(cut_rules(q, cuts).values())).any():
            return count
    return 0


def _inner(q: Question, pp: int, per_stage: int, shared: int, cut: int) -> dict[str, Ints]:
    """Every ZeRO stage, recompute, sequence parallelism, schedule and offload for cuts with stages of so many layers, that share state
    (`shared`) and cut layers (`cut`) or do not."""
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
    """Layers of a stage where all have as many, the embedding and the head counted as one each where the framework can; else 1."""
    counted = q.work.framework.embedding_layers & ((layers + 2) % pp == 0)
    return np.where(layers % pp == 0, layers // pp, np.where(counted, (layers + 2) // pp, 1))
