"""Faults of a model's shape: each constraint that it breaks in a layout, and the cost, computed as the time saved without the fault."""

import math
from dataclasses import dataclass, replace

from meshwise.cost.layout import Layouts
from meshwise.cost.train.compute import DEFAULT_SMS, EVEN_HEADS_MULTIPLE, Device, product
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.models.model import Model
from meshwise.plan.shapes.stack import one_model, shapes_of
from meshwise.plan.train.rules import broken
from meshwise.plan.train.search import divisors

NOTABLE_STEP_SHARE = 0.005  # share of a step from which a fault is listed; a broken constraint is always listed
FAST_HEAD_SIZE = 128
"""Head size from which attention is fast: flash kernels fill their tiles, and softmax processes the fewest scores."""


@dataclass(frozen=True)
class Fault:
    """A constraint that a shape breaks."""

    words: str
    cost: float | None  # share of the seconds per parameter that the fault costs; None where it cannot be evaluated

    def __str__(self) -> str:
        return self.words if self.cost is None else f"{self.words} ({100 * self.cost:.1f}%)"


def faults(q: Question, base: Model, layout: Layouts) -> list[Fault]:
    """Return the faults of the shape in this layout, the most expensive first."""
    found = [*_attention(q, base, layout), *_products(q, layout), *_stages(q, base, layout), *_cuts(q, layout)]
    return sorted(found, key=lambda fault: -(fault.cost or 0.0))


def _per_parameter(q: Question, layout: Layouts) -> float:
    """Return the seconds of a step per parameter."""
    return float(evaluate(q, layout).step[0]) / q.model.params


def _saved(q: Question, other: Question, layout: Layouts) -> float:
    """Return the share of the time per parameter that another question saves in the same layout."""
    return 1 - _per_parameter(other, layout) / _per_parameter(q, layout)


def _with_sizes(q: Question, base: Model, **sizes: int) -> Question:
    """Return the question with other numbers of layers or heads."""
    d = q.model.decoder
    shape = {"hidden": d.hidden, "layers": d.layers, "heads": d.heads, "kv_heads": d.kv_heads, "ffn": d.ffn} | sizes
    if d.kv_heads == d.heads:
        shape["kv_heads"] = shape["heads"]
    return replace(q, model=one_model(base, shapes_of([shape]), 0))


def _attention(q: Question, base: Model, layout: Layouts) -> list[Fault]:
    """Return faults of the head size and the number of heads."""
    d, flash = q.model.decoder, q.work.framework.flash_attention
    found: list[Fault] = []
    size, per_device = d.head_dim, int(layout.mbs[0]) * d.heads // int(layout.tp[0])
    if size % 8 and not flash:
        whole = replace(q, model=_with_heads_of(q.model, math.ceil(size / 8) * 8))
        words = f"a head size of {size} is not a multiple of 8: attention cannot use the tensor cores"
        found.append(Fault(words, _saved(q, whole, layout)))
    elif per_device % EVEN_HEADS_MULTIPLE and not flash and q.calibration.uneven > 1:
        even = replace(q, calibration=replace(q.calibration, uneven=1.0))
        times = f"attention takes {q.calibration.uneven:.3g} times as long"
        words = f"micro-batch x heads / tp = {per_device} is not a multiple of {EVEN_HEADS_MULTIPLE}: {times}"
        found.append(Fault(words, _saved(q, even, layout)))
    fewer = _fewer_heads(d.hidden, d.heads, int(layout.tp[0])) if size < FAST_HEAD_SIZE and d.kv_heads == d.heads else 0
    if fewer and size % 8 == 0:
        even = replace(q, calibration=replace(q.calibration, uneven=1.0))  # counted as a fault of its own above
        saved = _saved(even, _with_sizes(even, base, heads=fewer), layout)
        why = "flash attention is slow in small heads" if flash else f"softmax passes over {d.heads / fewer:.2g} times the scores"
        if saved >= NOTABLE_STEP_SHARE:
            found.append(Fault(f"{d.heads} heads of {size} where {fewer} of {d.hidden // fewer} would do: {why}", saved))
    return found


def _with_heads_of(model: Model, size: int) -> Model:
    """Return the model with attention computed as if heads had another size."""
    ops = tuple((block, replace(op, n=size, k=size) if op.kind == "attention" else op) for block, op in model.placed)
    return replace(model, placed=ops)


