"""Seconds of one layer and of the output head for one micro-batch, by part: compute, and the communication that it does not hide."""

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue.frameworks import GRAPHS, Framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.activations import inputs_on_host, stored_per_token
from meshwise.cost.train.comm import Communicators
from meshwise.cost.train.compute import DEFAULT_SMS, FLASH_TILE_KEYS, MIN_KERNEL_SECONDS
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.train.passes import Passes, backward_bytes
from meshwise.cost.train.question import Question
from meshwise.cost.train.recompute import repeated
from meshwise.models.families.blocks import MIXTURE

GRAPH_GAP_SHARE = 0.25
"""Share of the gap between kernels that remains when a CUDA graph launches them: on an H200, 1.5 ms of a step of 24 passes through a
layer, against 2.5e-4 s a pass (docs/reports/trainer-speed.md)."""
LAYER_PARTS = ("matmul", "attention", "elementwise", "recompute", "tp", "cp", "ep", "launch")  # parts of the seconds of one layer
ADAPTER_KERNELS_SHARE = 0.15
"""Kernels of one adapter over those of a layer: a cast, two products, a scale and an addition beside about forty. One H200 with 64
adapters took 0.173 s instead of 0.109 (h200_transformers_tuned)."""
OVERLAPPED_TP_SHARE = 0.37
"""Share of tensor-parallel communication that products cut into pieces hide (async TP, user buffers): 24 to 50% measured."""
OVERLAPPED_EXPERTS_SHARE = 0.8
"""Share of a layer's compute that hides its all-to-alls where another micro-batch computes meanwhile (DualPipe, batch-level overlap)."""
RING_MERGED_BYTES = 13.5
"""Bytes moved per element of the queries and further context rank: three quarters of the rows (causal, two chunks a rank) of a float32
sum of outputs are read and written with a partial one in 16 bits (10 bytes), and gradients of queries, keys and values added up in 16
bits (8 bytes, with a few key heads). Counted, not measured: measured runs have two context ranks and chunks of 2,048 tokens."""
RING_KERNELS = 6  # kernels of a further context rank, forward and backward: attention, merge, send
RING_KERNELS_SHARE = 0.2  # the same over the kernels of a layer's pass, about thirty: what the CPU starts more
EXPOSED_COPIES_SHARE = 0.3  # share of the copies of offloaded activations that the layers' compute does not hide. An assumption.


def layer_seconds(q: Question, comm: Communicators, p: Passes, a: Layouts) -> tuple[dict[str, Floats], Floats]:
    """Return seconds by part of one layer and micro-batch in both directions, and the compute that its collectives hide behind."""
    c, layers = q.calibration, q.model.decoder.layers
    share = np.where(a.sp > 0, a.tp, 1)
    bytewise = p.pointwise + p.norms / share
    how = finetuned(q.model, q.work.finetune)
    again = repeated(q.work.framework, a.recompute, q.model.decoder.gated, bool(how.adapted))
    products = p.projections * again.projections + p.outputs * again.outputs + (p.matmul - p.projections - p.outputs) * again.mlp
    recomputed = (products + p.core * again.core + (bytewise + p.casts) * again.elementwise) / layers * how.inputs
    once = q.work.objective.forwards  # more forward passes, without gradients
    passes_made = 2 + once + np.maximum(np.ceil(again.mlp), np.ceil(again.projections)) * (a.recompute > 0)
    core = ((1 + once) * p.core + p.core_back) / layers
    parts: dict[str, Floats] = {
        "matmul": ((1 + once) * p.matmul + p.matmul_back) / layers,
        "attention": core + _ring_overhead(q, core, a),
        "elementwise": ((1 + once) * (bytewise + p.casts) + how.inputs * backward_bytes(bytewise) + p.casts_back) / layers,
        "recompute": recomputed,
    }
    compute = sum(parts.values(), np.zeros(1))
    wires = {
        "ep": _expert_parallel(q, comm, a) / layers * passes_made,
        "cp": _context_parallel(q, comm, a) / layers,
        "tp": _tensor_parallel(q, comm, a) / layers * passes_made,
    }
    attention = parts["attention"] + p.core * again.core / layers
    ep_hidden = np.where(hides_experts(q.work.framework, a), np.minimum(wires["ep"], compute * OVERLAPPED_EXPERTS_SHARE), 0.0)
    cp_hidden = np.minimum(wires["cp"], attention * np.maximum(0.0, 1 - ep_hidden / compute))
    tp_hidden = np.minimum((1 - exposed_tp(q)) * wires["tp"], np.maximum(0.0, compute - ep_hidden - cp_hidden))
    for name, hidden in (("cp", cp_hidden), ("ep", ep_hidden), ("tp", tp_hidden)):
        parts[name] = wires[name] - hidden
    parts["ep"] = parts["ep"] + ep_hidden * q.work.framework.communication_sms / (q.chip.sms or DEFAULT_SMS)  # taken from compute
    busy = sum(parts.values(), np.zeros(1))
    replayed = cuda_graphs(q, a)
    mixed = q.model.times.get(MIXTURE, 0) / layers
    adapters = 1 + ADAPTER_KERNELS_SHARE * sum(module.count for module in how.adapted) / layers
    kernels = adapters + RING_KERNELS_SHARE * (a.cp - 1)
    started = np.where(replayed > 0, 0.0, (c.layer_launch * kernels + c.expert_launch * mixed) * passes_made)
    gap = (c.layer_gap + c.expert_gap * mixed) * np.where(replayed > 0, GRAPH_GAP_SHARE, 1.0)
    parts["launch"] = np.maximum(0.0, started - busy) + gap * passes_made
    return {name: parts[name] for name in LAYER_PARTS}, ep_hidden + cp_hidden + tp_hidden


