"""The cost of a training step: compute, communication and memory composed by the schedule, every second under a named part."""

from dataclasses import dataclass, replace

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.comm import Fabric, Reduction, Wires
from meshwise.cost.train.compute import SHORTEST_KERNEL, Device
from meshwise.cost.train.distinct import Alike, Few
from meshwise.cost.train.memory import Activations, Held, Sizes, memory, state_bytes
from meshwise.cost.train.passes import Cut, Passes, backward_bytes, passes
from meshwise.cost.train.pipeline import Pace, Stages, makespan, sampled
from meshwise.cost.train.question import Question
from meshwise.models.families.blocks import MIXTURE

GRAPH_GAP = 0.25
"""Of the gap between kernels that is left where a CUDA graph starts them: on an H200, 1.5 ms of a step of 24 passes through a layer,
against 2.5e-4 s a pass (docs/trainer.md)."""
UPDATED_TOGETHER = 2**16
"""Weights of a tensor that is updated in one kernel with others as small (trainer/adamw.py)."""
BETWEEN_PRODUCTS = ("tp", "ep")
"""Parts of a layer that wait for other devices, and so cannot be put off as gradients of weights can."""


@dataclass(frozen=True)
class Cost:
    """Struct of arrays: seconds by part and bytes by kind; `.step` and `.peak` are their sums."""

    time: dict[str, Floats]
    memory: dict[str, Floats]

    @property
    def step(self) -> Floats:
        return sum(self.time.values(), np.zeros(1))

    @property
    def peak(self) -> Floats:
        return sum(self.memory.values(), np.zeros(1))


def price(q: Question, layouts: Layouts) -> Cost:
    """Seconds and bytes of every layout. The same call serves one layout and a block of thousands: formulas are asked of the few that
    they can tell apart."""
    device, fabric = _device(q), Fabric.of(q.cluster, q.calibration)
    alike = Alike.of(q.model, q.work.batch, layouts)
    wires = Wires.of(fabric, layouts.take(alike.cuts.rows).as_floats())
    slots = Some.of(q, layouts, alike.slots(*(wires.kinds() if fabric.torus else ())))
    states = slots.other(q, layouts, alike.states)
    passed = _gathered(slots, device, alike.shapes(slots.few))
    time, computing = _microbatches(slots, passed, wires.take(alike.cuts.which[slots.few.rows]))
    once = _per_step(states, device, wires.take(alike.cuts.which[states.few.rows]))
    found = {name: slots.few.spread(seconds) for name, seconds in time.items()}
    found["bubble"] = found["bubble"] / layouts.vpp
    found["p2p"] = found["p2p"] * layouts.vpp
    found |= _exposed_per_step(once, states.few, [slots.few.spread(seconds) for seconds in computing])
    return Cost({name: found[name] for name in TRAIN_PARTS}, _memory(slots, states, layouts))


def peak(q: Question, layouts: Layouts) -> Floats:
    """Bytes alone, for a fraction of what `price` takes: what does not fit need not be timed."""
    alike = Alike.of(q.model, q.work.batch, layouts)
    slots = Some.of(q, layouts, alike.activations)
    return sum(_memory(slots, slots.other(q, layouts, alike.states), layouts).values(), np.zeros(1))


@dataclass(frozen=True)
class Some:
    """Few of the layouts, with what formulas need of them: micro-batches of a step, and layers of the fullest stage and of the last."""

    few: Few
    q: Question
    a: Layouts
    """As floats: integers would be converted anew in every formula."""
    m: Floats
    middle: Floats
    last: Floats

    @staticmethod
    def of(q: Question, layouts: Layouts, few: Few) -> "Some":
        batch, a = np.broadcast_to(q.work.batch, len(layouts)), layouts
        if not few.single:
            q, batch, a = replace(q, model=q.model.take(few.rows)), batch[few.rows], layouts.take(few.rows)
        a = a.as_floats()
        return Some(few, q, a, np.ceil(batch / (a.dp * a.mbs)), *stage_layers(q, a))

    def other(self, q: Question, layouts: Layouts, few: Few) -> "Some":
        """Others of the same layouts; the same where both are all of them."""
        return self if few.single and self.few.single else Some.of(q, layouts, few)

    @property
    def most(self) -> Floats:
        """Layers of the fullest stage in time: of two stages, the first has room for the embedding."""
        return np.where(self.a.pp == 2, layers_before(self.q, self.a, np.ones(1)), self.middle)