def _fewer_heads(hidden: int, heads: int, tp: int) -> int:
    """Return the largest number of heads, at most this many, that tp divides and whose size is at least FAST_HEAD_SIZE and a multiple
    of 8; 0 where there is none."""
    sizes = (hidden // n for n in range(heads, 0, -1) if hidden % n == 0 and n % tp == 0)
    return next((hidden // size for size in sizes if size >= FAST_HEAD_SIZE and size % 8 == 0), 0)


def _products(q: Question, layout: Layouts) -> list[Fault]:
    """Return faults of products whose tiles overhang their edges or whose waves do not fill the device."""
    tiles, waves = quantization_losses(q, layout)
    cost = evaluate(q, layout)
    share = float(cost.time["matmul"][0] / cost.step[0])
    d, tp = q.model.decoder, int(layout.tp[0])
    widths = {f"{name} {width} / tp {tp} = {width / tp:g}": width // tp for name, width in (("hidden", d.hidden), ("FFW", d.ffn))}
    ragged = {step: [words for words, width in widths.items() if width % step] for step in (8, 128)}
    found: list[Fault] = []
    if ragged[8]:
        why = f"{' and '.join(ragged[8])}, not a multiple of 8: matrix products cannot use the tensor cores"
        found.append(Fault(why, tiles * share))
    elif tiles * share >= NOTABLE_STEP_SHARE:
        why = f"{' and '.join(ragged[128])}, not a multiple of 128: " if ragged[128] else ""
        found.append(Fault(f"{why}tiles at the edges of matrix products are partly empty", tiles * share))
    if waves * share >= NOTABLE_STEP_SHARE:
        found.append(Fault(f"the last wave of tiles does not fill the {q.chip.sms or DEFAULT_SMS} SMs", waves * share))
    return found


def quantization_losses(q: Question, layout: Layouts) -> tuple[float, float]:
    """Return the shares of a layer's product time, forward and backward, lost to partial tiles and to partial waves."""
    device = Device.of(q.chip, q.calibration, q.work.precision)
    endless = replace(device, sms=1)  # same rate in waves of one tile, so that no wave is partly empty
    tp, rows = int(layout.tp[0]), float(layout.mbs[0] * q.work.seq / layout.cp[0])
    taken = tiled = ideal = 0.0
    for block, op in q.model.placed:
        if op.kind != "matmul" or block not in q.model.times:
            continue
        cut = min(tp, q.model.decoder.kv_heads) if op.shard == "kv" else tp if op.shard == "column" else 1
        n, k = op.n / cut, op.k / (tp if op.shard == "row" else 1)
        for m, wide, deep in ((rows, n, k), (rows, k, n), (n, k, rows)):
            whole = float(product(device, m, wide, deep)[0])
            smooth = 2 * m * wide * (deep + q.calibration.depth) / (device.peak * float(device.share))
            taken += whole
            tiled += min(whole, float(product(endless, m, wide, deep)[0]))
            ideal += min(whole, smooth)
    return (max(0.0, (tiled - ideal) / taken), (taken - tiled) / taken) if taken else (0.0, 0.0)


def _stages(q: Question, base: Model, layout: Layouts) -> list[Fault]:
    """Return faults of the number of layers: stages with empty slots, or a last stage that has as many layers as the others and
    the head."""
    layers, pp, f = q.model.decoder.layers, int(layout.pp[0]), q.work.framework
    if pp == 1 or not f.embedding_layers:
        return []
    per_stage = layers // pp if layers % pp == 0 else math.ceil((layers + 2) / pp)
    full = per_stage * pp - 2
    other = _with_sizes(q, base, layers=full) if 0 < full != layers else q
    saved = _saved(q, other, layout) if other is not q and not broken(other, layout) else 0.0
    if saved < NOTABLE_STEP_SHARE:
        return []
    if layers % pp == 0:
        words = f"{layers} layers over {pp} equal stages give the last one the head as well; {full} and the vocabulary would divide evenly"
    else:
        slots = f"{full - layers} {'slot' if full - layers == 1 else 'slots'}"
        words = f"{layers} layers and the vocabulary over {pp} stages of {per_stage} leave {slots} empty"
    return [Fault(words, saved)]


def _cuts(q: Question, layout: Layouts) -> list[Fault]:
    """Return the next larger tp and pp that the shape rules out."""
    d, tp, pp = q.model.decoder, int(layout.tp[0]), int(layout.pp[0])
    found: list[Fault] = []
    wider = min((n for n in divisors(q.cluster.node.devices) if n > tp), default=0)
    for what, width in (("heads", d.heads), ("of FFW width", d.ffn)):
        if wider and width % wider:
            found.append(Fault(f"{width} {what} cannot be cut by tp {wider}", None))
    f = q.work.framework
    deeper = min((n for n in divisors(q.cluster.devices // tp) if pp < n <= d.layers), default=0)
    if deeper and d.layers % deeper and not (f.embedding_layers or f.balances_stages):
        found.append(Fault(f"{d.layers} layers cannot be cut by pp {deeper}", None))
    return found
