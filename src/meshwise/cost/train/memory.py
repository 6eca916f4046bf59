"""Peak memory of the fullest device, by kind: weights, gradients, optimizer state, activations, logits, CUDA context."""

from dataclasses import dataclass

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.distinct import Groups
from meshwise.cost.work import OPTIMIZER_BYTES, Train
from meshwise.models.model import Model


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model by how they are sharded."""

    dense: float
    """In all layers, without experts."""
    experts: float
    table: float
    """Of one vocabulary table: the embedding, or the head."""
    tables: int
    """Vocabulary tables: 1 where embedding and head are tied, otherwise 2."""
    layers: int

    @staticmethod
    def of(model: Model) -> "Parameters":
        inner = [op for block, op in model.placed if block not in ("embedding", "head")]
        experts = sum(op.params * op.count for op in inner if op.expert)
        dense = sum(op.params * op.count for op in inner) - experts
        table = next(op.params for op in model.ops if op.name == "embedding")
        return Parameters(dense, experts, table, 1 if model.decoder.tied else 2, model.decoder.layers)

    def on_stage(self, layers: Floats, a: Layouts) -> tuple[Floats, Floats]:
        """Return dense and expert parameters per device of a stage of `layers` layers with a vocabulary table."""
        table = np.where(a.pp > 1, self.table, self.table * self.tables)
        dense = (self.dense * layers / self.layers + table) / a.tp
        return dense, self.experts * layers / self.layers / (a.tp * a.ep)

    def sharded(self, dense: Floats, experts: Floats, a: Layouts) -> Floats:
        """Return how many parameters of a device it keeps optimizer state for. Data and context ranks shard the state of dense parameters;
        the ranks that hold an expert shard its state."""
        shard = np.where(a.zero >= 1, a.dp_shard * a.cp, 1.0)
        return dense / shard + experts / np.maximum(1.0, shard / a.ep) if self.experts else dense / shard


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes of activations per token that all layers keep for the backward pass, by the parallelism that shards them."""

    whole: float
    """Full width: sharded by sequence parallelism only."""
    cut: float
    """Sharded by tensor parallelism."""
    scores: float
    """Attention scores without flash kernels, per token and key; sharded by tensor parallelism."""

    @staticmethod
    def of(model: Model, framework: Framework, narrow: bool = False) -> "ActivationBytes":
        """Count the inputs that products, norms and activation functions keep; products in 8 bits keep theirs in 8 bits (`narrow`).

        Worked for GPT: norms 4h and the inputs after them 4h, q k v 6h, attention output 2h, up 8h, down 8h: 32 of the 34 bytes per
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
                # its input, and its output, which the products that follow share
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
                # kernels of a chain keep its inputs, which the projections count, and the initial state of each step; those of a learner
                # with a wider hidden layer recompute the states instead
                cut += (op.state / op.serial if op.serial and op.n <= op.k else 0.0) * op.count
            elif op.kind in ("scan", "conv"):
                cut += 2 * op.m * op.n * op.count
        return ActivationBytes(whole, cut, scores)


@dataclass(frozen=True)
class StateMemory:
    """Bytes of weights, gradients and optimizer state, and of logits. Two rows: the first stage and the last; both hold a vocabulary
    table."""

    states: dict[str, Floats]
    """By kind: weights, gradients, optimizer."""
    logits: Floats
    """On the last stage."""
    replaces_activations: Floats
    """Whether gradients take the place of freed activations, so that the two are never all in memory at once."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "StateMemory":
        states = _states(Parameters.of(model), work, a, np.stack(layers), microbatches)
        replaces = work.framework.splits_weights & (a.devices == 1) & (microbatches == 1)
        return StateMemory(states, _logits(model, work.framework, a.mbs * (work.seq / a.cp), a), replaces)

    @property
    def total(self) -> Floats:
        """Bytes of all kinds and logits."""
        none = np.zeros_like(self.logits)
        return sum(self.states.values(), np.stack([none, self.logits]))


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of activations that micro-batches keep for their backward pass."""

    first: Floats
    """On the first stage, which holds as many micro-batches as there are stages (arXiv:2104.04473, 2.2)."""
    interleaved: Floats
    """Share of `first` that interleaving adds, times vpp."""
    last: Floats
    """On the last stage, which holds one micro-batch."""
    working: Floats
    """Activations of the layer that is being recomputed."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "ActivationMemory":
        kept, working = _activations(model, work, a)
        rows = a.mbs * (work.seq / a.cp)
        per_layer = rows * kept / model.decoder.layers
        first = layers[0] * np.minimum(a.pp, microbatches) * per_layer
        interleaved = np.where(a.vpp > 1, (a.pp - 1) / a.pp, 0.0)
        return ActivationMemory(first, interleaved, layers[1] * per_layer, rows * working)


