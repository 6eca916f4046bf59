"""The cost of a training step: compute, communication and memory composed by the pipeline schedule, every second under a named part.

Worked: BLOOM 176B on 384 A100, 2048 sequences of 2048 tokens, layout dp8 tp4 pp12 mbs2 zero1 with full recompute.

    micro-batches per step   2048 / (8 x 2)                                  =  128
    layers of a full stage   (70 + embedding + head) / 12                    =    6
    one layer                matmul 70.5 + attention 15.4 + elementwise 3.2
      (ms)                   + recompute 31.5 + tp 4.8 + launch 0.3          =  125.7
    full stage               128 x 6 x 125.7 ms                              =   96.5 s
    launch per micro-batch   128 x 3.7 ms                                    =    0.5 s
    pipeline bubble          the 11 other stages fill and drain, 0.74 s each =    8.1 s
    pipeline sends (p2p)     128 x 10.1 ms                                   =    1.3 s
    data parallel (dp)       gradients 2.7, weights 2.7, tied embedding 2.4  =    7.9 s
    optimizer and fixed      0.017 + 0.003                                   =    0.0 s
    step                                                                     =  114.3 s
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import OFFLOAD, SCHEDULES
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.activations import ActivationMemory, inputs_on_host
from meshwise.cost.train.comm import Communicators, DataParallel, Fabric
from meshwise.cost.train.compute import MIN_KERNEL_SECONDS, Device
from meshwise.cost.train.distinct import Groups, LayoutGroups
from meshwise.cost.train.layer import cuda_graphs, head_seconds, host_link, layer_seconds, offloaded_activations
from meshwise.cost.train.memory import Peaks, StateMemory, host_bytes, kept_by_allocator, peaks, state_bytes, weight_bytes
from meshwise.cost.train.parameters import Parameters, finetuned
from meshwise.cost.train.passes import Cut, Passes, passes
from meshwise.cost.train.pipeline import PassTimes, Stages, makespan, sampled_stages
from meshwise.cost.train.question import Question
from meshwise.cost.train.stages import layers_before, stage_layers
from meshwise.cost.work import PAGED_BYTES
from meshwise.models.families.blocks import MIXTURE

NAIVE_SCHEDULE = SCHEDULES.index("naive")
HOST_MEMORY_RATIO = 4.0
"""Memory of a host over that of its devices where nothing else is known: a node of 8 H100 has 2 TB, a machine with one card of 24 GB 96."""
MAX_WEIGHTS_UPDATED_TOGETHER = 2**16
"""Weights up to which a tensor is updated in one kernel together with other small tensors (workers/trainer/ops/adamw.py)."""
SUM_BYTES, OWN_SUM = 10.0, 4
"""Bytes moved to add a 16-bit gradient to its float32 sum, and bytes per gradient above which both exist."""
CLIP_BYTES = 8.0  # bytes per parameter that gradient norm, clipping and zeroing move before an update that is not fused
OVERLAPPED_STAGES_SHARE = 0.5  # share of the exposed sends between stages that further overlap hides. An assumption.
HOST_UPDATE_BYTES = 28.0
"""Bytes that AdamW on the host moves per parameter: weight, gradient and two moments in float32 are read, three are written."""

HOST_UPDATE_SHARE = 0.4  # share of the host memory's bandwidth that such updates reach: about 120 of the 300 GB/s of a server


def collectives(f: Framework) -> tuple[str, ...]:
    """Return the parts of a layer that wait for other devices, so a schedule cannot defer them as it defers weight gradients. Where the
    exchange of experts runs beside another micro-batch, no pass of its own waits for it: if it counted, a faster chip, which hides less
    of it, would have less to defer."""
    return ("tp",) if f.overlaps_experts else ("tp", "ep")


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


def evaluate(q: Question, layouts: Layouts) -> Cost:
    """Return seconds and bytes of every layout; each formula is evaluated once per group of layouts that it cannot tell apart."""
    device, fabric = _device(q), Fabric.of(q.cluster, q.calibration)
    grouped = LayoutGroups.of(q.model, q.work.batch, layouts)
    comm = Communicators.of(fabric, layouts.take(grouped.cuts.rows).as_floats())
    timing = DistinctLayouts.of(q, layouts, grouped.timing(*(comm.microbatch_ids() if fabric.torus else ())))
    states = timing.regrouped(q, layouts, grouped.states)
    per_pass = _distinct_passes(timing, device, grouped.passes(timing.groups))
    time, computing = _microbatches(timing, per_pass, comm.take(grouped.cuts.which[timing.groups.rows]))
    per_step = _per_step(states, device, comm.take(grouped.cuts.which[states.groups.rows]))
    parts = {name: timing.groups.expand(values) for name, values in time.items()}
    parts["bubble"] = parts["bubble"] / layouts.vpp
    parts["p2p"] = parts["p2p"] * layouts.vpp
    once = _exposed_per_step(
        per_step, states.groups, [timing.groups.expand(values) for values in computing], _chunk_waves(q, layouts)
    )
    parts |= once | {"offload": parts["offload"] + once["offload"]}
    return Cost({name: parts[name] for name in TRAIN_PARTS}, _memory(timing, states, layouts))


def peak(q: Question, layouts: Layouts) -> Floats:
    """Return the peak bytes per device of every layout, much cheaper than `evaluate`: a layout that does not fit need not be timed."""
    return peak_and_needs(q, layouts)[0]


def peak_and_needs(q: Question, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the peak bytes per device of every layout, and those that the device must have: without what the allocator can give back."""
    grouped = LayoutGroups.of(q.model, q.work.batch, layouts)
    activations = DistinctLayouts.of(q, layouts, grouped.activations)
    sizes = _memory(activations, activations.regrouped(q, layouts, grouped.states), layouts)
    total = sum(sizes.values(), np.zeros(1))
    return total, total - sizes["allocator"]