def _memory(slots: Some, states: Some, layouts: Layouts) -> dict[str, Floats]:
    held = Held.of(states.q.model, states.q.work, states.a, (states.middle, states.last), states.m)
    kept = Activations.of(slots.q.model, slots.q.work, slots.a, (slots.middle, slots.last), slots.m)
    return memory(slots.q.calibration, held, states.few, kept, slots.few, layouts.vpp)


def _microbatches(some: Some, p: Passes, wires: Wires) -> tuple[dict[str, Floats], Floats]:
    """Seconds that all micro-batches of a step take by part, the bubble as if vpp were 1 and between stages for each of vpp; and what
    the fullest stage and the last compute, for the two to hide what they send."""
    q, a, m, most, last = some.q, some.a, some.m, some.most, some.last
    layer, head = _layer(q, wires, p, a), _head(q, wires, p, a)
    per_layer, per_head = sum(layer.values(), np.zeros(1)), sum(head.values(), np.zeros(1))
    kinds = (most * per_layer, last * per_layer + per_head)
    heavy = np.greater(*kinds)
    layers, slot = np.where(heavy, most, last), np.where(heavy, *kinds)
    time = {name: m * layers * seconds for name, seconds in layer.items()}
    heads = m * ~heavy
    for name, seconds in head.items():
        time[name] = time[name] + heads * seconds
    time["launch"] = time["launch"] + m * stage_start(q, a)
    others = np.maximum(0.0, q.model.decoder.layers * per_layer + per_head - slot)
    time["bubble"] = _bubble(q, a, (pace(q, a, layer), pace(q, a, head)), m, slot, others)
    time["p2p"] = m * _between_stages(q, wires, a)
    # All that computing takes, the waits for the host included: else a faster chip that only waits longer would hide less.
    computing = sum((layer[name] for name in ("matmul", "attention", "elementwise", "cp", "launch")), np.zeros(1))
    return time, np.stack([most, last]) * computing


