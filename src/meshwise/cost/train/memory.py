"""Bytes on the fullest device, by kind."""

from dataclasses import dataclass

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.distinct import Few
from meshwise.cost.work import OPTIMIZER_BYTES, Train
from meshwise.models.model import Model


@dataclass(frozen=True)
class Sizes:
    """Parameters of the model by how they are cut: layers, experts in them, and the vocabulary."""

    dense: float
    experts: float
    table: float
    """One vocabulary table."""
    tables: int
    layers: int

    @staticmethod
    def of(model: Model) -> "Sizes":
        inner = [op for block, op in model.placed if block not in ("embedding", "head")]
        experts = sum(op.params * op.count for op in inner if op.expert)
        dense = sum(op.params * op.count for op in inner) - experts
        table = next(op.params for op in model.ops if op.name == "embedding")
        return Sizes(dense, experts, table, 1 if model.decoder.tied else 2, model.decoder.layers)

    def on_stage(self, layers: Floats, a: Layouts) -> tuple[Floats, Floats]:
        """Parameters per device of a stage of `layers` layers with a vocabulary table: dense ones, and experts."""
        table = np.where(a.pp > 1, self.table, self.table * self.tables)
        dense = (self.dense * layers / self.layers + table) / a.tp
        return dense, self.experts * layers / self.layers / (a.tp * a.ep)

    def sharded(self, dense: Floats, experts: Floats, a: Layouts) -> Floats:
        """Of the parameters of a device, those whose optimizer state it keeps: context ranks share them out as data ranks do, and of an
        expert only the ranks that hold it."""
        shard = np.where(a.zero >= 1, a.dp_shard * a.cp, 1.0)
        return dense / shard + experts / np.maximum(1.0, shard / a.ep) if self.experts else dense / shard


@dataclass(frozen=True)
class Kept:
    """Bytes of activations per token that all layers keep for the backward pass, by how parallelism shares them."""

    whole: float
    """Full width: shared out only by sequence parallelism."""
    cut: float
    """Cut by tensor parallelism."""
    scores: float
    """Of attention without flash kernels, per token and key; cut by tensor parallelism."""

    @staticmethod
    def of(model: Model, framework: Framework, narrow: bool = False) -> "Kept":
        """A product keeps its input, a norm its input, an activation function its input; products of 8 bits keep theirs in 8 (`narrow`).

        Worked for GPT: norms 4h and the inputs behind them 4h, q k v 6h, attention output 2h, up 8h, down 8h: 32 of the 34 bytes per
        hidden unit of Korthikanti et al. 2022, eq. 1; dropout masks are the other 2.
        """
        times = model.times
        hidden = model.decoder.hidden
        element = 1 if narrow else 2
        whole = cut = scores = 0.0
        chained = {block for block, op in model.placed if op.serial}
        for block, op in model.placed:
            if block not in times:
                continue
            if op.name == "layer_norm":
                # its input, and its output, which the products behind it share
                whole += (2 + element * (not framework.remakes_elements)) * hidden * op.count
            elif op.kind == "matmul" and op.shard in ("column", "kv"):
                twice = framework.keeps_intermediates and op.name.endswith(".gate")
                cut += 2 * op.n * op.m * op.count * (1 + twice)
            elif op.kind == "matmul" and op.shard == "row":
                remade = framework.remakes_elements and op.name.endswith(".down")
                cut += element * op.k * op.m * op.count * (not remade)
                whole += hidden * times[block] * (framework.dropout and not op.expert)
            elif op.kind == "attention":
                scores += 0.0 if framework.flash_attention else 5 * op.m * op.count
                cut += 2 * (op.m * op.k + op.cache / 2) * op.count * framework.keeps_intermediates
            elif op.kind == "scan" and block in chained:
                # the kernels of a chain keep its inputs, which the projections count, and the state that each of its steps began with, but
                # of a learner that is wider inside walk the chain again
                cut += (op.state / op.serial if op.serial and op.n <= op.k else 0.0) * op.count
            elif op.kind in ("scan", "conv"):
                cut += 2 * op.m * op.n * op.count
        return Kept(whole, cut, scores)