def host_memory(q: Question) -> float:
    """Return the bytes of a host: those that the cluster states, or a usual share of its devices' memory."""
    return q.cluster.node.host.memory or HOST_MEMORY_RATIO * q.cluster.node.memory


def host_needs(q: Question, layouts: Layouts) -> Floats:
    """Return the bytes that each layout keeps in the memory of a host: what all devices of a node offload."""
    needs = np.zeros(len(layouts))
    rows = np.flatnonzero((layouts.offload > 0) | inputs_on_host(q.work, layouts))
    if not len(rows):
        return needs
    distinct = DistinctLayouts.of(replace(q, model=q.model.take(rows)), layouts.take(rows), Groups.one_each(len(rows)))
    batch = np.broadcast_to(q.work.batch, len(layouts))[rows]
    held = host_bytes(distinct.q.model, q.work, distinct.a, distinct.middle, np.ceil(batch / (distinct.a.dp * distinct.a.mbs)))
    needs[rows] = held * np.minimum(q.cluster.node.devices, distinct.a.devices)
    return needs


def host_fits(q: Question, layouts: Layouts) -> NDArray[np.bool_]:
    """Return whether the state that each layout offloads fits in the memory of the hosts, as the cluster states it or as is usual."""
    return host_needs(q, layouts) <= host_memory(q)


@dataclass(frozen=True)
class DistinctLayouts:
    """One representative layout per group, with the quantities that formulas read."""

    groups: Groups
    q: Question
    a: Layouts  # as floats, converted once instead of in every formula
    m: Floats  # micro-batches per step
    middle: Floats  # layers of the fullest stage
    last: Floats  # layers of the last stage, which also has the head

    @staticmethod
    def of(q: Question, layouts: Layouts, groups: Groups) -> "DistinctLayouts":
        batch, a = np.broadcast_to(q.work.batch, len(layouts)), layouts
        if not groups.trivial:
            q, batch, a = replace(q, model=q.model.take(groups.rows)), batch[groups.rows], layouts.take(groups.rows)
        a = a.as_floats()
        return DistinctLayouts(groups, q, a, np.ceil(batch / (a.dp * a.mbs)), *stage_layers(q, a))

    def regrouped(self, q: Question, layouts: Layouts, groups: Groups) -> "DistinctLayouts":
        """Return the representatives under other groups; these ones where both groupings have one group per layout."""
        return self if groups.trivial and self.groups.trivial else DistinctLayouts.of(q, layouts, groups)

    @property
    def slowest(self) -> Floats:
        """Layers of the slowest stage before the last: a middle one; of two stages, the first, where the embedding counts as a layer."""
        return np.where(self.a.pp == 2, layers_before(self.q, self.a, np.ones(1)), self.middle)