def memory(
    c: Calibration, held: StateMemory, states: Groups, kept: ActivationMemory, activations: Groups, vpp: Ints
) -> dict[str, Floats]:
    """Return bytes by kind on the first or the last stage of every layout, whichever is fuller. `states` and `activations` are the groups
    of layouts that `held` and `kept` were computed for."""
    first = activations.expand(kept.first) * (1 + activations.expand(kept.interleaved) / vpp)
    last = activations.expand(kept.last)
    total = [states.expand(values) for values in held.total]
    # A single stage counts as the last: it has everything the first has, and logits.
    stage = (total[0] + first <= total[1] + last).astype(np.int64)
    sizes = {kind: states.expand_row(values, stage) for kind, values in held.states.items()}
    sizes["activations"] = (np.where(stage, last, first) + activations.expand(kept.working)) * c.activations
    sizes["logits"] = stage * states.expand(held.logits)
    if held.replaces_activations.any():
        freed = sizes["activations"] + sizes["logits"]
        replaces = states.expand(held.replaces_activations)
        sizes["gradients"] = np.where(replaces, np.maximum(0.0, sizes["gradients"] - freed), sizes["gradients"])
    sizes["context"] = np.full(len(vpp), c.context)
    return sizes


def _logits(model: Model, f: Framework, rows: Floats, a: Layouts) -> Floats:
    """Return bytes of all logits; where the framework computes them in parts, two parts at a time, the head's gradient in float32 and the
    gradient of its input. A vocabulary that is not a multiple of 64 is padded, in a copy of the head."""
    vocabulary, hidden = model.decoder.vocab, model.decoder.hidden
    if not f.logits_at_once:
        return rows * (vocabulary * f.logit_bytes) / a.tp
    whole = 2.0 * rows * vocabulary / a.tp
    parts = np.ceil(whole / f.logits_at_once)
    head = (4.0 + 2.0 * (np.mod(vocabulary, 64) > 0)) * vocabulary * hidden / a.tp
    return whole / parts * np.minimum(2.0, parts) + head + 2.0 * rows * hidden


def state_bytes(work: Train, a: Layouts, microbatches: Floats) -> tuple[Floats, Floats]:
    """Return bytes per parameter of gradients and of optimizer state: fewer where a single device splits its weights."""
    f, whole = work.framework, OPTIMIZER_BYTES[work.optimizer] + work.framework.master_gradient_bytes
    split = f.splits_weights & (a.devices == 1)
    gradients = np.where(split & (microbatches == 1), 2.0, float(f.gradient_bytes))
    return gradients, np.where(split, whole - 2.0, whole)


def _states(sizes: Parameters, work: Train, a: Layouts, layers: Floats, microbatches: Floats) -> dict[str, Floats]:
    """Return bytes of weights, gradients and optimizer state of a stage of `layers` layers (ZeRO, arXiv:1910.02054)."""
    f = work.framework
    per_gradient, per_state = state_bytes(work, a, microbatches)
    dense, experts = sizes.on_stage(layers, a)
    local = dense + experts
    sharded = sizes.sharded(dense, experts, a)
    # ZeRO 3 gathers the next layer while one is computed.
    weights = np.where(a.zero >= 3, sharded * (a.offload < 2) + 2 * local / np.maximum(1.0, layers), local)
    return {
        "weights": f.weight_bytes * weights,
        "gradients": per_gradient * np.where(a.zero >= 2, sharded, local),
        "optimizer": per_state * sharded * (a.offload < 1),
    }


def _activations(model: Model, work: Train, a: Layouts) -> tuple[Floats, Floats]:
    """Return bytes per token that a micro-batch keeps in all layers for its backward pass, and bytes per token of the layer that is being
    recomputed."""
    f = work.framework
    kept = ActivationBytes.of(model, f, work.precision == "fp8")
    share = np.where(a.sp > 0, a.tp, 1.0)
    without_scores = kept.whole / share + kept.cut / a.tp
    everything = without_scores + (kept.scores * work.seq) / a.tp
    only_inputs = 2 * model.decoder.hidden * model.decoder.layers / share
    full = a.recompute == 2
    left = np.where(full, only_inputs, np.where(a.recompute == 1, without_scores, everything))
    return left, np.where(full, everything / model.decoder.layers, 0.0)