def offloaded_activations(q: Question, a: Layouts) -> Floats:
    """Return the exposed seconds per layer and micro-batch of copying activations to the host and back."""
    offloaded = (a.offload == OFFLOAD.index("activations")) | inputs_on_host(q.work, a)
    if not np.any(offloaded):
        return np.zeros(1)
    size = 2 * stored_per_token(q.model, q.work, a) * a.mbs * q.work.seq / a.cp / q.model.decoder.layers
    return np.where(offloaded, EXPOSED_COPIES_SHARE * size / host_link(q), 0.0)


def hides_experts(f: Framework, a: Layouts) -> NDArray[np.bool_]:
    """Return where the exchange of experts runs beside another micro-batch's computation."""
    allowed = (a.recompute != RECOMPUTE.index("full")) & ((a.pp == 1) | (a.vpp > 1))
    return f.overlaps_experts & (allowed | (not f.interleaves_experts))


def exposed_tp(q: Question) -> float:
    """Return the fraction of tensor-parallel communication that is not overlapped with compute."""
    return q.calibration.exposed_tp * (1 - OVERLAPPED_TP_SHARE * q.work.framework.overlaps_tp)


def cuda_graphs(q: Question, a: Layouts) -> Ints:
    """Return how much of a step runs as CUDA graphs, without CPU launches: 0 for nothing, 1 for its layers, 2 for all of it."""
    f = q.work.framework
    return GRAPHS.index(f.graphs) * ((a.devices == 1) | (not f.graphs_alone))


def host_link(q: Question) -> float:
    """Return bytes per second between a device and its host."""
    return q.chip.host.bandwidth if q.chip.host else 1e10


def head_seconds(q: Question, comm: Communicators, p: Passes, a: Layouts) -> dict[str, Floats]:
    """Return seconds of the output head and the loss for one micro-batch."""
    rows, once = a.mbs * q.work.seq / a.cp, q.work.objective.forwards
    wire = np.where(a.tp > 1, comm.tp.split_reduce(2 * rows * q.model.decoder.hidden, a.sp), 0.0)
    return {"matmul": (1 + once) * p.head + p.head_back, "elementwise": (1 + once / 2) * p.logits, "tp": exposed_tp(q) * wire}


