"""Memory of the fullest device by kind: weights, gradients, optimizer state, activations, logits, context, what the allocator keeps; at
the moments of a step that may be its peak: the loss, the backward pass of the last and of the first layer, and the update."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.chain import scratch_bytes
from meshwise.cost.train.distinct import Groups
from meshwise.cost.train.parameters import Finetuned, Parameters, finetuned
from meshwise.cost.train.recompute import Kept, kept
from meshwise.cost.work import FUSED_UPDATE, MASTER_BYTES, OPTIMIZER_BYTES, PAGED_BYTES, WEIGHT_DTYPE_OPTIMIZERS, Train
from meshwise.models.model import Model
from meshwise.models.op import TRAINED_TOWER

TOWER_BYTES = 32.0
"""Bytes of activations per patch and element of width in a layer of a tower, which has GPT's blocks: `ActivationBytes.of`."""
WIDE_LOGIT_BYTES = 4.0
"""Bytes per logit more where the head has float32 weights: its logits, and their gradient, have 4 bytes instead of 2."""
GATHERED_ACTIVATIONS = 3.0
"""Activations of full width that the layer at work has gathered from its tensor-parallel ranks (sequence parallelism): its input, and in
the backward pass its input's and its output's gradient."""


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
    def of(model: Model, framework: Framework, element: float = 2.0, how: Finetuned | None = None) -> "ActivationBytes":
        """Count the inputs that products, norms and activation functions keep; narrow products keep theirs in `element` bytes. A frozen
        product keeps none, its adapter does.

        Worked for GPT: norms 4h and the inputs after them 4h, q k v 6h, attention output 2h, up 8h, down 8h: 32 of the 34 bytes per
        hidden unit of Korthikanti et al. 2022, eq. 1; dropout masks are the other 2.
        """
        hidden, times = model.decoder.hidden, model.times
        sums = dict.fromkeys(("norms", "masks", "mixer", "mixed", "ffn", "gated", "copies", "scores"), 0.0)
        chained = {block for block, op in model.placed if op.serial}
        reads = _inputs_kept(framework, how)
        narrow, stream = element < 2, stream_bytes(framework, how)
        for block, op in model.placed:
            if block not in times:
                continue
            feeds = op.part in ("ffw", "experts")
            if op.name == "layer_norm":
                # its input, and its output, which the products that follow share
                output = not framework.remakes_elements or narrow
                sums["norms"] += (stream + element * output * reads.norms) * hidden * op.count
            elif op.kind == "matmul" and op.shard in ("column", "kv"):
                sums["ffn" if feeds else "mixer"] += 2 * op.n * op.m * op.count
                twice = framework.keeps_intermediates and op.name.endswith(".gate")
                sums["copies"] += 2 * op.n * op.m * op.count * twice
            elif op.kind == "matmul" and op.shard == "row":
                remade = framework.remakes_elements and op.name.endswith(".down")
                read = reads.gated if feeds else 1.0  # attention itself keeps its output
                # attention keeps its output in 16 bits, beside the narrow copy that the product keeps
                again = 2.0 * (narrow and framework.remakes_elements and not feeds)
                sums["gated" if feeds else "mixed"] += (element + again) * op.k * op.m * op.count * (not remade) * read
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
        layer_inputs = stream * hidden * model.decoder.layers
        sums["copies"] += _adapter_bytes(framework, how, normed=bool(model.decoder.qk_norm))
        sizes = {"input": layer_inputs, **sums, "norms": sums["norms"] - layer_inputs}
        visited = how.inputs if how else 1.0  # layers below the lowest trained one keep nothing
        return ActivationBytes(**{name: size * visited for name, size in sizes.items()})

    def left(self, keep: Kept, share: Floats, tp: Floats, seq: int) -> Floats:
        """Return bytes per token that are kept, with `share` and `tp` devices sharding whole and cut activations."""
        whole = self.input + self.norms * keep.norms + self.masks * keep.copies
        cut = self.mixer * keep.mixer + self.mixed * keep.mixed + self.ffn * keep.ffn + self.gated * keep.gated
        return whole / share + (cut + self.copies * keep.copies + self.scores * keep.scores * seq) / tp


