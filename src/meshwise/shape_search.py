"""The fastest layout of every shape, in one search over both; and what each shape gives away, in words."""

import math
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from meshwise.cost.compute import EVEN, Device, product
from meshwise.cost.train import Question, peak, price
from meshwise.layout import Floats, Ints, Layouts
from meshwise.plan import Choice, choice
from meshwise.search import Bounds, blocks, divisors
from meshwise.shapes import Shapes, Stack, one_model


@dataclass(frozen=True)
class Fastest:
    """Per shape, its fastest layout that fits; infinitely slow where none does."""

    shapes: Shapes
    params: Floats
    step: Floats
    layouts: Layouts
    candidates: int
    """Shapes x layouts that keep to every rule, and were priced."""
    rejected: dict[str, int]

    @property
    def per_parameter(self) -> Floats:
        return self.step / self.params

    def order(self) -> Ints:
        """Shapes that fit somewhere, the fastest per parameter first; equals by their numbers."""
        keys = [getattr(self.shapes, f.name) for f in fields(Shapes)]
        order = np.lexsort([*keys, self.per_parameter])
        return order[np.isfinite(self.step[order])]


def fastest(q: Question, stack: Stack, bounds: Bounds) -> Fastest:
    """Every shape with every layout, priced in blocks; only the best layout of each shape is kept."""
    capacity = q.chip.memory * (1 - q.work.reserve)
    step = np.full(len(stack.shapes), np.inf)
    kept = {f.name: np.ones(len(stack.shapes), dtype=np.int64) for f in fields(Layouts)}
    rejected: dict[str, int] = {}
    candidates = 0
    for asked, layouts in blocks(replace(q, model=stack), bounds, (), rejected):
        candidates += len(layouts)
        fits = peak(asked, layouts) <= capacity
        if not fits.any():
            continue
        layouts, model = layouts.take(fits), asked.model.take(fits)
        seconds, shape = price(replace(asked, model=model), layouts).step, model.variant
        order = np.lexsort((seconds, shape))
        which, first = np.unique(shape[order], return_index=True)
        rows = order[first]
        better = seconds[rows] < step[which]
        which, rows = which[better], rows[better]
        step[which] = seconds[rows]
        for axis, values in kept.items():
            values[which] = getattr(layouts, axis)[rows]
    return Fastest(stack.shapes, np.asarray(stack.params, float), step, Layouts(**kept), candidates, rejected)


@dataclass(frozen=True)
class Row:
    """One shape with its best layout, and what it gives away."""

    shape: dict[str, int]
    params: float
    choice: Choice | None
    """None where no layout fits."""
    faults: list[str]

    @staticmethod
    def of(q: Question, stack: Stack, found: Fastest, i: int) -> "Row":
        """The i-th shape, priced as a model of its own."""
        shape, params = stack.shapes.row(i), float(found.params[i])
        if not np.isfinite(found.step[i]):
            return Row(shape, params, None, [])
        asked = replace(q, model=one_model(stack.base, stack.shapes, i))
        layouts = found.layouts.take(np.array([i]))
        best = choice(asked, layouts, price(asked, layouts), 0)
        return Row(shape, params, best, faults(asked, best))

    @property
    def name(self) -> str:
        return "x".join(str(self.shape[axis]) for axis in ("hidden", "layers", "heads"))

    @property
    def per_parameter(self) -> float:
        """Seconds of a step over parameters."""
        return self.choice.seconds / self.params if self.choice else math.inf

    def to_json(self) -> dict[str, object]:
        per = self.per_parameter if self.choice else None
        chosen = asdict(self.choice) if self.choice else None
        return {**self.shape, "params": self.params, "seconds_per_parameter": per, "choice": chosen, "faults": self.faults}


def faults(q: Question, best: Choice) -> list[str]:
    """What a shape gives away on this cluster with its best layout: each constraint it breaks, with its numbers."""
    d, row = q.model.decoder, best.layout
    tp, mbs = int(row["tp"]), int(row["mbs"])
    size = d.hidden // d.heads
    found: list[str] = []
    if size % 8:
        found.append(f"heads of {size} are no multiple of 8: attention leaves the matrix units")
    per_device = mbs * d.heads // tp
    if not q.work.framework.flash_attention and size % 8 == 0 and per_device % EVEN and q.calibration.uneven > 1:
        found.append(
            f"micro-batch x heads / tp = {per_device} is no multiple of {EVEN}: attention takes {q.calibration.uneven:.2g} times as long"
        )
    if (d.hidden // tp) % 64:
        found.append(f"{d.hidden} / tp {tp} = {d.hidden / tp:g} is no multiple of 64: tiles are padded")
    if d.heads > 256 or size < 64:
        found.append(
            f"{d.heads} heads of {size}: softmax moves {d.heads}/{max(1, d.hidden // 128)} times the bytes of heads of 128"
        )
    lost = quantized(q, best)
    if lost > 0.05:
        found.append(f"{100 * lost:.0f}% of its products' time goes into whole tiles and waves")
    cuts = [pp for pp in divisors(q.cluster.devices // q.cluster.nodes[0][1].devices) if cuttable(q, pp)]
    if max(cuts) < 8:
        found.append(f"{d.layers} layers can be cut by pp {', '.join(map(str, cuts))} only")
    return found


def cuttable(q: Question, pp: int) -> bool:
    """Whether stages of as many layers can be made, the embedding and the head counted where the framework can."""
    layers, f = q.model.decoder.layers, q.work.framework
    return pp <= layers and (layers % pp == 0 or f.balances_stages or (f.embedding_layers and (layers + 2) % pp == 0))


def quantized(q: Question, best: Choice) -> float:
    """Share of the time of a layer's products that whole tiles and whole waves of them cost, forward and backward."""
    device = Device.of(q.chip, q.calibration, q.work.precision)
    tp, rows = int(best.layout["tp"]), float(int(best.layout["mbs"]) * q.work.seq // int(best.layout["cp"]))
    taken = ideal = 0.0
    for block, op in q.model.placed:
        if op.kind != "matmul" or block not in q.model.times:
            continue
        n = op.n / (tp if op.shard in ("column", "kv") else 1)
        k = op.k / (tp if op.shard == "row" else 1)
        for shape in ((rows, n, k), (rows, k, n), (n, k, rows)):
            taken += float(product(device, *shape)[0])
            m, wide, deep = shape
            ideal += 2 * m * wide * (deep + q.calibration.depth) / (device.peak * device.share)
    return max(0.0, 1 - ideal / taken) if taken and math.isfinite(taken) else 0.0


def rule(found: Fastest, some: Ints) -> str:
    """What the fastest shapes have in common, in words."""
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
    """The largest power of two that divides all."""
    common = math.gcd(*map(int, values))
    return common & -common
