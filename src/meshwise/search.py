"""Search: enumerate layouts, drop those that break a rule, price the rest in blocks, keep the best. Exhaustive, so 'best' is exact."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwise.cost.memory import KINDS
from meshwise.cost.train import PARTS, Cost, Question, peak, price, stage_layers
from meshwise.errors import UserError
from meshwise.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Floats, Ints, Layouts

BLOCK = 1 << 14
"""Layouts priced at once: about 130 arrays of them fit in a core's cache."""
PAIRS = 1 << 18
"""Cuts, each with a shape, that rules are asked of at once."""
TIES = 32
"""Layouts kept for each that is asked for: near-ties are told as one."""
TP_IN_NODE = "tp stays inside a node"
ASKED = "--fix or --allow"
PADDING = "padding the batch up to dp is at most a fifth of what is computed"
Mask = NDArray[np.bool_]
Bounds = Mapping[str, tuple[int, int]]
"""Per axis, the least and the most a user allows."""


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
        cost = price(asked, block)
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
    return Layouts.of(tp=none), Cost(dict.fromkeys(PARTS, none), dict.fromkeys(KINDS, none))


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
    devices = [count * q.cluster.nodes[0][1].devices for count in nodes or (q.cluster.node_count,)]
    whole = sorted({n for number in devices for n in divisors(number)})
    for axis, (least, most) in limits.items():
        if axis in CUT_AXES and not any(least <= n <= most for n in whole):
            near = [max(n for n in whole if n < least), *(n for n in whole if n > most)][:2]
            span = f"{least}" if least == most else f"{least}..{most}"
            raise UserError(
                f"{ASKED} {axis}={span}: none divides the {devices[-1]:,} devices; the nearest that does is {' or '.join(map(str, near))}"
            )


def divisors(n: int) -> list[int]:
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def blocks(q: Question, limits: Bounds, nodes: tuple[int, ...], rejected: dict[str, int]) -> Iterator[tuple[Question, Layouts]]:
    """Valid layouts in blocks of about BLOCK, with the question each block is priced under: a stack of shapes is taken apart to match."""
    waiting: list[tuple[Ints, Layouts]] = []
    for count in nodes or (q.cluster.node_count,):
        cuts = _cuts(q, count * q.cluster.nodes[0][1].devices)
        for pairs, some in _paired(q, cuts):
            here = replace(q, model=q.model.take(pairs))
            # What the user left open first: a rule that drops none of it is not why nothing is left.
            kept = _all(_bounded(some, limits, CUT_AXES) | _allowed(cut_rules(here, some), limits), rejected, len(some))
            for group in _expanded(replace(q, model=q.model.take(pairs[kept])), pairs[kept], some.take(kept)):
                waiting.append(group)
                if sum(len(layouts) for _, layouts in waiting) >= BLOCK:
                    yield from _checked(q, waiting, limits, rejected)
                    waiting = []
    yield from _checked(q, waiting, limits, rejected)


