"""Search shapes and layouts together: the fastest layout of every shape, and what each shape gives up."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from meshwise.catalogue import records
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, Bounds
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak
from meshwise.plan.shapes.faults import Fault, faults
from meshwise.plan.shapes.stack import Shapes, Stack, one_model
from meshwise.plan.train.choice import Choice, choice, too_large
from meshwise.plan.train.search import BLOCK, InnerChoices, PartialLayouts, completed, partial_layouts, search

BATCH = 1 << 10
"""Partial layouts evaluated between two checks of which can still be among the best."""
ENDLESS = 1 << 30
ROUNDING = 1 + 1e-9
"""Tolerance of lower bounds, which add up in another order than the values they bound."""


@dataclass(frozen=True)
class Fastest:
    """Per shape, its fastest layout that fits; for shapes that are not among the best, one that may be slower; infinite where none
    fits or none was worth evaluating."""

    shapes: Shapes
    params: Floats
    step: Floats
    layouts: Layouts
    candidates: int
    """Shapes x layouts that satisfy every rule, evaluated or ruled out by their lower bound."""
    rejected: dict[str, int]

    @property
    def per_parameter(self) -> Floats:
        return self.step / self.params

    def order(self) -> Ints:
        """Return the shapes that fit, the fastest per parameter first; equal ones by their sizes."""
        keys = [getattr(self.shapes, f.name) for f in fields(Shapes)]
        order = np.lexsort([*keys, self.per_parameter])
        return order[np.isfinite(self.step[order])]


def fastest(q: Question, stack: Stack, bounds: Bounds, top: int) -> Fastest:
    """Return the `top` fastest shapes, each with its fastest layout, out of every shape with every layout.

    Partial layouts are evaluated in the order of a lower bound on their time per parameter, until that bound exceeds the last of the best.
    So the best are exact; other shapes may be listed slower than they are.
    """
    asked, choices, rejected = replace(q, model=stack), InnerChoices(q, bounds), dict[str, int]()
    params, candidates = np.asarray(stack.params, float), 0
    best = _Best.of(len(stack.shapes))
    for some in partial_layouts(asked, bounds, q.cluster.node_count, choices, rejected):
        candidates += some.number
        for promising in _in_order(asked, some, params, best, min(top, len(params))):
            for here, layouts in completed(asked, promising, choices):
                fits = peak(here, layouts) <= _capacity(q)
                if fits.any():
                    layouts, model = layouts.take(fits), here.model.take(fits)
                    best.update(model.variant, layouts, evaluate(replace(here, model=model), layouts).step)
    return Fastest(
        stack.shapes, params, best.step, Layouts(**best.axes), candidates, {rule: n for rule, n in rejected.items() if n}
    )


def _capacity(q: Question) -> float:
    return q.chip.memory * (1 - q.work.reserve)


def _least(q: Question, some: PartialLayouts) -> Floats:
    """Return the lower bound of each partial layout that may fit, with as little recompute as fits; infinity for the others."""
    here = replace(q, model=q.model.take(some.shape))
    ways = sorted(map(RECOMPUTE.index, q.work.framework.recompute))  # the fastest first
    fits = np.stack([leanest(here, some.layouts, how) <= _capacity(q) * ROUNDING for how in ways])
    found, rows = np.full(len(some.shape), np.inf), np.flatnonzero(fits.any(axis=0))
    if len(rows):
        recompute = np.array(ways)[fits[:, rows].argmax(axis=0)]
        found[rows] = floor(replace(q, model=q.model.take(some.shape[rows])), some.layouts.take(rows), recompute)
    return found


def _in_order(q: Question, some: PartialLayouts, params: Floats, best: "_Best", top: int) -> Iterator[PartialLayouts]:
    """Yield partial layouts by their lower bound per parameter, until it exceeds the last of the `top` best; skip those whose
    shape is already faster."""
    a, code = some.layouts, some.shape
    for axis in (a.tp, a.pp, a.cp, a.mbs):  # all that a floor depends on
        code = code * (int(axis.max()) + 1) + axis
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    least = np.concatenate([_least(q, some.take(first[i : i + BLOCK])) for i in range(0, len(first), BLOCK)])[which]
    per = least / params[some.shape]
    order = np.argsort(per)
    for rows in np.split(order, range(BATCH, len(order), BATCH)):
        limit = np.partition(best.step / params, top - 1)[top - 1] * ROUNDING
        if not per[rows[0]] <= limit or np.isinf(per[rows[0]]):
            return
        rows = rows[(per[rows] <= limit) & (least[rows] <= best.step[some.shape[rows]] * ROUNDING) & np.isfinite(per[rows])]
        if len(rows):
            yield some.take(rows)


@dataclass(frozen=True)
class _Best:
    """The fastest layout of every shape so far."""

    step: Floats
    axes: dict[str, Ints]

    @staticmethod
    def of(number: int) -> "_Best":
        return _Best(np.full(number, np.inf), {f.name: np.ones(number, dtype=np.int64) for f in fields(Layouts)})

    def update(self, shape: Ints, layouts: Layouts, seconds: Floats) -> None:
        """Keep the fastest layout of each shape; equal ones in the order of their axes, as the search of one model does."""
        np.minimum.at(found := self.step.copy(), shape, seconds)
        rows = np.flatnonzero(seconds == found[shape])
        was = np.unique(shape[rows])
        both = np.concatenate([was, shape[rows]])
        axes = {name: np.concatenate([values[was], getattr(layouts, name)[rows]]) for name, values in self.axes.items()}
        order = np.lexsort([*axes.values(), np.concatenate([self.step[was], seconds[rows]]), both])
        which, first = np.unique(both[order], return_index=True)
        self.step[which] = found[which]
        for name, values in self.axes.items():
            values[which] = axes[name][order[first]]


def floor(q: Question, a: Layouts, recompute: Ints) -> Floats:
    """Return a lower bound on the seconds of any layout with these cuts and micro-batches and at least this much recompute: norms
    and state sharded as far as possible, free gradient reduction, and no bubble where a schedule could avoid it."""
    f = q.work.framework
    plain = f.schedules == ("1f1b",)
    zero = np.where(a.dp > 1, max(f.zero, default=0), 0)
    best = Layouts.of(**_shared_out(q, a), zero=zero, recompute=recompute, vpp=1 if plain else ENDLESS)
    ideal = replace(q.calibration, hidden_dp=float(ENDLESS), exposed_stage=q.calibration.exposed_stage if plain else 0.0)
    return evaluate(replace(q, calibration=ideal), best).step


def leanest(q: Question, a: Layouts, recompute: int) -> Floats:
    """Return a lower bound on the bytes of any layout with these cuts, micro-batches and recompute.

    ZeRO 3 gathers a layer ahead, which in a stage of one or two layers is all of it. The fuller of two stages is chosen before activations
    are calibrated, so their calibration counts only where it lowers the bound."""
    f = q.work.framework
    stages = {max(stage for stage in (0, *f.zero) if stage < 3), max(f.zero, default=0)}
    as_computed = replace(q, calibration=replace(q.calibration, activations=1.0))
    axes = _shared_out(q, a) | {"recompute": np.array(recompute), "offload": np.array((len(OFFLOAD) - 1) * f.offload)}
    found = [peak(as_computed, Layouts.of(**axes, zero=np.where(a.dp > 1, stage, 0))) for stage in stages]
    return np.min(found, axis=0) * min(1.0, q.calibration.activations)


def _shared_out(q: Question, a: Layouts) -> dict[str, Ints]:
    """Return the axes of partial layouts with state sharded over all data ranks, and norms over all tensor ranks where the
    framework can."""
    sp = (a.tp > 1) & (q.work.framework.sequence_parallel != "never")
    return {"dp_shard": a.dp, "tp": a.tp, "pp": a.pp, "cp": a.cp, "mbs": a.mbs, "sp": sp.astype(np.int64)}


@dataclass(frozen=True)
class Row:
    """One shape with its best layout, and what it gives up."""

    shape: dict[str, int]
    params: float
    choice: Choice | None
    """None where no layout fits."""
    faults: list[Fault]
    """Why none fits, where none does."""

    @staticmethod
    def of(q: Question, stack: Stack, found: Fastest, i: int, bounds: Bounds) -> "Row":
        """Evaluate the i-th shape as a model of its own."""
        shape, params = stack.shapes.row(i), float(found.params[i])
        asked = replace(q, model=one_model(stack.base, stack.shapes, i))
        if not np.isfinite(found.step[i]):
            return Row(shape, params, None, [Fault(too_large(asked, search(asked, bounds=bounds, top=1)), None)])
        layout = found.layouts.take(np.array([i]))
        return Row(shape, params, choice(asked, layout, evaluate(asked, layout), 0), faults(asked, stack.base, layout))

    @property
    def name(self) -> str:
        return "x".join(str(self.shape[axis]) for axis in ("hidden", "layers", "heads"))

    @property
    def per_parameter(self) -> float:
        """Seconds of a step over parameters."""
        return self.choice.step / self.params if self.choice else math.inf

    def to_json(self) -> dict[str, object]:
        per = self.per_parameter if self.choice else None
        chosen = records.plain(self.choice) if self.choice else None
        return {
            **self.shape,
            "params": self.params,
            "seconds_per_parameter": per,
            "choice": chosen,
            "faults": list(map(asdict, self.faults)),
        }


def rule(found: Fastest, some: Ints) -> str:
    """Say what the fastest shapes have in common."""
    s = found.shapes.take(some)
    size = s.hidden // s.heads
    tp = found.layouts.tp[some]
    facts = [
        f"heads of {_range(size)}" + (", all multiples of 8" if np.all(size % 8 == 0) else ""),
        f"{_range(s.hidden / s.layers)} hidden units per layer",
        f"an FFW of {_range(s.ffn / s.hidden)} times the hidden size",
    ]
    whole = _largest_power(s.hidden // tp)
    if whole > 1:
        facts.append(f"hidden / tp a multiple of {whole}")
    return f"The {len(some)} fastest have " + "; ".join(facts) + "."


def _range(values: Floats) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.4g}" if low == high else f"{low:.3g} to {high:.3g}"


def _largest_power(values: Ints) -> int:
    """Return the largest power of two that divides all values."""
    common = math.gcd(*map(int, values))
    return common & -common
