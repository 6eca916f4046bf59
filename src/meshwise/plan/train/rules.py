"""Rules that a layout must satisfy, as named masks over many layouts."""

import numpy as np
from numpy.typing import NDArray

from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.stages import stage_layers
from meshwise.cost.work import FUSED_UPDATE, SHORT_MOMENTS
from meshwise.plan.train.support import excluded

TP_IN_NODE = "tp stays inside a node"
PADDING = "the batch, padded to a multiple of dp x micro-batch, grows by at most 25%"
Mask = NDArray[np.bool_]


def cut_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """Return rules on how devices are cut into groups."""
    d, work, f = q.model.decoder, q.work, q.work.framework
    times = q.model.times  # not every layer has experts
    experts = max((op.count // times[block] for block, op in q.model.placed if op.expert), default=1)
    heads, kv_heads = np.maximum(d.heads, 1), np.maximum(d.kv_heads, 1)
    left = stage_layers(q, a)[1]
    naive = "naive" in f.schedules
    layers = (d.layers % a.pp == 0) | ((f.embedding_layers | naive) & (left >= 0)) | f.balances_stages
    return {
        "the framework must support tp": (a.tp == 1) | f.tensor_parallel,
        "the framework must support pp": (a.pp == 1) | bool(f.schedules),
        "the framework must support ep": (a.ep == 1) | f.expert_parallel,
        "the framework shards data ranks, and has no replicas": (a.dp_replicate == 1) | f.replicates,
        "tp divides heads": (heads % a.tp == 0) | (np.equal(d.heads, 0)),
        "tp divides KV heads, or they divide it": (kv_heads % a.tp == 0) | (a.tp % kv_heads == 0),
        "tp divides KV heads and vocabulary (the framework does not pad them)": f.pads_cuts
        | ((kv_heads % a.tp == 0) & (np.asarray(d.vocab) % a.tp == 0)),
        "tp divides the FFW width": (np.asarray(d.ffn) % a.tp == 0),
        "tp divides recurrent heads": np.all(
            [np.asarray(op.m) % a.tp == 0 for op in q.model.ops if op.kind == "scan" and op.state] or [a.tp > 0], axis=0
        ),
        "the framework must support tp of recurrent layers": (a.tp == 1) | f.cuts_recurrence | (not recurs(q)),
        "4-bit weights (qlora) are not cut by tp": (a.tp == 1) | (not work.finetune.quantized),
        TP_IN_NODE: q.cluster.node.devices % a.tp == 0,  # with 6 in nodes of 8, some groups would span two nodes
        "pp is at most the number of layers": a.pp <= d.layers,
        "pp cuts the layers into stages": layers,
        "stages of one process (device_map) take all devices": (a.pp == 1) | (not naive) | (a.devices == a.pp),
        "pipeline stages of equal work need unfrozen layers": (a.pp == 1) | (not work.finetune.frozen_layers),
        "the framework must support cp": (a.cp == 1) | f.context_parallel,
        "cp needs attention": (a.cp == 1) | attends(q),
        "cp halves divide the sequence": (a.cp == 1) | (work.seq % (2 * a.cp) == 0),
        **({PADDING: _padding(q, a) <= 1.25} if f.pads_batch else {"dp divides the batch": work.batch % a.dp == 0}),
        "ep divides the experts": experts % a.ep == 0,
        "the framework must support ZeRO": (a.dp_shard == 1) | (len(f.zero) > 0),
        "etp is 1 or tp": (a.etp == 1) | (a.etp == a.tp),
        "the framework must support ZeRO over part of the data-parallel ranks": (a.dp_shard == 1)
        | (a.dp_replicate == 1)
        | f.shards_partly,
    }


def attends(q: Question) -> bool:
    """Return whether the model has attention layers."""
    return any(op.kind == "attention" for op in q.model.ops)


def mixes(q: Question) -> bool:
    """Return whether the model has experts."""
    return any(op.expert for op in q.model.ops)


def recomputes(q: Question, how: str) -> bool:
    """Return whether a value of the axis `recompute` can differ from none for this model."""
    needs = {"selective": attends(q), "moe_act": mixes(q)}
    return needs.get(how, True)


def saves(q: Question, how: str) -> bool:
    """Return whether a way to recompute saves memory: dropping attention scores does not where flash attention never keeps them."""
    f = q.work.framework
    return how != "selective" or f.selective != "core_attn" or not f.flash_attention


def recurs(q: Question) -> bool:
    """Return whether the model has recurrent layers."""
    return any(op.kind == "scan" for op in q.model.ops)


def _padding(q: Question, a: Layouts) -> Floats:
    """Return sequences computed over sequences in the batch: above 1 where data ranks do not divide it."""
    at_once = a.dp * a.mbs
    return np.ceil(q.work.batch / at_once) * at_once / q.work.batch


def inner_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """Return rules on the micro-batch and everything inside it."""
    return batch_rules(q, a) | choice_rules(q, a, -(-int(q.work.batch) // (a.dp * a.mbs)) % a.pp == 0)


def batch_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """Return rules on the micro-batch."""
    heads = np.maximum(1, q.model.decoder.heads // a.tp)
    rules: dict[str, Mask] = {
        **(
            {PADDING: _padding(q, a) <= 1.25}
            if q.work.framework.pads_batch
            else {"micro-batches are whole": q.work.batch % (a.dp * a.mbs) == 0}
        )
    }
    if q.work.objective.sequences > 1 and not q.work.objective.generates:
        rules[f"{q.work.objective.name}: a micro-batch holds whole pairs"] = a.mbs % q.work.objective.sequences == 0
    if q.work.framework.fills_stages:
        rules["the framework needs micro-batches in multiples of pp"] = q.work.batch // (a.dp * a.mbs) % a.pp == 0
    if q.work.framework.fused_softmax:
        rules["fused softmax needs micro-batch x heads / tp in multiples of 4"] = (a.mbs * heads) % 4 == 0
    if q.work.updates_in_backward:
        name = FUSED_UPDATE if q.work.optimizer == FUSED_UPDATE else "--in-backward"
        rules[f"{name} updates in the backward pass: one micro-batch per step"] = q.work.batch <= a.dp * a.mbs
    if q.work.optimizer == SHORT_MOMENTS and q.work.framework.splits_weights:
        rules[f"the framework has {SHORT_MOMENTS} where one device splits its weights"] = a.devices == 1
    for size in q.work.ramp:
        rules[f"batch {size} of the ramp-up divides by dp x micro-batch"] = size % (a.dp * a.mbs) == 0
    return rules


def choice_rules(q: Question, a: Layouts, steady: Mask | bool) -> dict[str, Mask]:
    """Return rules on interleaving, schedule and offload. `steady`: the number of micro-batches is a multiple of pp."""
    return {
        "interleaving needs micro-batches in multiples of pp": (a.vpp == 1) | steady,
        "the framework must support a zero-bubble schedule with recompute": (a.schedule != SCHEDULES.index("zero-bubble"))
        | (a.recompute == 0)
        | q.work.framework.splits_recomputed,
        "offload needs a link to the host that the chip's file states": (a.offload == 0)
        | (q.chip.host is not None)
        | (q.chip.kind == "cpu"),
        "offloading parameters needs ZeRO 3": (a.offload != OFFLOAD.index("parameters")) | (a.zero == 3),
        **excluded(q.work, a),
    }


def offered_rules(q: Question, a: Layouts) -> dict[str, Mask]:
    """Return rules that the search satisfies by construction; they matter for a layout that a user names."""
    f, interleaved = q.work.framework, SCHEDULES.index("interleaved")
    sequence_parallel = {"never": a.sp == 0, "choice": (a.sp == 0) | (a.tp > 1), "always": (a.sp > 0) == (a.tp > 1)}
    return {
        "ep divides dp_shard x cp x tp / etp": (a.dp_shard * a.cp * a.tp // a.etp) % a.ep == 0,
        "whole experts (etp 1) need ep, or every tensor-parallel rank has a copy": (a.etp == a.tp) | (a.ep > 1) | (not mixes(q)),
        "the framework must support this ZeRO stage": np.where(a.dp_shard * a.cp > 1, np.isin(a.zero, f.zero), a.zero == 0),
        "the framework must support this recompute": np.isin(a.recompute, [RECOMPUTE.index(how) for how in f.recompute]),
        "this recompute needs attention or experts, which the model lacks": np.isin(
            a.recompute, [index for index, how in enumerate(RECOMPUTE) if recomputes(q, how)]
        ),
        "the framework must support this schedule": (a.pp == 1)
        | np.isin(a.schedule, [SCHEDULES.index(how) for how in f.schedules]),
        "a schedule other than 1f1b needs pp": (a.schedule == 0) | (a.pp > 1),
        "vpp goes with the interleaved schedule": (a.schedule == interleaved) == (a.vpp > 1),
        "vpp cuts the layers of a stage evenly": (a.vpp == 1) | _equal_chunks(q, a),
        "the framework must support sp, which needs tp": sequence_parallel[f.sequence_parallel],
        "the framework must support this offload": np.isin(a.offload, [0, *map(OFFLOAD.index, f.offload)]),
    }


def _equal_chunks(q: Question, a: Layouts) -> Mask:
    """Return whether every stage splits into model chunks with equally many layers, counting the embedding and the head where the
    framework does."""
    layers, chunks = q.model.decoder.layers, a.pp * a.vpp
    return (layers % chunks == 0) | (q.work.framework.embedding_layers & (layers % a.pp > 0) & ((layers + 2) % chunks == 0))


def broken(q: Question, a: Layouts) -> list[str]:
    """Return the names of the rules that a single layout breaks."""
    rules = offered_rules(q, a) | cut_rules(q, a) | inner_rules(q, a)
    return [rule for rule, mask in rules.items() if not bool(np.all(mask))]