def _peaks(activations: DistinctLayouts, states: DistinctLayouts, layouts: Layouts) -> Peaks:
    """Return bytes by kind at the moments of the step, from the representatives of groups with equal activations and with equal states."""
    held = StateMemory.of(states.q.model, states.q.work, states.a, (states.middle, states.last), states.m)
    kept = ActivationMemory.of(
        activations.q.model, activations.q.work, activations.a, (activations.middle, activations.last), activations.m
    )
    return peaks(activations.q.calibration, held, states.groups, kept, activations.groups, layouts.vpp)


def _memory(activations: DistinctLayouts, states: DistinctLayouts, layouts: Layouts) -> dict[str, Floats]:
    """Return bytes by kind of every layout at its peak."""
    found, q = _peaks(activations, states, layouts), states.q
    room = q.chip.memory * (1 - q.work.reserve)
    return found.highest() | {"allocator": kept_by_allocator(q.work.framework, found, room)}


def moments(q: Question, layouts: Layouts) -> Peaks:
    """Return bytes by kind at each moment of the step, of every layout."""
    grouped = LayoutGroups.of(q.model, q.work.batch, layouts)
    activations = DistinctLayouts.of(q, layouts, grouped.activations)
    return _peaks(activations, activations.regrouped(q, layouts, grouped.states), layouts)


def _microbatches(timing: DistinctLayouts, p: Passes, comm: Communicators) -> tuple[dict[str, Floats], Floats]:
    """Return seconds of all micro-batches of a step by part (the bubble as if vpp were 1, p2p per model chunk), and the compute seconds per
    micro-batch of the slowest stage before the last and of the last, behind which gradient reduction can hide."""
    q, a, m, slowest, last = timing.q, timing.a, timing.m, timing.slowest, timing.last
    (layer, hidden), head = layer_seconds(q, comm, p, a), head_seconds(q, comm, p, a)
    per_layer, per_head = sum(layer.values(), np.zeros(1)), sum(head.values(), np.zeros(1))
    candidates = (slowest * per_layer, last * per_layer + per_head)
    before_last = np.greater(*candidates)
    layers, stage = np.where(before_last, slowest, last), np.where(before_last, *candidates)
    time = {name: m * layers * seconds for name, seconds in layer.items()}
    heads = m * ~before_last
    for name, seconds in head.items():
        time[name] = time[name] + heads * seconds
    time["launch"] = time["launch"] + m * stage_launch(q, a)
    others = np.maximum(0.0, q.model.decoder.layers * per_layer + per_head - stage)
    time["bubble"] = _bubble(q, a, (pass_times(q, a, layer), pass_times(q, a, head)), m, stage, others)
    time["p2p"] = m * _stage_sends(q, comm, a)
    time["offload"] = m * slowest * offloaded_activations(q, a)
    # Launch overhead counts as computing: otherwise a faster chip that only waits longer for its CPU would hide less. What other
    # collectives of the layer hide behind already cannot hide gradients as well.
    computing = sum((layer[name] for name in ("matmul", "attention", "elementwise", "launch")), np.zeros(1))
    return time, np.stack([slowest, last]) * np.maximum(0.0, computing - hidden)