def stream_bytes(f: Framework, how: Finetuned | None) -> float:
    """Return bytes per element of the residual stream: float32 where the norms and the embedding of a quantized base are."""
    return how.stream if how else 2.0


@dataclass(frozen=True)
class InputsKept:
    """Shares of the inputs of products that stay in memory because a weight, or an adapter, needs them for its gradient."""

    norms: float = 1.0
    """Outputs of norms, half of which feed mixers and half feed-forward layers."""
    gated: float = 1.0
    """Inputs of the products that end feed-forward layers."""


def _inputs_kept(f: Framework, how: Finetuned | None) -> InputsKept:
    if how is None or how.weights:
        return InputsKept()
    shared = not f.adapter_input_bytes
    norms = sum(how.adapts(feeds=feeds, row=False) for feeds in (False, True)) / 2
    return InputsKept(norms * shared, float(how.adapts(feeds=True, row=True) and shared))


def _adapter_bytes(f: Framework, how: Finetuned | None, normed: bool) -> float:
    """Return bytes per token that adapters keep in all layers: the narrow product, with DoRA the wide one before it is scaled, and their
    own copies of their inputs where the framework makes such copies. Where elements are made again, the wide product takes the place of
    what is made from it and kept otherwise: outputs of up and gate, the sum that attention is added to, and queries and keys before their
    norms (`normed`)."""
    total = 0.0
    for module in how.adapted if how else ():
        op = module.ops[0]
        used, feeds = module.count * op.m, op.part in ("ffw", "experts")
        replaces = f.remakes_elements and (feeds != (op.shard == "row") or (normed and not feeds))
        wide = 2.0 * module.n * (how.magnitudes and not replaces) if how else 0.0
        total += used * module.layers * (f.adapter_input_bytes * module.k + 2.0 * (how.rank if how else 0)) + used * wide
    return total


@dataclass(frozen=True)
class StateMemory:
    """Bytes of weights, gradients and optimizer state, and of logits. Two rows: the first stage and the last; both hold a vocabulary
    table."""

    states: dict[str, Floats]
    """By kind: weights, gradients, optimizer."""
    logits: Floats
    """On the last stage."""
    passing: Floats
    """Bytes of them that are free again when the backward pass of the layers begins."""
    several: Floats
    """Whether there are several devices."""
    buckets: Floats
    """Buffers that gradients are reduced from and weights gathered into, two of each bucket."""
    early: Floats
    """Whether all gradients exist before the backward pass: in buffers that are allocated once, or from earlier micro-batches."""
    update: Floats
    """Temporary bytes of the update."""
    holds: Floats
    """Whether inputs of layers and their gradients stay until the backward pass ends."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "StateMemory":
        f, how = work.framework, finetuned(model, work.finetune)
        states = _states(how, work, a, np.stack(layers), microbatches)
        if work.objective.reference and not how.adapted:
            states["weights"] = states["weights"] + _reference(Parameters.of(model), a, np.stack(layers))
        appear = f.frees_gradients | (f.splits_weights & (a.devices == 1) & (not how.adapted))
        bucket = f.bucket if how.frozen is None else min(f.bucket, how.trained.total)
        buckets = 2.0 * bucket * f.reduced_bytes * (a.dp_shard * a.cp > 1)
        early = ~appear | (microbatches > 1)
        logits = _logits(model, work, a.mbs * (work.seq / a.cp), a, how)
        holds = (a.zero >= 3) & (f.holds_inputs and how.frozen is not None)
        return StateMemory(states, *logits, a.devices > 1, buckets, early, _update_bytes(how, work, a, np.stack(layers)), holds)

    @property
    def total(self) -> Floats:
        """Bytes of all kinds and logits."""
        none = np.zeros_like(self.logits)
        return sum(self.states.values(), np.stack([none, self.logits]))


def _update_bytes(how: Finetuned, work: Train, a: Layouts, layers: Floats) -> Floats:
    """Return the temporary bytes of the update on both stages: torch's foreach AdamW makes one more list of tensors like its moments."""
    sharded = how.trained.sharded(*how.trained.on_stage(layers, a), a)
    temporary = (work.optimizer == "adamw" and work.framework.foreach_update) or work.optimizer == "adamw-foreach"
    element = how.adapter_bytes if how.adapted else np.where(is_pure(work, a), 2.0, 4.0)
    offloaded = (a.offload == OFFLOAD.index("optimizer")) | (a.offload == OFFLOAD.index("parameters"))
    return element * sharded * (temporary and not work.updates_in_backward) * ~offloaded


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
    each: Floats
    """Of one layer and one micro-batch."""
    scratch: Floats
    """Tiles that the kernels of one layer's backward pass leave for each other."""

    @staticmethod
    def of(model: Model, work: Train, a: Layouts, layers: tuple[Floats, Floats], microbatches: Floats) -> "ActivationMemory":
        left, working = _activations(model, work, a)
        rows = a.mbs * (work.seq / a.cp)
        per_layer = rows * left / model.decoder.layers
        naive = a.schedule == SCHEDULES.index("naive")  # one micro-batch at a time is in all stages
        held = layers[0] * np.where(naive, 1.0, np.minimum(a.pp, microbatches))
        # offloaded activations stay on the device for the layer that computes and the one that is copied
        offloaded = (a.offload == OFFLOAD.index("activations")) | inputs_on_host(work, a)
        first, last = (np.where(offloaded, np.minimum(2.0, count), count) * per_layer for count in (held, layers[1]))
        interleaved = np.where(a.vpp > 1, (a.pp - 1) / a.pp, 0.0)
        gathered = GATHERED_ACTIVATIONS * 2.0 * model.decoder.hidden * (a.sp > 0)
        beside = _dequantized(model, work) + a.mbs * _tower_bytes(model)
        scratch = max((scratch_bytes(op, model.decoder.heads) for op in model.ops if op.serial), default=0.0)
        recomputing = rows * (working + gathered + _gradients_at_work(model) / a.tp) + beside / a.tp
        return ActivationMemory(first, interleaved, last, recomputing, per_layer, rows * scratch / a.tp)


