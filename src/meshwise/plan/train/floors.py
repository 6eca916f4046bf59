"""Lower bounds on the time and memory of partial layouts, so that a search need not complete those that cannot be among the best."""

from dataclasses import replace

import numpy as np

from meshwise.cost.axes import MODEL_CUTS, RECOMPUTE
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak

BLOCK_SIZE = 1 << 14  # partial layouts whose bounds are computed at once
MIN_MESSAGE_SECONDS = 1e-12  # seconds that no message takes less than
ROUNDING_FACTOR = 1 + 1e-9  # tolerance of lower bounds, which add up in another order than the values they bound


def time_floors(q: Question, shape: Ints, a: Layouts) -> Floats:
    """Return the lower bound on the time of each partial layout of the model's `shape`, with as little recompute as fits; infinity where
    none fits. Bounds do not depend on how data ranks are divided into copies and shards, so they are computed once per other cut."""
    code = shape
    for axis in (getattr(a, name) for name in (*MODEL_CUTS, "mbs")):
        code = code * (int(axis.max()) + 1) + axis
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    parts = (first[i : i + BLOCK_SIZE] for i in range(0, len(first), BLOCK_SIZE))
    return np.concatenate([_floors(q, shape[rows], a.take(rows)) for rows in parts])[which]


def _floors(q: Question, shape: Ints, a: Layouts) -> Floats:
    shaped, capacity = replace(q, model=q.model.take(shape)), q.chip.memory * (1 - q.work.reserve)
    bounds = np.full(len(shape), np.inf)
    least = np.zeros(len(bounds), bool)
    """Partial layouts that may fit without recompute: no other way is faster."""
    for how in q.work.framework.recompute:
        option = RECOMPUTE.index(how)
        fits = memory_floor(shaped, a, option) <= capacity * ROUNDING_FACTOR
        rows = np.flatnonzero(fits & (np.isinf(bounds) if how == "full" else ~least))  # nothing is slower than full recompute
        least |= fits & (how == "none")
        if len(rows):
            floor = time_floor(replace(q, model=q.model.take(shape[rows])), a.take(rows), np.full(len(rows), option))
            bounds[rows] = np.minimum(bounds[rows], floor)
    return bounds


def time_floor(q: Question, a: Layouts, recompute: Ints) -> Floats:
    """Return a lower bound on the seconds of any layout with these cuts and micro-batches and at least this much recompute: norms
    and state sharded as far as possible, free gradient reduction, and the schedule with the least bubble."""
    f = q.work.framework
    axes = {**_fully_sharded(q, a), "zero": np.where(a.dp * a.cp > 1, max(f.zero, default=0), 0), "recompute": recompute}
    floors = [
        _interleaved_floor(q, axes) if schedule == "interleaved" else _plain_floor(q, axes, schedule) for schedule in f.schedules
    ]
    return np.min(floors, axis=0)


def _plain_floor(q: Question, axes: dict[str, Ints], schedule: str) -> Floats:
    """Return the seconds without gradient reduction and interleaving; without a bubble where the schedule fills it."""
    cost = evaluate(q, Layouts.of(**axes, vpp=1))
    return cost.step - cost.time["dp"] - (0.0 if schedule == "1f1b" else cost.time["bubble"])


def _interleaved_floor(q: Question, axes: dict[str, Ints]) -> Floats:
    """Return the least seconds of any number of model chunks: v chunks divide the bubble by v and send v times as much."""
    cost = evaluate(q, Layouts.of(**axes, vpp=2))
    bubble, sent = 2 * cost.time["bubble"], cost.time["p2p"] / 2
    least = np.sqrt(bubble / np.maximum(sent, MIN_MESSAGE_SECONDS))
    chunks = np.clip(least, 1, np.maximum(1, q.model.decoder.layers / axes["pp"]))
    return cost.step - cost.time["dp"] - cost.time["bubble"] - cost.time["p2p"] + bubble / chunks + sent * chunks


def memory_floor(q: Question, a: Layouts, recompute: int) -> Floats:
    """Return a lower bound on the bytes of any layout with these cuts, micro-batches and recompute. ZeRO 3 gathers a layer ahead, which in
    a stage of one or two layers is all of it. The fuller of two stages is chosen before activations are calibrated, so their calibration
    counts only where it lowers the bound. Sequence parallelism shards activations; it gathers few."""
    f = q.work.framework
    stages = {max(stage for stage in (0, *f.zero) if stage < 3), max(f.zero, default=0)}
    without_buckets = replace(q.work, framework=replace(f, bucket=0.0))
    as_computed = replace(q, work=without_buckets, calibration=replace(q.calibration, activations=1.0))
    axes = _fully_sharded(q, a) | {"recompute": np.array(recompute)}
    peaks = [
        peak(as_computed, Layouts.of(**(axes | {"sp": sp}), zero=np.where(a.dp * a.cp > 1, stage, 0)))
        for stage in stages
        for sp in (axes["sp"], np.zeros_like(a.tp))
    ]
    return np.min(peaks, axis=0) * min(1.0, q.calibration.activations)


def _fully_sharded(q: Question, a: Layouts) -> dict[str, Ints]:
    """Return the axes of partial layouts with state sharded over all data ranks, and norms over all tensor ranks where the
    framework can."""
    sp = (a.tp > 1) & (q.work.framework.sequence_parallel != "never")
    cuts = {axis: getattr(a, axis) for axis in (*MODEL_CUTS, "mbs")}
    return {**cuts, "dp_shard": a.dp, "sp": sp.astype(np.int64)}