def layer_and_head(q: Question, layouts: Layouts) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return seconds of one micro-batch by part, forward plus backward: of one layer, and of the head."""
    a = layouts.as_floats()
    p, comm = passes(q.model, _device(q), q.work, Cut.of(a)), Communicators.of(Fabric.of(q.cluster, q.calibration), a)
    return layer_seconds(q, comm, p, a)[0], head_seconds(q, comm, p, a)


def _device(q: Question) -> Device:
    """Return the chip as the framework uses it: joined products on a single device."""
    device = Device.of(q.chip, q.calibration, q.work.precision)
    return replace(device, joins=q.work.framework.joins_products and q.cluster.devices == 1)


def _distinct_passes(timing: DistinctLayouts, device: Device, groups: Groups) -> Passes:
    """Return the passes of each layout, computed once per distinct (tp, cp, ep, mbs): a few hundred however many layouts there are."""
    q = timing.q
    distinct = passes(q.model.take(groups.rows), device, q.work, Cut.of(timing.a).take(groups.rows))
    return Passes(**{name: groups.expand(value) for name, value in vars(distinct).items()})


def stage_launch(q: Question, a: Layouts) -> Floats:
    """Return the CPU launch overhead per micro-batch and stage that nothing hides."""
    return np.where(cuda_graphs(q, a) == 2, 0.0, q.calibration.stage_launch)


def pass_times(q: Question, a: Layouts, seconds: dict[str, Floats]) -> PassTimes:
    """Split the seconds of a layer or the head by pass. Forward is a third, 2 FLOPs of 6, and a half where all weights are frozen;
    recomputation is added to backward. Weight gradients are separate where the schedule defers them: by FLOPs, a third of all parts
    without collectives, less with attention, whose backward pass has no weights."""
    none, whole = np.zeros(len(a)), sum(seconds.values(), np.zeros(len(a)))
    repeated, how = seconds.get("recompute", none), finetuned(q.model, q.work.finetune)
    forward = (whole - repeated) / (1 + how.inputs + how.weights)
    local = whole - repeated - sum((seconds[name] for name in collectives(q.work.framework) if name in seconds), none)
    products, attention = q.model.matmul_flops(), q.model.attention_flops(1, q.work.seq)
    deferred = how.weights * products / ((1 + how.inputs + how.weights) * products + (1 + 2 * how.inputs) * attention)
    weight = np.where(a.schedule == 2, deferred * local, 0.0)
    return PassTimes(forward, whole - forward - weight, weight)


def _bubble(q: Question, a: Layouts, times: tuple[PassTimes, PassTimes], m: Floats, stage: Floats, others: Floats) -> Floats:
    """Return the idle time of the slowest stage: the critical path of the schedule minus the stage's own work; interleaved, the other
    stages' time, which the caller divides by vpp (arXiv:2104.04473, 2.2.2); of stages that run one after another, that of all others."""
    idle = np.where(a.schedule == NAIVE_SCHEDULE, m, 1.0) * others
    rows = np.flatnonzero((a.pp > 1) & (a.vpp == 1) & (a.schedule != NAIVE_SCHEDULE))
    if not len(rows):
        return idle
    q, a, microbatches = replace(q, model=q.model.take(rows)), a.take(rows), m[rows]
    number = sampled_stages(a.pp, microbatches, q.work.framework.balances_stages)
    before = layers_before(q, a, number)
    stages = Stages(number, before, layers_before(q, a, number + 1) - before)
    span = makespan(stages, times[0].take(rows), times[1].take(rows), microbatches, a.pp)
    idle[rows] = np.maximum(0.0, span - (m * stage)[rows])
    return idle


def _stage_sends(q: Question, comm: Communicators, a: Layouts) -> Floats:
    """Return the exposed seconds of sending an activation forward and its gradient back, for one micro-batch and one model chunk."""
    copies = np.where(q.work.framework.scatters_stage_bytes | (a.sp > 0), a.tp, 1)
    size = 2.0 * a.mbs * q.work.seq / a.cp * q.model.decoder.hidden / copies
    seconds = 2 * (size / comm.stage.bandwidth + comm.stage.latency)
    boundaries = np.where(a.schedule == NAIVE_SCHEDULE, a.pp - 1, 1.0)
    hidden = OVERLAPPED_STAGES_SHARE * q.work.framework.overlaps_stages
    return np.where(a.pp > 1, q.calibration.exposed_stage * (1 - hidden) * seconds * boundaries, 0.0)