def inputs_on_host(work: Train, a: Layouts) -> NDArray[np.bool_]:
    """Return whether inputs of layers wait in host memory for the backward pass (Unsloth's checkpointing)."""
    return (a.recompute == RECOMPUTE.index("full")) & work.framework.offloads_inputs


def _gradients_at_work(model: Model) -> float:
    """Return bytes per token of the gradients of activations in the widest block of a layer: of the outputs of up and gate, of their
    product, and of the stream. Measured: 98 kB beside the 168 kB that Llama 3 8B recomputes (fms_a100_liger); 3 x 28,672 + 8,192."""
    widths: dict[str, float] = {}
    for block, op in model.placed:
        if block in model.times and op.kind == "matmul" and op.part in ("ffw", "experts"):
            used = op.n if op.shard in ("column", "kv") else op.k if op.shard == "row" else 0.0
            widths[block] = widths.get(block, 0.0) + used * op.m * op.count / model.times[block]
    return 2.0 * (max(widths.values(), default=0.0) + model.decoder.hidden)


MOMENTS = ("loss", "last layer", "first layer", "update")
"""The moments of a step at which memory may peak, in order: the loss, the backward pass of the last layer, that of the first layer, when
all gradients exist, and the optimizer's update."""


@dataclass(frozen=True)
class Peaks:
    """Bytes by kind at each of MOMENTS, rows of every array, on the stage that is fuller at the peak."""

    sizes: dict[str, Floats]

    @property
    def at(self) -> Ints:
        """The moment of the peak of each layout."""
        return np.argmax(sum(self.sizes.values(), np.zeros(1)), axis=0)

    def highest(self) -> dict[str, Floats]:
        """Return bytes by kind at the peak."""
        at = self.at
        return {kind: np.take_along_axis(values, at[None], axis=0)[0] for kind, values in self.sizes.items()}


