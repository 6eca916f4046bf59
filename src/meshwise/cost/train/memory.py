"""Peak memory of the fullest device, by kind: weights, gradients, optimizer state, activations, logits, CUDA context."""

from dataclasses import dataclass

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import OFFLOAD
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.distinct import Groups
from meshwise.cost.train.recompute import Kept, kept
from meshwise.cost.work import OPTIMIZER_BYTES, Train
from meshwise.models.model import Model

GATHERED = 3.0
"""Activations of full width that the layer at work has gathered from its tensor-parallel ranks (sequence parallelism): its input, and in
the backward pass its input's and its output's gradient."""


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
    tensors: float
    """Weights of products per layer, without experts."""

    @staticmethod
    def of(model: Model) -> "Parameters":
        inner = [op for block, op in model.placed if block not in ("embedding", "head")]
        experts = sum(op.params * op.count for op in inner if op.expert)
        dense = sum(op.params * op.count for op in inner) - experts
        table = next(op.params for op in model.ops if op.name == "embedding")
        tensors = sum(op.count for op in inner if op.kind == "matmul" and not op.expert) / model.decoder.layers
        return Parameters(dense, experts, table, 1 if model.decoder.tied else 2, model.decoder.layers, tensors)

    def on_stage(self, layers: Floats, a: Layouts) -> tuple[Floats, Floats]:
        """Return dense and expert parameters per device of a stage of `layers` layers with a vocabulary table."""
        table = np.where(a.pp > 1, self.table, self.table * self.tables)
        dense = (self.dense * layers / self.layers + table) / a.tp
        return dense, self.experts * layers / self.layers / (a.etp * a.ep)

    def sharded(self, dense: Floats, experts: Floats, a: Layouts) -> Floats:
        """Return how many parameters of a device it keeps optimizer state for. Data and context ranks shard the state of dense parameters;
        the ranks that hold an expert shard its state."""
        shard = np.where(a.zero >= 1, a.dp_shard * a.cp, 1.0)
        if not self.experts:
            return dense / shard
        holders = np.where(a.zero >= 1, np.maximum(1.0, a.dp_shard * a.cp * a.tp / (a.ep * a.etp)), 1.0)
        return dense / shard + experts / holders


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes of activations per token that all layers can keep for the backward pass, by kind (`recompute.Kept`). `whole` ones have the
    full width and are sharded by sequence parallelism only; the others are sharded by tensor parallelism."""

    input: float
    """Whole: the input of each layer, which is always kept."""
    norms: float
    """Whole: inputs of the other norms, outputs of all norms."""
    masks: float
    """Whole: dropout masks."""
    mixer: float
    mixed: float
    ffn: float
    gated: float
    copies: float
    scores: float
    """Attention scores without flash kernels, per token and key."""

    @staticmethod
    def of(model: Model, framework: Framework, element: float = 2.0) -> "ActivationBytes":
        """Count the inputs that products, norms and activation functions keep; narrow products keep theirs in `element` bytes.

        Worked for GPT: norms 4h and the inputs after them 4h, q k v 6h, attention output 2h, up 8h, down 8h: 32 of the 34 bytes per
        hidden unit of Korthikanti et al. 2022, eq. 1; dropout masks are the other 2.
        """
        hidden, times = model.decoder.hidden, model.times
        sums = dict.fromkeys(("norms", "masks", "mixer", "mixed", "ffn", "gated", "copies", "scores"), 0.0)
        chained = {block for block, op in model.placed if op.serial}
        narrow = element < 2
        for block, op in model.placed:
            if block not in times:
                continue
            feeds = op.part in ("ffw", "experts")
            if op.name == "layer_norm":
                # its input, and its output, which the products that follow share
                sums["norms"] += (2 + element * (not framework.remakes_elements or narrow)) * hidden * op.count
            elif op.kind == "matmul" and op.shard in ("column", "kv"):
                sums["ffn" if feeds else "mixer"] += 2 * op.n * op.m * op.count
                twice = framework.keeps_intermediates and op.name.endswith(".gate")
                sums["copies"] += 2 * op.n * op.m * op.count * twice
            elif op.kind == "matmul" and op.shard == "row":
                remade = framework.remakes_elements and op.name.endswith(".down")
                # attention keeps its output in 16 bits, beside the narrow copy that the product keeps
                again = 2.0 * (narrow and framework.remakes_elements and not feeds)
                sums["gated" if feeds else "mixed"] += (element + again) * op.k * op.m * op.count * (not remade)
                sums["masks"] += hidden * times[block] * (framework.dropout and not op.expert)
            elif op.kind == "attention":
                sums["scores"] += 0.0 if framework.flash_attention else 5 * op.m * op.count
                rotated = framework.keeps_intermediates and model.decoder.position_kind == "rotary"
                sums["copies"] += 2 * (op.m * op.k + op.cache / 2) * op.count * rotated
                # queries, keys and values before their norms, in the product that a kernel splits
                sums["mixer"] += (
                    2 * (op.m * op.k + op.cache) * op.count * bool(framework.joins_products and model.decoder.qk_norm)
                )
            elif op.kind == "scan" and block in chained:
                # kernels of a chain keep its inputs, which the projections count, and the initial state of each step; those of a learner
                # with a wider hidden layer recompute the states instead
                sums["mixer"] += (op.state / op.serial if op.serial and op.n <= op.k else 0.0) * op.count
            elif op.kind in ("scan", "conv"):
                sums["mixer"] += 2 * op.m * op.n * op.count
        layer_inputs = 2.0 * hidden * model.decoder.layers
        return ActivationBytes(layer_inputs, sums.pop("norms") - layer_inputs, **sums)

    def left(self, keep: Kept, share: Floats, tp: Floats, seq: int) -> Floats:
        """Return bytes per token that are kept, with `share` and `tp` devices sharding whole and cut activations."""
        whole = self.input + self.norms * keep.norms + self.masks * keep.copies
        cut = self.mixer * keep.mixer + self.mixed * keep.mixed + self.ffn * keep.ffn + self.gated * keep.gated
        return whole / share + (cut + self.copies * keep.copies + self.scores * keep.scores * seq) / tp


@dataclass(frozen=True)
class StateMemory:
    """Bytes of weights, gradients and optimizer state, and of logits. Two rows: the first stage and the last; both hold a vocabulary
    table."""

    states: dict[str, Floats]
    """By kind: weights, gradients, optimizer."""
    logits: Floats
    """On the last stage."""
    buckets: Floats
    """Buffers that gradients are reduced from and weights gathered into, two of each bucket."""
    replaces_activations: Floats
    """Whether gradients take the place of freed activations, so that the two are never all in memory at once."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "StateMemory":
        states = _states(Parameters.of(model), work, a, np.stack(layers), microbatches)
        replaces = work.framework.splits_weights & (a.devices == 1) & (microbatches == 1)
        f = work.framework
        buckets = 2.0 * f.bucket * f.reduced_bytes * (a.dp_shard * a.cp > 1)
        return StateMemory(states, _logits(model, work, a.mbs * (work.seq / a.cp), a), buckets, replaces)

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
        left, working = _activations(model, work, a)
        rows = a.mbs * (work.seq / a.cp)
        per_layer = rows * left / model.decoder.layers
        held = layers[0] * np.minimum(a.pp, microbatches)
        # offloaded activations stay on the device for the layer that computes and the one that is copied
        offloaded = a.offload == OFFLOAD.index("activations")
        first, last = (np.where(offloaded, np.minimum(2.0, count), count) * per_layer for count in (held, layers[1]))
        interleaved = np.where(a.vpp > 1, (a.pp - 1) / a.pp, 0.0)
        gathered = GATHERED * 2.0 * model.decoder.hidden * (a.sp > 0)
        return ActivationMemory(first, interleaved, last, rows * (working + gathered))