@dataclass(frozen=True)
class PerStep:
    """Seconds once per step (with ZeRO 2 and 3, per micro-batch): reduce, gather, update. Two rows where stages differ: the slowest before
    the last, and the last."""

    reduction: Floats  # reducing gradients; with ZeRO 3, gathering weights too
    least: Floats  # last piece of `reduction`, which follows the last backward pass in any case
    hidden_by: Floats  # micro-batches of compute that the reduction can hide behind
    contention: Floats  # fraction of the hidden reduction that slows the compute beside it
    gather: Floats  # gathering updated weights
    gather_hidden_by: Floats
    replicas: Floats  # summing the gradients of replicas, where nothing hides it
    embeddings: Floats  # reducing a tied embedding between the first and the last stage
    optimizer: Floats
    offload: Floats
    fixed: Floats


def _per_step(states: DistinctLayouts, d: Device, comm: Communicators) -> PerStep:
    """Return the seconds that are spent once per step, before any of them hides behind computation."""
    q, a, m, layers = states.q, states.a, states.m, np.stack([states.slowest, states.last])
    f, c, how = q.work.framework, q.calibration, finetuned(q.model, q.work.finetune)
    parameters = how.trained
    dense, experts = parameters.on_stage(layers, a)
    still = how.frozen.on_stage(layers, a) if how.frozen else (0.0, 0.0)
    gathered = still[0] - how.unsharded(f, layers, a)
    sharded = parameters.sharded(dense, experts, a)
    parts = [DataParallel.of(q.work, (comm.shard, comm.replicate), a, m, dense, layers, parameters.tensors, gathered)]
    if parameters.experts or (how.frozen and how.frozen.experts):
        parts.append(DataParallel.of(q.work, (comm.experts, comm.replicate), a, m, experts, layers, parameters.tensors, still[1]))
    reduction, gather = (sum((getattr(part, name) for part in parts), np.zeros(1)) for name in ("reduction", "gather"))
    if f.overlaps_replicas:
        reduction = reduction + sum((part.replicas for part in parts), np.zeros(1))
    streams = (a.zero >= 3) & (a.pp == 1)  # gathers are part of every micro-batch
    each_time = ((a.zero == 2) & (a.pp == 1)) | ((a.zero == 0) & (a.pp > 1) & f.reduces_every_microbatch)
    backward = np.where(each_time, m, 1.0) * 2 / 3  # passes that a reduction follows
    gradient, state = state_bytes(q.work, a, m)
    per_parameter = 2 * np.maximum(0.0, state - f.master_gradient_bytes) + gradient + weight_bytes(q.work)
    offloaded = (a.offload == OFFLOAD.index("optimizer")) | (a.offload == OFFLOAD.index("parameters"))
    local = dense + experts
    # a gradient that is kept beside its float32 sum is added to it in a kernel of its own; norms, clipping and zeroing touch all gradients
    summed = m * SUM_BYTES * local * (f.summed_bytes(q.work.precision) > OWN_SUM)
    moved = c.update * (per_parameter * sharded + CLIP_BYTES * local * f.separate_updates) + summed
    # a weight that is a part of its master copy is read as well as written, and the gradient norm reads gradients once
    split = f.splits_weights & (a.devices == 1) & (not q.work.finetune.adapts)
    moved = moved + split * (weight_bytes(q.work) * local + gradient * (dense + experts * (not f.fuses_experts)))
    updates = moved / d.bandwidth + _update_launches(q, a)
    # moments of a paged optimizer move to the device and back
    paged = 2 * PAGED_BYTES.get(q.work.optimizer, 0.0) * sharded / host_link(q)
    return PerStep(
        reduction=np.where(streams, reduction + gather, reduction),
        least=reduction / np.where(a.zero >= 2, m, 1.0) / parts[0].pieces,
        hidden_by=c.hidden_dp * np.where(streams, m, backward * f.overlaps_reduction),
        contention=c.contention * (streams & (a.tp == 1) & (q.chip.kind == "gpu")),
        gather=np.where(streams, 0.0, gather),
        replicas=sum((part.replicas for part in parts), np.zeros(1)) * (not f.overlaps_replicas),
        gather_hidden_by=c.hidden_dp / 3 * f.overlaps_gather + 0.0 * a.dp,
        embeddings=_tied_embeddings(q, comm, a, parameters),
        optimizer=np.where(offloaded, 0.0, updates),
        offload=np.where(offloaded, _offloaded_update(q, a, m, sharded, dense + experts, sum(still)), paged),
        fixed=np.where(cuda_graphs(q, a) == 2, 0.0, c.step),
    )