def peaks(c: Calibration, held: StateMemory, states: Groups, stored: ActivationMemory, activations: Groups, vpp: Ints) -> Peaks:
    """Return bytes by kind at each moment, on the first or the last stage of every layout, whichever is fuller. `states` and `activations`
    are the groups of layouts that `held` and `stored` were computed for."""
    first = activations.expand(stored.first) * (1 + activations.expand(stored.interleaved) / vpp)
    last = activations.expand(stored.last)
    total = [states.expand(values) for values in held.total]
    # A single stage counts as the last: it has everything the first has, and logits.
    stage = (total[0] + first <= total[1] + last).astype(np.int64)
    sizes = {kind: states.expand_row(values, stage) for kind, values in held.states.items()}
    kept = np.where(stage, last, first) * c.activations
    working = activations.expand(stored.working) * c.activations
    # the last layer that gradients reach still has its activations, and their gradients
    alone = np.minimum(kept, 2 * activations.expand(stored.each) * c.activations)
    alone = np.where(states.expand(held.holds), 2 * kept, alone)
    logits, left = stage * states.expand(held.logits), stage * states.expand(held.logits - held.passing)
    at_work = working + activations.expand(stored.scratch)
    none, early = np.zeros_like(kept), states.expand(held.early)
    gradients = sizes["gradients"]
    before = np.where(early, gradients, 0.0)
    update = states.expand_row(held.update, stage)
    every = np.ones((len(MOMENTS), 1))
    return Peaks(
        {
            "weights": every * sizes["weights"],
            "gradients": np.stack([before, before, gradients, gradients]),
            "optimizer": np.stack([sizes["optimizer"]] * 3 + [sizes["optimizer"] + update]),
            "activations": np.stack([kept, kept + at_work, alone + at_work, none]),
            "logits": np.stack([logits, left, left, none]),
            "context": every * (c.context + c.collectives * states.expand(held.several) + states.expand(held.buckets)),
        }
    )


def kept_by_allocator(f: Framework, p: Peaks, room: float) -> Floats:
    """Return bytes that PyTorch's allocator holds beyond the tensors of the peak, as far as there is room: blocks of one moment that
    another could not use, and what is lost by cutting blocks. It frees them before it fails, so a device that is full has none.

    Reserved memory is about the sum of the largest gradients, state, activations and logits, whichever moment has them, and a share of
    the activations and logits (h200_transformers_tuned, fms_a100_liger)."""
    if not f.cached:
        return np.zeros(len(p.at))
    tensors = np.max(sum(p.sizes.values(), np.zeros(1)), axis=0)
    largest = {kind: np.max(values, axis=0) for kind, values in p.sizes.items()}
    # blocks of the logits are not used for the last layer; what hooks hold until the end comes later, and uses both
    last = p.sizes["activations"][MOMENTS.index("last layer")] + largest["logits"]
    moving = np.maximum(last, np.max(p.sizes["activations"] + p.sizes["logits"], axis=0))
    still = sum((largest[kind] for kind in ("weights", "gradients", "optimizer", "context")), np.zeros(1))
    wanted = still + (1 + f.cached) * moving - tensors
    return np.clip(wanted, 0.0, np.maximum(0.0, room - tensors))


def _tower_bytes(model: Model) -> float:
    """Return bytes of activations that a trained tower keeps per sequence."""
    return sum(TOWER_BYTES * op.k * op.m for op in model.ops if op.name == TRAINED_TOWER)


def _dequantized(model: Model, work: Train) -> float:
    """Return the 16-bit bytes of the largest matrix that is stored in 4 or 8 bits: one at a time is dequantized."""
    names = finetuned(model, work.finetune).quantized
    return 2.0 * max((op.n * op.k for op in model.ops if op.name in names), default=0)


def _logits(model: Model, work: Train, rows: Floats, a: Layouts, how: Finetuned) -> tuple[Floats, Floats]:
    """Return bytes of all logits, and how many of them are free before the layers' backward pass. Where logits are computed in chunks:
    one at a time, the gradient of a `trained` head in float32 and the gradient of its input; fused with the head, only the latter two.
    A vocabulary that is not a multiple of 64 is padded, in a copy of the head."""
    f, vocabulary, hidden = work.framework, model.decoder.vocab, model.decoder.hidden
    if not work.objective.vocabulary:
        return np.zeros_like(rows), np.zeros_like(rows)
    if work.loss_kind not in ("chunked", "fused"):
        wide = WIDE_LOGIT_BYTES * (how.stream > 2 and work.loss_kind == "materialised")
        logits = rows * (vocabulary * (f.bytes_per_logit(work.loss_kind) + wide)) / a.tp
        return logits, logits
    whole = 2.0 * rows * vocabulary / a.tp
    parts = np.ceil(whole / f.logits_at_once)
    head = (4.0 * how.head + 2.0 * (np.mod(vocabulary, 64) > 0)) * vocabulary * hidden / a.tp
    chunks = whole / parts if work.loss_kind == "chunked" else np.zeros_like(whole)
    return chunks + head + 2.0 * rows * hidden, chunks