def _tensor_parallel(q: Question, comm: Communicators, a: Layouts) -> Floats:
    """Return seconds of all-reduces in one pass over all layers: one after each block that ends in a row-parallel product (Megatron,
    arXiv:1909.08053). With etp 1, experts hold whole products and need none."""
    dense = {block for block, op in q.model.placed if op.shard == "row" and not op.expert}
    mixed = {block for block, op in q.model.placed if op.shard == "row" and op.expert} - dense
    number = sum(times for block, times in q.model.times.items() if block in dense)
    experts = sum(times for block, times in q.model.times.items() if block in mixed)
    size = 2.0 * a.mbs * q.work.seq / a.cp * q.model.decoder.hidden
    return np.where(a.tp > 1, (number + experts * (a.etp > 1)) * comm.tp.split_reduce(size, a.sp), 0.0)


def _context_parallel(q: Question, comm: Communicators, a: Layouts) -> Floats:
    """Return seconds of passing keys and values around the ring in all layers. Backward moves twice the bytes. Latent attention passes
    only its small latent, and windowed attention only the keys in its window."""
    if not np.any(a.cp > 1):
        return np.zeros(1)
    seq = q.work.seq
    kept = sum(op.cache * op.count * min(seq, op.window or seq) for op in q.model.ops if op.kind == "attention")
    size = 2.0 * a.mbs * kept / np.minimum(a.tp, np.maximum(1, q.model.decoder.kv_heads))
    return np.where(a.cp > 1, 3 * comm.cp.gather(size), 0.0)


def _ring_overhead(q: Question, core: Floats, a: Layouts) -> Floats:
    """Return the seconds by which attention over a ring exceeds `core`, its time in one piece, per layer and micro-batch. A rank holds two
    chunks of seq / (2 cp) tokens (as Megatron and Transformer Engine deal them): a query tile that a chunk does not fill is computed
    whole, tiles that do not fill the chip leave it idle, and each further rank adds kernels and a merge of partial results. A fitted
    `ring_overhead` of the program includes the merges."""
    if not np.any(a.cp > 1):
        return np.zeros(1)
    attention = [op for op in q.model.ops if op.kind == "attention"]
    layers = q.model.decoder.layers
    chunk = q.work.seq / (2 * a.cp)
    tiles = np.ceil(chunk / FLASH_TILE_KEYS)
    heads = np.maximum(1.0, q.model.decoder.heads / a.tp)
    filled = np.minimum(1.0, 2 * tiles * a.mbs * heads / (q.chip.sms or DEFAULT_SMS))
    elements = sum(op.m * op.n * op.count for op in attention) * a.mbs * q.work.seq / a.cp / a.tp / layers
    bandwidth = q.chip.bandwidth * q.calibration.memory
    merging = (a.cp - 1) * (RING_MERGED_BYTES * elements / bandwidth + RING_KERNELS * MIN_KERNEL_SECONDS)
    fitted = q.work.framework.ring_overhead * np.log2(a.cp) * core
    slower = tiles * FLASH_TILE_KEYS / chunk / filled - 1
    return np.where(a.cp > 1, core * slower + np.maximum(merging, fitted), 0.0)


def _expert_parallel(q: Question, comm: Communicators, a: Layouts) -> Floats:
    """Return seconds of two all-to-alls per layer in one pass, to the experts and back, as slow as the busiest device. Where a framework
    sends a token once per node, its k experts are on n (1 - (1 - 1/n)^k) of n nodes. A model without experts sends nothing."""
    if not np.any(a.ep > 1) or not any(op.expert for op in q.model.ops):
        return np.zeros(1)
    f, d, layers = q.work.framework, q.model.decoder, q.model.times[MIXTURE]
    copies = sum(op.m * op.count for op in q.model.ops if op.expert and op.shard == "row") / layers
    nodes = np.maximum(1.0, comm.ep.nodes * d.expert_reach)
    once = nodes * (1 - (1 - 1 / nodes) ** copies) / copies if f.sends_once else 1.0
    elements = a.mbs * q.work.seq / a.cp * copies * d.hidden / np.where((a.sp > 0) | (a.etp < a.tp), a.tp, 1)
    there, back = (comm.ep.seconds(size * elements, once) for size in (f.dispatch_bytes, 2.0))
    return np.where(a.ep > 1, layers * q.work.imbalance * (there + back), 0.0)