def _offloaded_update(q: Question, a: Layouts, m: Floats, sharded: Floats, local: Floats, frozen: Floats | float) -> Floats:
    """Return seconds of an update on the host: gradients go there and weights come back, AdamW moves 28 bytes per parameter through host
    memory, which all devices of a node share; offloaded parameters, `frozen` bytes among them, are copied to the device for every forward
    and backward pass."""
    f = q.work.framework
    copied = (f.reduced_bytes + f.weight_bytes) * sharded
    streamed = np.where(a.offload == OFFLOAD.index("parameters"), 2 * m * (f.weight_bytes * local + frozen), 0.0)
    per_node = np.minimum(q.cluster.node.devices, a.devices)
    return (copied + streamed) / host_link(q) + HOST_UPDATE_BYTES * sharded * per_node / (HOST_UPDATE_SHARE * q.host_bandwidth)


def _update_launches(q: Question, a: Layouts) -> Floats:
    """Return the least seconds of the update kernels where weights are split: one kernel per large tensor."""
    # all experts of a layer are one tensor
    counts = ((q.model.times[MIXTURE] if op.expert else op.count, op.params) for op in q.model.ops)
    weights = sum(count for count, params in counts if np.any(params > MAX_WEIGHTS_UPDATED_TOGETHER)) * (
        not q.work.finetune.adapts
    )
    return np.where(q.work.framework.splits_weights & (a.devices == 1), weights * MIN_KERNEL_SECONDS, 0.0)


def _chunk_waves(q: Question, layouts: Layouts) -> Floats:
    """Return the micro-batches of compute between the gradients of the first model chunk of a stage and those of its last. Interleaved, a
    chunk is done for the last pp micro-batches before the next one is: gradients are reduced, and weights gathered, meanwhile."""
    m = np.ceil(np.broadcast_to(q.work.batch, len(layouts)) / (layouts.dp * layouts.mbs))
    return np.minimum(m, 1 + (layouts.pp - 1) * (1 - 1 / layouts.vpp))


def _exposed_per_step(per_step: PerStep, groups: Groups, computing: list[Floats], waves: Floats) -> dict[str, Floats]:
    """Return the seconds that follow the last backward pass, of whichever stage finishes later."""
    updates = per_step.optimizer + per_step.offload
    contention = groups.expand(per_step.contention)
    hides, gather_hides = groups.expand(per_step.hidden_by) * waves, groups.expand(per_step.gather_hidden_by) * waves
    exposed = [
        np.maximum(groups.expand(least), groups.expand(reduction) - hides * hiding)
        + np.maximum(0.0, groups.expand(gather) - gather_hides * hiding)
        + groups.expand(replicas)
        + contention * np.minimum(groups.expand(reduction), hides * hiding)
        for reduction, least, gather, replicas, hiding in zip(
            per_step.reduction,
            per_step.least,
            per_step.gather,
            np.broadcast_to(per_step.replicas, per_step.reduction.shape),
            computing,
            strict=True,
        )
    ]
    first, last = (groups.expand(update) + waited for update, waited in zip(updates, exposed, strict=True))
    stage = (first <= last).astype(np.int64)
    return {
        "dp": np.where(stage, exposed[1], exposed[0]) + groups.expand(per_step.embeddings),
        "optimizer": groups.expand_row(per_step.optimizer, stage),
        "offload": groups.expand_row(per_step.offload, stage),
        "fixed": groups.expand(per_step.fixed),
    }


def _tied_embeddings(q: Question, comm: Communicators, a: Layouts, parameters: Parameters) -> Floats:
    """Return seconds of summing the gradients of a tied embedding, which the first and the last stage both hold."""
    if not q.model.decoder.tied:
        return np.zeros(len(a))
    shared = (a.pp > 1) & (np.asarray(parameters.table) > 0)
    return np.where(shared, comm.stage.reduce(q.work.framework.gradient_bytes * parameters.table / a.tp), 0.0)