def is_pure(work: Train, a: Layouts) -> NDArray[np.bool_]:
    """Return whether weights, gradients and moments all have 16 bits, without a float32 copy."""
    return np.where(a.zero == 0, work.framework.pure_unsharded, work.framework.pure_sharded)


def _gradient_at_work(how: Finetuned, work: Train, a: Layouts) -> Floats:
    """Return the bytes of the gradient that an optimizer inside the backward pass has not used yet: of a vocabulary table, or a layer."""
    sizes = how.trained
    largest = max(sizes.table, (sizes.dense + sizes.experts) / sizes.layers)
    element = work.finetune.adapter_bytes if how.adapted else float(work.framework.gradient_bytes)
    return np.where(is_pure(work, a) & (not how.adapted), 2.0, element) * largest / a.tp


def state_bytes(work: Train, a: Layouts, microbatches: Floats) -> tuple[Floats, Floats]:
    """Return bytes per trained parameter of gradients and of optimizer state: fewer where a single device splits its weights. Adapters are
    their own master copy. The float32 gradients of ZeRO 3 replace its 16-bit ones part by part. An optimizer inside the backward pass
    leaves no gradients (`_gradient_at_work` is the one that it reads)."""
    f, inside = work.framework, work.updates_in_backward
    moments = max(0.0, OPTIMIZER_BYTES[work.optimizer] - MASTER_BYTES)
    halves = 2 if work.optimizer in WEIGHT_DTYPE_OPTIMIZERS else 1
    if work.finetune.adapts:
        none, element = np.zeros_like(microbatches), work.finetune.adapter_bytes
        return none + element * (not inside), none + moments / (halves if element < MASTER_BYTES else 1)
    whole = OPTIMIZER_BYTES[work.optimizer] + f.master_gradient_bytes
    split = f.splits_weights & (a.devices == 1)
    gradients = np.where(split & (microbatches == 1), 2.0, float(f.summed_bytes(work.precision)))
    if f.master_gradient_bytes:
        gradients = np.where(a.zero >= 3, 0.0, gradients)
    if work.optimizer == FUSED_UPDATE:
        return np.zeros_like(gradients), np.zeros_like(gradients)
    pure = is_pure(work, a)
    gradients = np.where(pure, 2.0, gradients) * (not inside)
    return gradients, np.where(pure, moments / halves, np.where(split, whole - 2.0, whole))


def _states(how: Finetuned, work: Train, a: Layouts, layers: Floats, microbatches: Floats) -> dict[str, Floats]:
    """Return bytes of weights, gradients and optimizer state of a stage of `layers` layers (ZeRO, arXiv:1910.02054)."""
    f, sizes = work.framework, how.trained
    per_gradient, per_state = state_bytes(work, a, microbatches)
    dense, experts = sizes.on_stage(layers, a)
    local = dense + experts
    sharded = sizes.sharded(dense, experts, a)
    # ZeRO 3 gathers a layer for its computation, and the next one; with pipeline stages, gathered weights and whole gradients stay from one
    # micro-batch to the next.
    optimizer_on_host = a.offload == OFFLOAD.index("optimizer")
    parameters_on_host = a.offload == OFFLOAD.index("parameters")
    # a float32 shard that is the master copy counts with the optimizer's state, and stays where only that is offloaded
    shard = np.where(optimizer_on_host, 4.0 / f.weight_bytes, 0.0) if f.shards_master and not how.adapted else 1.0
    gathers = (a.zero >= 3) & (a.pp == 1)
    ahead = _gathered_share(f, layers)
    weights = weight_bytes(work) * np.where(
        gathers, sharded * ~parameters_on_host * shard + _gathered(sizes, f, local, ahead, a), local
    )
    if how.frozen is not None:
        whole = how.unsharded(f, layers, a)
        held, of_experts = how.frozen.on_stage(layers, a)
        gathered = held - whole
        at_work = _gathered(how.frozen, f, gathered + of_experts, ahead, a)
        kept = how.frozen.sharded(gathered, of_experts, a) * ~parameters_on_host + at_work + whole
        weights = weights + np.where(gathers, kept, held + of_experts)
    offloaded = optimizer_on_host | parameters_on_host
    reduced = np.where((a.zero >= 2) & (a.pp == 1), sharded, local)
    paged = PAGED_BYTES.get(work.optimizer, 0.0)
    gradients = _gradient_at_work(how, work, a) + 0.0 * reduced if work.updates_in_backward else per_gradient * reduced
    return {
        "weights": weights,
        "gradients": gradients * ~(offloaded & f.offloads_gradients),
        "optimizer": (per_state - paged) * sharded * ~offloaded,
    }