def memory(
    c: Calibration, held: StateMemory, states: Groups, stored: ActivationMemory, activations: Groups, vpp: Ints
) -> dict[str, Floats]:
    """Return bytes by kind on the first or the last stage of every layout, whichever is fuller. `states` and `activations` are the groups
    of layouts that `held` and `stored` were computed for."""
    first = activations.expand(stored.first) * (1 + activations.expand(stored.interleaved) / vpp)
    last = activations.expand(stored.last)
    total = [states.expand(values) for values in held.total]
    # A single stage counts as the last: it has everything the first has, and logits.
    stage = (total[0] + first <= total[1] + last).astype(np.int64)
    sizes = {kind: states.expand_row(values, stage) for kind, values in held.states.items()}
    sizes["activations"] = (np.where(stage, last, first) + activations.expand(stored.working)) * c.activations
    sizes["logits"] = stage * states.expand(held.logits)
    if held.replaces_activations.any():
        freed = sizes["activations"] + sizes["logits"]
        replaces = states.expand(held.replaces_activations)
        sizes["gradients"] = np.where(replaces, np.maximum(0.0, sizes["gradients"] - freed), sizes["gradients"])
    sizes["context"] = c.context + states.expand(held.buckets)
    return sizes


def _logits(model: Model, work: Train, rows: Floats, a: Layouts) -> Floats:
    """Return bytes of all logits; where they are computed in chunks, two chunks at a time, the head's gradient in float32 and the gradient
    of its input; fused with the head, only the latter two. A vocabulary that is not a multiple of 64 is padded, in a copy of the head."""
    f, vocabulary, hidden = work.framework, model.decoder.vocab, model.decoder.hidden
    if work.loss_kind == "materialised":
        return rows * (vocabulary * f.logit_bytes) / a.tp
    whole = 2.0 * rows * vocabulary / a.tp
    parts = np.ceil(whole / f.logits_at_once)
    head = (4.0 + 2.0 * (np.mod(vocabulary, 64) > 0)) * vocabulary * hidden / a.tp
    chunks = whole / parts * np.minimum(2.0, parts) if work.loss_kind == "chunked" else 0.0
    return chunks + head + 2.0 * rows * hidden