def _paired(q: Question, cuts: Layouts) -> Iterator[tuple[Ints, Layouts]]:
    """Every cut with every shape, many at a time: which shape, and the cut."""
    shapes = np.arange(np.size(q.model.variant))
    step = max(1, PAIRS // len(cuts))
    for start in range(0, len(shapes), step):
        some = shapes[start : start + step]
        yield np.repeat(some, len(cuts)), cuts.take(np.tile(np.arange(len(cuts)), len(some)))


def _expanded(q: Question, pairs: Ints, cuts: Layouts) -> Iterator[tuple[Ints, Layouts]]:
    """Every cut with all that can be chosen inside it. Cuts with the same choices are expanded together."""
    layers = np.broadcast_to(q.model.decoder.layers, len(cuts))
    keys = np.stack([cuts.dp, cuts.pp, layers, cuts.dp_shard > 1, cuts.tp > 1])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    groups: list[Ints] = np.split(np.argsort(which.ravel(), kind="stable"), np.cumsum(np.bincount(which.ravel()))[:-1])
    for key, group in zip(distinct.T.tolist(), groups, strict=bool(len(cuts))):
        inner = _inner(q, *key)
        size = len(inner["mbs"])
        for first in range(0, len(group), max(1, BLOCK // size)):
            rows = group[first : first + max(1, BLOCK // size)]
            outer = {axis: np.repeat(getattr(cuts, axis)[rows], size) for axis in _CUT_AXES}
            yield (
                np.repeat(pairs[rows], size),
                Layouts(**outer, **{axis: np.tile(values, len(rows)) for axis, values in inner.items()}),
            )


def _checked(
    q: Question, waiting: list[tuple[Ints, Layouts]], limits: Bounds, rejected: dict[str, int]
) -> Iterator[tuple[Question, Layouts]]:
    """What of the waiting layouts keeps to the rules, as one block."""
    if not waiting:
        return
    pairs, layouts = np.concatenate([pairs for pairs, _ in waiting]), _concatenated([layouts for _, layouts in waiting])
    here = replace(q, model=q.model.take(pairs))
    kept = _all(inner_rules(here, layouts) | _bounded(layouts, limits, _INNER_AXES), rejected, len(layouts))
    if kept.any():
        yield replace(q, model=q.model.take(pairs[kept])), layouts.take(kept)


def _allowed(rules: dict[str, Mask], limits: Bounds) -> dict[str, Mask]:
    """A user who names a range of tp has decided for themselves whether it may leave a node."""
    return {rule: mask for rule, mask in rules.items() if not (rule == TP_IN_NODE and "tp" in limits)}


_CUT_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
CUT_AXES = (*_CUT_AXES, "dp")
_INNER_AXES = ("mbs", "vpp", "zero", "recompute", "sp", "schedule", "offload")


def _concatenated(parts: list[Layouts]) -> Layouts:
    return Layouts(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Layouts)})


def _all(rules: dict[str, Mask], rejected: dict[str, int], length: int) -> Mask:
    """Rows that pass every rule; each row that does not is counted under the first it breaks."""
    left = np.ones(length, dtype=bool)
    for rule, mask in rules.items():
        _count(rejected, rule, left & ~mask)
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
    return Layouts.of(**dict(zip(_CUT_AXES, table.T, strict=True)))


def fewer_nodes(q: Question) -> int:
    """The most nodes, fewer than there are, over which the model can be cut at all; 0 where none of the nearest fifth is.

    100,000 devices are 2^5 x 5^5: no batch, head or layer count has those fives, and 98,304 of them do.
    """
    whole, each = q.cluster.node_count, q.cluster.nodes[0][1].devices
    for count in range(whole - 1, int(0.8 * whole), -1):
        cuts = _cuts(q, count * each)
        if np.logical_and.reduce(list(cut_rules(q, cuts).values())).any():
            return count
    return 0


def cut_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """What a way to cut the model must keep to: masks that prune the search, count the rejects and word the error for one layout."""
    d, work, f = q.model.decoder, q.work, q.work.framework
    times = q.model.times  # not every layer has experts
    experts = max((op.count // times[block] for block, op in q.model.placed if op.expert), default=1)
    heads, kv_heads = np.maximum(d.heads, 1), np.maximum(d.kv_heads, 1)
    left = stage_layers(q, a)[1]
    layers = (d.layers % a.pp == 0) | (f.embedding_layers & (left >= 0)) | f.balances_stages
    return {
        "tp divides heads": (heads % a.tp == 0) | (np.equal(d.heads, 0)),
        "tp divides KV heads, or they divide it": (kv_heads % a.tp == 0) | (a.tp % kv_heads == 0),
        "tp divides the FFW width": (np.asarray(d.ffn) % a.tp == 0),
        "tp divides recurrent heads": np.all(
            [np.asarray(op.m) % a.tp == 0 for op in q.model.ops if op.kind == "scan" and op.state] or [a.tp > 0],
            axis=0,
        ),
        TP_IN_NODE: q.cluster.nodes[0][1].devices % a.tp == 0,  # 6 in nodes of 8 leaves some groups astride two
        "pp is at most the number of layers": a.pp <= d.layers,
        "pp cuts the layers into stages": layers,
        "cp where the framework has it": (a.cp == 1) | f.context_parallel,
        "cp needs attention": (a.cp == 1) | any(op.kind == "attention" for op in q.model.ops),
        "cp halves divide the sequence": (a.cp == 1) | (work.seq % (2 * a.cp) == 0),
        **({PADDING: _padding(q, a) <= 1.25} if f.pads_batch else {"dp divides the batch": work.batch % a.dp == 0}),
        "ep divides the experts": experts % a.ep == 0,
        "ZeRO where the framework has it": (a.dp_shard == 1) | (len(f.zero) > 0),
        "ZeRO over some of the data ranks where the framework has it": (a.dp_shard == 1)
        | (a.dp_replicate == 1)
        | f.shards_partly,
    }


def _padding(q: Question, a: Layouts) -> Floats:
    """Sequences computed over sequences of the batch, where data ranks need not divide it."""
    each = a.dp * a.mbs
    return np.ceil(q.work.batch / each) * each / q.work.batch


def _inner(q: Question, dp: int, pp: int, layers: int, shared: int, cut: int) -> dict[str, Ints]:
    """Every micro-batch, ZeRO stage, recompute, sequence parallelism, schedule and offload for cuts with so many data ranks and stages,
    that share state (`shared`) and cut layers (`cut`) or do not."""
    f = q.work.framework
    schedules = [(SCHEDULES.index("1f1b"), 1)]
    if pp > 1 and "interleaved" in f.schedules:
        schedules += [(SCHEDULES.index("interleaved"), v) for v in divisors(_per_stage(q, layers, pp))[1:]]
    if pp > 1 and "zero-bubble" in f.schedules:
        schedules.append((SCHEDULES.index("zero-bubble"), 1))
    choices: dict[str, list[int]] = {
        "mbs": divisors(math.ceil(int(q.work.batch) / dp)),
        "zero": list(f.zero) if shared else [0],
        "recompute": [RECOMPUTE.index(how) for how in f.recompute],
        "sp": {"never": [0], "choice": [0, 1], "always": [1]}[f.sequence_parallel] if cut else [0],
        "plan": list(range(len(schedules))),
        "offload": list(range(len(OFFLOAD))) if f.offload else [0],
    }
    grid = np.meshgrid(*(np.array(values, dtype=np.int64) for values in choices.values()), indexing="ij")
    axes = dict(zip(choices, (axis.ravel() for axis in grid), strict=True))
    which = axes.pop("plan")
    table = np.array(schedules, dtype=np.int64)
    return axes | {"schedule": table[which, 0], "vpp": table[which, 1]}


def _per_stage(q: Question, layers: int, pp: int) -> int:
    """Layers of a stage where all have as many, the embedding and the head counted as one each where the framework can; else 1."""
    if layers % pp == 0:
        return layers // pp
    return (layers + 2) // pp if q.work.framework.embedding_layers and (layers + 2) % pp == 0 else 1


def inner_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """What the rest of a layout must keep to."""
    microbatches = -(-q.work.batch // (a.dp * a.mbs))
    heads = np.maximum(1, q.model.decoder.heads // a.tp)
    rules: dict[str, Mask] = {
        **(
            {PADDING: _padding(q, a) <= 1.25}
            if q.work.framework.pads_batch
            else {"micro-batches are whole": q.work.batch % (a.dp * a.mbs) == 0}
        ),
        "interleaving needs micro-batches in multiples of pp": (a.vpp == 1) | (microbatches % a.pp == 0),
        "offloading parameters needs ZeRO 3": (a.offload < OFFLOAD.index("parameters")) | (a.zero == 3),
    }
    if q.work.framework.fused_softmax:
        rules["fused softmax needs micro-batch x heads / tp in multiples of 4"] = (a.mbs * heads) % 4 == 0
    for size in q.work.ramp:
        rules[f"batch {size} of the ramp-up divides by dp x micro-batch"] = size % (a.dp * a.mbs) == 0
    return rules


def offered_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """What the search keeps to without asking, because it enumerates nothing else."""
    f, interleaved = q.work.framework, SCHEDULES.index("interleaved")
    shared = {"never": a.sp == 0, "choice": (a.sp == 0) | (a.tp > 1), "always": (a.sp > 0) == (a.tp > 1)}
    return {
        "ep divides dp_shard x cp": (a.dp_shard * a.cp) % a.ep == 0,
        "dp_shard has a ZeRO stage of the framework": np.where(a.dp_shard > 1, np.isin(a.zero, f.zero), a.zero == 0),
        "recompute is one the framework has": np.isin(a.recompute, [RECOMPUTE.index(how) for how in f.recompute]),
        "schedule is one the framework has": np.isin(a.schedule, [SCHEDULES.index(how) for how in f.schedules]),
        "a schedule other than 1f1b needs pp": (a.schedule == 0) | (a.pp > 1),
        "vpp goes with the interleaved schedule": (a.schedule == interleaved) == (a.vpp > 1),
        "vpp cuts the layers of a stage evenly": (a.vpp == 1) | _evenly(q, a),
        "sp where the framework has it, and tp": shared[f.sequence_parallel],
        "offload where the framework has it": (a.offload == 0) | f.offload,
    }


def _evenly(q: Question, a: Layouts) -> Mask:
    """Whether stages can be cut into model chunks of as many layers, the embedding and the head counted where stages are cut so."""
    layers, chunks = q.model.decoder.layers, a.pp * a.vpp
    return (layers % chunks == 0) | (q.work.framework.embedding_layers & (layers % a.pp > 0) & ((layers + 2) % chunks == 0))


def broken(q: Question, a: Layouts) -> list[str]:
    """The rules that a single layout breaks."""
    rules = offered_rules(q, a) | cut_rules(q, a) | inner_rules(q, a)
    return [rule for rule, mask in rules.items() if not bool(np.all(mask))]