def _gathered_share(f: Framework, layers: Floats) -> Floats:
    """Return the share of a stage's layers that ZeRO 3 has gathered at once: two, or, where the root module with the vocabulary tables
    stays gathered, one at the peak (fms_a100_liger: 2.42 GiB beside the shards of Llama 3 8B, of which its tables are 1.96)."""
    return (1 if f.gathers_tables else 2) / np.maximum(1.0, layers)


def _gathered(sizes: Parameters, f: Framework, local: Floats, share: Floats, a: Layouts) -> Floats:
    """Return what ZeRO 3 has gathered of `local` weights, or bytes, of a stage without pipeline."""
    if not f.gathers_tables:
        return share * local
    tables = np.minimum(sizes.table * sizes.tables / a.tp, local)
    return tables + share * (local - tables)


def _reference(sizes: Parameters, a: Layouts, layers: Floats) -> Floats:
    """Return bytes of a frozen copy of the model in 16 bits, sharded as ZeRO 3 shards weights."""
    held = sizes.on_stage(layers, a)
    gathers = (a.zero >= 3) & (a.pp == 1)
    return 2.0 * np.where(gathers, sizes.sharded(*held, a), sum(held))


def weight_bytes(work: Train) -> float:
    """Return bytes per trained weight on a device."""
    return work.finetune.adapter_bytes if work.finetune.adapts else float(work.framework.weight_bytes)


def host_bytes(model: Model, work: Train, a: Layouts, layers: Floats, microbatches: Floats) -> Floats:
    """Return bytes per device that offload keeps in host memory: optimizer state and gradients, with `parameters` the weights too; or
    activations."""
    how, (_, per_state) = finetuned(model, work.finetune), state_bytes(work, a, microbatches)
    sharded = how.trained.sharded(*how.trained.on_stage(layers, a), a)
    parameters = a.offload == OFFLOAD.index("parameters")
    gradients = 0.0 if work.framework.master_gradient_bytes else 4.0
    states = sharded * (per_state + gradients + weight_bytes(work) * parameters)
    if how.frozen is not None:
        states = states + how.frozen.sharded(*how.frozen.on_stage(layers, a), a) * parameters
    left, _ = _activations(model, work, a)
    activations = layers * np.minimum(a.pp, microbatches) * a.mbs * (work.seq / a.cp) * left / model.decoder.layers
    beside = np.where(inputs_on_host(work, a), activations, 0.0)
    kind = [a.offload == OFFLOAD.index("none"), a.offload == OFFLOAD.index("activations")]
    return np.select(kind, [beside, activations], states + beside)


def stored_per_token(model: Model, work: Train, a: Layouts) -> Floats:
    """Return bytes per token that a micro-batch keeps in all layers for its backward pass."""
    return _activations(model, work, a)[0]


def _activations(model: Model, work: Train, a: Layouts) -> tuple[Floats, Floats]:
    """Return bytes per token that a micro-batch keeps in all layers for its backward pass, and bytes per token of the layer that is being
    recomputed."""
    f, how = work.framework, finetuned(model, work.finetune)
    sizes = ActivationBytes.of(model, f, work.recipe.bytes, how)
    share = np.where(a.sp > 0, a.tp, 1.0)
    left = sizes.left(kept(f, a.recompute), share, a.tp, work.seq)
    everything = sizes.left(Kept(), share, a.tp, work.seq)
    dropped = (everything - left) / (model.decoder.layers * how.inputs)
    again = np.where(dropped > 0, dropped + sizes.input / (model.decoder.layers * how.inputs) / share, 0.0)
    return left, again