def state_bytes(work: Train, a: Layouts, microbatches: Floats) -> tuple[Floats, Floats]:
    """Return bytes per parameter of gradients and of optimizer state: fewer where a single device splits its weights."""
    f, whole = work.framework, OPTIMIZER_BYTES[work.optimizer] + work.framework.master_gradient_bytes
    split = f.splits_weights & (a.devices == 1)
    summed = f.fp16_gradient_bytes if work.precision == "fp16" and f.fp16_gradient_bytes else f.gradient_bytes
    gradients = np.where(split & (microbatches == 1), 2.0, float(summed))
    return gradients, np.where(split, whole - 2.0, whole)


def _states(sizes: Parameters, work: Train, a: Layouts, layers: Floats, microbatches: Floats) -> dict[str, Floats]:
    """Return bytes of weights, gradients and optimizer state of a stage of `layers` layers (ZeRO, arXiv:1910.02054)."""
    f = work.framework
    per_gradient, per_state = state_bytes(work, a, microbatches)
    dense, experts = sizes.on_stage(layers, a)
    local = dense + experts
    sharded = sizes.sharded(dense, experts, a)
    # ZeRO 3 gathers the next layer while one is computed; with pipeline stages, gathered weights and whole gradients stay from one
    # micro-batch to the next.
    optimizer_on_host = a.offload == OFFLOAD.index("optimizer")
    # a float32 shard that is the master copy counts with the optimizer's state, and stays where only that is offloaded
    shard = np.where(optimizer_on_host, 4.0 / f.weight_bytes, 0.0) if f.shards_master else 1.0
    on_device = sharded * (a.offload != OFFLOAD.index("parameters")) * shard
    gathers = (a.zero >= 3) & (a.pp == 1)
    weights = np.where(gathers, on_device + 2 * local / np.maximum(1.0, layers), local)
    offloaded = optimizer_on_host | (a.offload == OFFLOAD.index("parameters"))
    return {
        "weights": f.weight_bytes * weights,
        "gradients": per_gradient * np.where((a.zero >= 2) & (a.pp == 1), sharded, local),
        "optimizer": per_state * sharded * ~offloaded,
    }


def host_bytes(model: Model, work: Train, a: Layouts, layers: Floats, microbatches: Floats) -> Floats:
    """Return bytes per device that offload keeps in host memory: optimizer state and gradients, with `parameters` the weights too; or
    activations."""
    f, (_, per_state) = work.framework, state_bytes(work, a, microbatches)
    sizes = Parameters.of(model)
    sharded = sizes.sharded(*sizes.on_stage(layers, a), a)
    states = sharded * (per_state + 4.0 + f.weight_bytes * (a.offload == OFFLOAD.index("parameters")))
    left, _ = _activations(model, work, a)
    activations = layers * np.minimum(a.pp, microbatches) * a.mbs * (work.seq / a.cp) * left / model.decoder.layers
    kind = [a.offload == OFFLOAD.index("none"), a.offload == OFFLOAD.index("activations")]
    return np.select(kind, [np.zeros_like(states), activations], states)


def stored_per_token(model: Model, work: Train, a: Layouts) -> Floats:
    """Return bytes per token that a micro-batch keeps in all layers for its backward pass."""
    return _activations(model, work, a)[0]


def _activations(model: Model, work: Train, a: Layouts) -> tuple[Floats, Floats]:
    """Return bytes per token that a micro-batch keeps in all layers for its backward pass, and bytes per token of the layer that is being
    recomputed."""
    f = work.framework
    sizes = ActivationBytes.of(model, f, work.recipe.bytes)
    share = np.where(a.sp > 0, a.tp, 1.0)
    left = sizes.left(kept(f, a.recompute), share, a.tp, work.seq)
    everything = sizes.left(Kept(), share, a.tp, work.seq)
    dropped = (everything - left) / model.decoder.layers
    again = np.where(dropped > 0, dropped + sizes.input / model.decoder.layers / share, 0.0)
    return left, again