@dataclass(frozen=True)
class Held:
    """Bytes that stay from step to step, and logits. Two rows: of the first stage, and of the last; both hold a vocabulary table."""

    states: dict[str, Floats]
    logits: Floats
    """Of the last stage."""
    apart: Floats
    """Where gradients are made as activations go, and never stand beside them all."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "Held":
        states = _states(Sizes.of(model), work, a, np.stack(layers), microbatches)
        apart = work.framework.splits_weights & (a.devices == 1) & (microbatches == 1)
        return Held(states, _logits(model, work.framework, a.mbs * (work.seq / a.cp), a), apart)

    @property
    def total(self) -> Floats:
        """Of all kinds."""
        none = np.zeros_like(self.logits)
        return sum(self.states.values(), np.stack([none, self.logits]))


@dataclass(frozen=True)
class Activations:
    """Bytes that micro-batches keep for their backward pass."""

    first: Floats
    """On the first stage, which holds as many micro-batches as there are stages (arXiv:2104.04473, 2.2)."""
    more: Floats
    """Of those, how much more interleaving holds, if vpp were 1."""
    last: Floats
    working: Floats
    """What recompute brings back at a time."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "Activations":
        kept, working = _activations(model, work, a)
        rows = a.mbs * (work.seq / a.cp)
        per_layer = rows * kept / model.decoder.layers
        first = layers[0] * np.minimum(a.pp, microbatches) * per_layer
        more = np.where(a.vpp > 1, (a.pp - 1) / a.pp, 0.0)
        return Activations(first, more, layers[1] * per_layer, rows * working)


def memory(c: Calibration, held: Held, states: Few, kept: Activations, slots: Few, vpp: Ints) -> dict[str, Floats]:
    """Bytes by kind on the first or the last stage of every layout, whichever is fuller."""
    first, last = slots.spread(kept.first) * (1 + slots.spread(kept.more) / vpp), slots.spread(kept.last)
    total = [states.spread(each) for each in held.total]
    # Where there is but one stage it is the last: it has all that the first has, and logits.
    stage = (total[0] + first <= total[1] + last).astype(np.int64)
    found = {kind: states.pick(each, stage) for kind, each in held.states.items()}
    found["activations"] = (np.where(stage, last, first) + slots.spread(kept.working)) * c.activations
    found["logits"] = stage * states.spread(held.logits)
    if held.apart.any():
        beside = found["activations"] + found["logits"]
        apart = states.spread(held.apart)
        found["gradients"] = np.where(apart, np.maximum(0.0, found["gradients"] - beside), found["gradients"])
    found["context"] = np.full(len(vpp), c.context)
    return found


def _logits(model: Model, f: Framework, rows: Floats, a: Layouts) -> Floats:
    """All logits; or a part of them and the one before it, beside the head's gradient in float32 and that of its input. A vocabulary
    that is no multiple of 64 is padded, in a copy of the head."""
    vocabulary, hidden = model.decoder.vocab, model.decoder.hidden
    if not f.logits_at_once:
        return rows * (vocabulary * f.logit_bytes) / a.tp
    every = 2.0 * rows * vocabulary / a.tp
    parts = np.ceil(every / f.logits_at_once)
    head = (4.0 + 2.0 * (np.mod(vocabulary, 64) > 0)) * vocabulary * hidden / a.tp
    return every / parts * np.minimum(2.0, parts) + head + 2.0 * rows * hidden


def state_bytes(work: Train, a: Layouts, microbatches: Floats) -> tuple[Floats, Floats]:
    """Bytes per parameter of the gradients and of the optimizer's state: less where one device has split weights."""
    f, whole = work.framework, OPTIMIZER_BYTES[work.optimizer] + work.framework.master_gradient_bytes
    split = f.splits_weights & (a.devices == 1)
    gradients = np.where(split & (microbatches == 1), 2.0, float(f.gradient_bytes))
    return gradients, np.where(split, whole - 2.0, whole)


def _states(sizes: Sizes, work: Train, a: Layouts, layers: Floats, microbatches: Floats) -> dict[str, Floats]:
    """Weights, gradients and optimizer state of a stage of `layers` layers (ZeRO, arXiv:1910.02054)."""
    f = work.framework
    per_gradient, per_state = state_bytes(work, a, microbatches)
    dense, experts = sizes.on_stage(layers, a)
    local = dense + experts
    sharded = sizes.sharded(dense, experts, a)
    # ZeRO 3 gathers one layer ahead of the one at work.
    weights = np.where(a.zero >= 3, sharded * (a.offload < 2) + 2 * local / np.maximum(1.0, layers), local)
    return {
        "weights": f.weight_bytes * weights,
        "gradients": per_gradient * np.where(a.zero >= 2, sharded, local),
        "optimizer": per_state * sharded * (a.offload < 1),
    }


def _activations(model: Model, work: Train, a: Layouts) -> tuple[Floats, Floats]:
    """Bytes per token that a micro-batch leaves behind in all layers for its backward pass, and that recompute brings back at a time."""
    f = work.framework
    kept = Kept.of(model, f, work.precision == "fp8")
    share = np.where(a.sp > 0, a.tp, 1.0)
    without_scores = kept.whole / share + kept.cut / a.tp
    everything = without_scores + (kept.scores * work.seq) / a.tp
    only_inputs = 2 * model.decoder.hidden * model.decoder.layers / share
    full = a.recompute == 2
    left = np.where(full, only_inputs, np.where(a.recompute == 1, without_scores, everything))
    return left, np.where(full, everything / model.decoder.layers, 0.0)
