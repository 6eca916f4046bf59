"""Search shapes and layouts together: the fastest layout of every shape, and the faults of each shape."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from meshwise.catalogue import records
from meshwise.cost.axes import Bounds
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak_and_needs
from meshwise.plan.shapes.faults import Fault, faults
from meshwise.plan.shapes.stack import Shapes, Stack, one_model
from meshwise.plan.train.choice import Choice, choice, too_large
from meshwise.plan.train.floors import ROUNDING_FACTOR, time_floors
from meshwise.plan.train.rank import Rank
from meshwise.plan.train.search import InnerChoices, PartialLayouts, completed, partial_layouts, search

LAYOUTS_PER_ROUND = 1 << 10  # partial layouts evaluated between two checks of which can still be among the best

RISKY_FACTOR = 1e6  # puts layouts whose chance of not fitting is too high after all others


@dataclass(frozen=True)
class Fastest:
    """The fastest layout of each shape that fits. For shapes that are not among the best, the layout may not be the fastest, and the time
    is infinite where no layout fits or none was worth evaluating."""

    shapes: Shapes
    params: Floats
    step: Floats  # expected seconds, times RISKY_FACTOR where the layout may not fit
    layouts: Layouts
    candidates: int  # shapes x layouts that satisfy every rule, evaluated or ruled out by their lower bound
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
    """Return the `top` fastest shapes, each with its fastest layout, out of every shape with every layout. Partial layouts are evaluated
    in the order of a lower bound on their time per parameter, until that bound exceeds the last of the best. So the best are exact; other
    shapes may be listed slower than they are."""
    asked, choices, rejected = replace(q, model=stack), InnerChoices(q, bounds), dict[str, int]()
    params, candidates = np.asarray(stack.params, float), 0
    best = _Best.of(len(stack.shapes))
    for partial in partial_layouts(asked, bounds, q.cluster.node_count, choices, rejected):
        candidates += partial.number
        for promising in _in_order(asked, partial, params, best, min(top, len(params))):
            for block_question, layouts, _ in completed(asked, promising, choices):
                weight, needs = peak_and_needs(block_question, layouts)
                fits = weight <= q.chip.memory * (1 - q.work.reserve)
                if fits.any():
                    rank = Rank.of(q, layouts.take(fits), needs[fits])
                    layouts, model = layouts.take(fits), block_question.model.take(fits)
                    seconds = evaluate(replace(block_question, model=model), layouts).step
                    best.update(model.variant, layouts, seconds * rank.factor * np.where(rank.risky, RISKY_FACTOR, 1.0))
    return Fastest(
        stack.shapes, params, best.step, Layouts(**best.axes), candidates, {rule: n for rule, n in rejected.items() if n}
    )


def _in_order(q: Question, partial: PartialLayouts, params: Floats, best: "_Best", top: int) -> Iterator[PartialLayouts]:
    """Yield partial layouts by their lower bound per parameter, until it exceeds the last of the `top` best; skip those whose
    shape already has a faster layout."""
    least = time_floors(q, partial.shape, partial.layouts)
    per_parameter = least / params[partial.shape]
    order = np.argsort(per_parameter)
    for rows in np.split(order, range(LAYOUTS_PER_ROUND, len(order), LAYOUTS_PER_ROUND)):
        limit = np.partition(best.step / params, top - 1)[top - 1] * ROUNDING_FACTOR
        if not per_parameter[rows[0]] <= limit or np.isinf(per_parameter[rows[0]]):
            return
        promising = (per_parameter[rows] <= limit) & np.isfinite(per_parameter[rows])
        rows = rows[promising & (least[rows] <= best.step[partial.shape[rows]] * ROUNDING_FACTOR)]
        if len(rows):
            yield partial.take(rows)


@dataclass(frozen=True)
class _Best:
    """The fastest layout of every shape so far."""

    step: Floats
    axes: dict[str, Ints]

    @staticmethod
    def of(number: int) -> "_Best":
        return _Best(np.full(number, np.inf), {f.name: np.ones(number, dtype=np.int64) for f in fields(Layouts)})

    def update(self, shape: Ints, layouts: Layouts, seconds: Floats) -> None:
        """Keep the fastest layout of each shape. Ties are broken by the axes, as in the search of a single model."""
        np.minimum.at(fastest := self.step.copy(), shape, seconds)
        rows = np.flatnonzero(seconds == fastest[shape])
        improved = np.unique(shape[rows])
        both = np.concatenate([improved, shape[rows]])  # the old layout of each shape, then the new ones
        axes = {name: np.concatenate([values[improved], getattr(layouts, name)[rows]]) for name, values in self.axes.items()}
        order = np.lexsort([*axes.values(), np.concatenate([self.step[improved], seconds[rows]]), both])
        which, first = np.unique(both[order], return_index=True)
        self.step[which] = fastest[which]
        for name, values in self.axes.items():
            values[which] = axes[name][order[first]]


@dataclass(frozen=True)
class Row:
    """One shape with its best layout and its faults."""

    shape: dict[str, int]
    params: float
    choice: Choice | None  # none where no layout fits
    faults: list[Fault]  # why none fits, where none does

    @staticmethod
    def of(q: Question, stack: Stack, found: Fastest, i: int, bounds: Bounds) -> "Row":
        """Evaluate the i-th shape as a single model."""
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
            **self.shape, "params": self.params, "seconds_per_parameter": per, "choice": chosen,
            "faults": list(map(asdict, self.faults)),
        }  # fmt: skip


def rule(found: Fastest, rows: Ints) -> str:
    """Return a sentence on the properties that these shapes share."""
    s = found.shapes.take(rows)
    size = s.hidden // s.heads
    tp = found.layouts.tp[rows]
    facts = [
        f"heads of {_range(size)}" + (", all multiples of 8" if np.all(size % 8 == 0) else ""),
        f"{_range(s.hidden / s.layers)} hidden units per layer",
        f"an FFW of {_range(s.ffn / s.hidden)} times the hidden size",
    ]
    power = _largest_power(s.hidden // tp)
    if power > 1:
        facts.append(f"hidden / tp a multiple of {power}")
    return f"The {len(rows)} fastest have " + "; ".join(facts) + "."


def _range(values: Floats) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.4g}" if low == high else f"{low:.3g} to {high:.3g}"


def _largest_power(values: Ints) -> int:
    """Return the largest power of two that divides all values."""
    common = math.gcd(*map(int, values))
    return common & -common