def slots(q: Question, layouts: Layouts) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Seconds of one micro-batch by part, forward and backward: in one layer, and in the head."""
    a = layouts.as_floats()
    p, wires = passes(q.model, _device(q), q.work, Cut.of(a)), Wires.of(Fabric.of(q.cluster, q.calibration), a)
    return _layer(q, wires, p, a), _head(q, wires, p, a)


def _device(q: Question) -> Device:
    device = Device.of(q.chip, q.calibration, q.work.precision)
    device = replace(device, joins=q.work.framework.joins_products and q.cluster.devices == 1)
    return device.without(q.work.framework.communication_sms) if any(op.expert for op in q.model.ops) else device


def _gathered(slots: Some, device: Device, shapes: Few) -> Passes:
    """Passes of every slot, computed once per distinct (tp, cp, ep, mbs): a few hundred however many layouts there are."""
    q = slots.q
    found = passes(q.model.take(shapes.rows), device, q.work, Cut.of(slots.a).take(shapes.rows))
    return Passes(**{name: shapes.spread(value) for name, value in vars(found).items()})


def stage_layers(q: Question, a: Layouts) -> tuple[Floats, Floats]:
    """Layers of the fullest stage and of the last, which has the head.

    Equal numbers where they divide; else the embedding and the head count as a layer each, and the last stage has what is left: 61
    layers over 16 stages are 3, fourteen times 4, and 2. Where the framework balances by FLOPs, the head counts as many layers as it is
    worth: 16 layers and a head worth 4 over 2 stages are 10 and 6.
    """
    middle = layers_before(q, a, np.ones(1)) if q.work.framework.balances_stages else _per_stage(q, a)[0]
    return middle, q.model.decoder.layers - layers_before(q, a, a.pp - 1)


def _per_stage(q: Question, a: Layouts) -> tuple[Floats, Ints]:
    """Layers of a stage that is neither the first nor the last, and whether all have as many."""
    each = q.model.decoder.layers / a.pp
    even = each == np.floor(each)
    return np.where(even, each, np.ceil((q.model.decoder.layers + 2) / a.pp)), even


def layers_before(q: Question, a: Layouts, stage: Floats) -> Floats:
    """Layers on the stages before `stage`; before the number of stages, all. A stage has what is before the next less what is before it."""
    layers = q.model.decoder.layers
    if q.work.framework.balances_stages:
        inner = sum(op.flops(1) for block, op in q.model.placed if block not in ("embedding", "head"))
        head = sum(op.flops(1) for block, op in q.model.placed if block == "head") * layers / inner
        return np.minimum(layers, np.ceil(stage * ((layers + head) / a.pp)))
    each, even = _per_stage(q, a)
    return np.where(stage < a.pp, stage * each - (~even & (stage > 0)), layers)


def _layer(q: Question, wires: Wires, p: Passes, a: Layouts) -> dict[str, Floats]:
    """Seconds of one layer and one micro-batch, forward and backward, on one device."""
    c, layers = q.calibration, q.model.decoder.layers
    share = np.where(a.sp > 0, a.tp, 1)
    bytewise = p.pointwise + p.norms / share
    forward = (p.matmul + p.core + bytewise) / layers
    full, selective = a.recompute == 2, a.recompute == 1
    tp_once = _tensor_parallel(q, wires, a) / layers
    parts: dict[str, Floats] = {
        "matmul": (p.matmul + p.matmul_back) / layers,
        "attention": (p.core + p.core_back) / layers,
        "elementwise": (bytewise + backward_bytes(bytewise) + p.casts_back) / layers,
        "recompute": np.where(full, forward, np.where(selective, p.core / layers, 0.0)),
        "cp": _context_parallel(q, wires, p, a) / layers,
        "ep": _expert_parallel(q, wires, p, a) / layers * (2 + full),
    }
    parts["tp"] = _exposed(c, tp_once * (2 + full), parts["matmul"] + parts["attention"] + full * forward)
    busy = sum(parts.values(), np.zeros(1))
    replayed = graphed(q, a)
    started = np.where(replayed, 0.0, c.layer_launch * (2 + full))
    gap = c.layer_gap * np.where(replayed, GRAPH_GAP, 1.0)
    parts["launch"] = np.maximum(0.0, started - busy) + gap * (2 + full)
    return parts


def graphed(q: Question, a: Layouts) -> Ints:
    """Where a step is one CUDA graph, and the host starts nothing."""
    return q.work.framework.graphs & (a.devices == 1)


def stage_start(q: Question, a: Layouts) -> Floats:
    """Host time per micro-batch and stage that nothing hides."""
    return np.where(graphed(q, a), 0.0, q.calibration.stage_launch)


def _exposed(c: Calibration, wire: Floats, computing: Floats) -> Floats:
    """Of tensor-parallel time, the share that is never hidden, and all that is longer than the computing it could hide behind."""
    return np.maximum(c.exposed_tp * wire, wire - computing)


def _head(q: Question, wires: Wires, p: Passes, a: Layouts) -> dict[str, Floats]:
    """Seconds of the output head and the loss for one micro-batch."""
    rows = a.mbs * q.work.seq / a.cp
    wire = np.where(a.tp > 1, wires.tp.reduce(2 * rows * q.model.decoder.hidden), 0.0)
    return {"matmul": p.head + p.head_back, "elementwise": p.logits, "tp": q.calibration.exposed_tp * wire}


def _tensor_parallel(q: Question, wires: Wires, a: Layouts) -> Floats:
    """All-reduces of one pass over all layers: one behind each block that ends in a row-cut product (Megatron, arXiv:1909.08053)."""
    blocks = {block for block, op in q.model.placed if op.shard == "row"}
    number = sum(times for block, times in q.model.times.items() if block in blocks)
    size = 2.0 * a.mbs * q.work.seq / a.cp * q.model.decoder.hidden
    return np.where(a.tp > 1, number * wires.tp.reduce(size), 0.0)


def _context_parallel(q: Question, wires: Wires, p: Passes, a: Layouts) -> Floats:
    """Keys and values travel round the ring while attention computes; what attention does not hide is exposed. Backward moves twice.

    Latent attention passes its small latent on, and a window only the keys it reaches back to.
    """
    if not np.any(a.cp > 1):
        return np.zeros(1)
    seq = q.work.seq
    kept = sum(op.cache * op.count * min(seq, op.window or seq) for op in q.model.ops if op.kind == "attention")
    size = 2.0 * a.mbs * kept / np.minimum(a.tp, np.maximum(1, q.model.decoder.kv_heads))
    forward = np.where(a.cp > 1, wires.cp.gather(size), 0.0)
    return np.maximum(0.0, forward - p.core) + np.maximum(0.0, 2 * forward - p.core_back)


def _expert_parallel(q: Question, wires: Wires, p: Passes, a: Layouts) -> Floats:
    """Tokens go to their experts and come back: two all-to-alls a layer and pass, as long as the busiest device takes.

    Where a node gets a token once for all of its experts, k of them are on n (1 - (1 - 1/n)^k) of n nodes.
    """
    if not np.any(a.ep > 1):
        return np.zeros(1)
    f, d = q.work.framework, q.model.decoder
    layers = q.model.times[MIXTURE]
    copies = sum(op.m * op.count for op in q.model.ops if op.expert and op.shard == "row") / layers
    nodes = np.maximum(1.0, wires.ep.nodes * d.expert_reach)
    once = nodes * (1 - (1 - 1 / nodes) ** copies) / copies if f.sends_once else 1.0
    elements = a.mbs * q.work.seq / a.cp * copies * d.hidden / np.where(a.sp > 0, a.tp, 1)
    there, back = (wires.ep.seconds(size * elements, once) for size in (f.dispatch_bytes, 2.0))
    there_and_back = layers * q.work.imbalance * (there + back)
    computing = p.matmul + p.core if f.overlaps_experts else 0.0
    return np.where(a.ep > 1, np.maximum(0.0, there_and_back - computing), 0.0)


def pace(q: Question, a: Layouts, seconds: dict[str, Floats]) -> Pace:
    """Seconds of a layer or the head by pass. Forward is a third, 2 FLOPs of 6; what is recomputed comes on top, backward.

    Gradients of weights are apart where the schedule splits them off: by FLOPs, a third of all that waits for no other device, less
    where there is attention, whose backward pass has no weights.
    """
    none, whole = np.zeros(len(a)), sum(seconds.values(), np.zeros(len(a)))
    repeated = seconds.get("recompute", none)
    forward = (whole - repeated) / 3
    local = whole - repeated - sum((seconds[name] for name in BETWEEN_PRODUCTS if name in seconds), none)
    weight = np.where(a.schedule == 2, q.model.matmul_flops() / q.model.flops(1, q.work.seq) * local, 0.0)
    return Pace(forward, whole - forward - weight, weight)


def _bubble(q: Question, a: Layouts, paces: tuple[Pace, Pace], m: Floats, slot: Floats, others: Floats) -> Floats:
    """What the slowest stage stands idle: interleaved, the other stages' time, of which vpp leaves a part (arXiv:2104.04473, 2.2.2);
    else the critical path of the schedule less its own work."""
    found = others.copy()
    rows = np.flatnonzero((a.pp > 1) & (a.vpp == 1))
    if not len(rows):
        return found
    here, some, few = replace(q, model=q.model.take(rows)), a.take(rows), m[rows]
    number = sampled(some.pp, few, q.work.framework.balances_stages)
    before = layers_before(here, some, number)
    stages = Stages(number, before, layers_before(here, some, number + 1) - before)
    span = makespan(stages, paces[0].take(rows), paces[1].take(rows), few, some.pp)
    found[rows] = np.maximum(0.0, span - (m * slot)[rows])
    return found


def _between_stages(q: Question, wires: Wires, a: Layouts) -> Floats:
    """An activation forward and its gradient back, for one micro-batch and one model chunk."""
    copies = np.where(q.work.framework.scatters_stage_bytes | (a.sp > 0), a.tp, 1)
    size = 2.0 * a.mbs * q.work.seq / a.cp * q.model.decoder.hidden / copies
    seconds = 2 * (size / wires.stage.bandwidth + wires.stage.latency)
    return np.where(a.pp > 1, q.calibration.exposed_stage * seconds, 0.0)


@dataclass(frozen=True)
class Once:
    """What happens once a step (or, under ZeRO 2 and 3, beside every micro-batch): reduce, gather, update. Two rows where it differs
    by stage: of the fullest, and of the last."""

    wire: Floats
    """Seconds of reducing and gathering,"""
    hides: Floats
    """and of the computing of one micro-batch, how much they can hide behind."""
    tables: Floats
    optimizer: Floats
    offload: Floats
    fixed: Floats


def _per_step(some: Some, d: Device, wires: Wires) -> Once:
    """Reductions and updates of the fullest stage and of the last."""
    q, a, m, layers = some.q, some.a, some.m, np.stack([some.most, some.last])
    f, c, sizes = q.work.framework, q.calibration, Sizes.of(q.model)
    groups = (wires.shard, wires.experts)[: 1 + any(op.expert for op in q.model.ops)]
    dense, experts = sizes.on_stage(layers, a)
    local, states = dense + experts, sizes.sharded(dense, experts, a)
    reductions = [Reduction.of(f, group, wires.replicate, a, m) for group in groups]
    wire = sum((each.seconds(part) for each, part in zip(reductions, (dense, experts), strict=False)), np.zeros(1))
    gradient, state = state_bytes(q.work, a, m)
    per_parameter = 2 * (state - f.master_gradient_bytes) + gradient + f.weight_bytes
    host = q.chip.host.bandwidth if q.chip.host else 1e10
    moved = np.where(a.offload >= 1, (f.gradient_bytes + f.weight_bytes) * states, 0.0) + np.where(
        a.offload >= 2, 2 * m * f.weight_bytes * local, 0.0
    )
    return Once(
        wire=np.where(a.dp * a.cp > 1, wire, 0.0),
        hides=c.hidden_dp * np.where(a.zero >= 2, m, 2 / 3),
        tables=_tied_tables(q, wires, a, sizes),
        optimizer=per_parameter * states / d.bandwidth + _update_starts(q, a),
        offload=moved / host,
        fixed=np.where(graphed(q, a), 0.0, c.step),
    )


def _update_starts(q: Question, a: Layouts) -> Floats:
    """Where weights are split, a kernel updates each by itself, but small ones together."""
    weights = sum(op.count for op in q.model.ops if np.any(op.params > UPDATED_TOGETHER))
    return np.where(q.work.framework.splits_weights & (a.devices == 1), weights * SHORTEST_KERNEL, 0.0)


def _exposed_per_step(once: Once, few: Few, computing: list[Floats]) -> dict[str, Floats]:
    """Of each layout, what the stage that is later takes behind the last backward pass."""
    hides, updates = few.spread(once.hides), once.optimizer + once.offload
    exposed = [np.maximum(0.0, few.spread(wire) - hides * each) for wire, each in zip(once.wire, computing, strict=True)]
    first, last = (few.spread(update) + each for update, each in zip(updates, exposed, strict=True))
    stage = (first <= last).astype(np.int64)
    return {
        "dp": np.where(stage, exposed[1], exposed[0]) + few.spread(once.tables),
        "optimizer": few.pick(once.optimizer, stage),
        "offload": few.pick(once.offload, stage),
        "fixed": few.spread(once.fixed),
    }


def _tied_tables(q: Question, wires: Wires, a: Layouts, sizes: Sizes) -> Floats:
    """A tied embedding on the first and the last stage: their gradients are summed between the two."""
    if not q.model.decoder.tied:
        return np.zeros(len(a))
    return np.where(a.pp > 1, wires.stage.reduce(q.work.framework.gradient_bytes * sizes.table / a.tp), 0.0)
