"""Memory of the fullest device by kind: weights, gradients, optimizer state, activations, logits, context, what the allocator keeps; at
the moments of a step that may be its peak: the loss, the backward pass of the last and of the first layer, and the update."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import OFFLOAD
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.activations import ActivationMemory, inputs_on_host, stored_per_token
from meshwise.cost.train.distinct import Groups
from meshwise.cost.train.parameters import Finetuned, Parameters, finetuned
from meshwise.cost.work import FUSED_UPDATE, MASTER_BYTES, OPTIMIZER_BYTES, PAGED_BYTES, WEIGHT_DTYPE_OPTIMIZERS, Train
from meshwise.models.model import Model

WIDE_LOGIT_BYTES = 4.0
"""Bytes per logit more where the head has float32 weights: its logits, and their gradient, have 4 bytes instead of 2."""


@dataclass(frozen=True)
class StateMemory:
    """Bytes of weights, gradients, optimizer state and logits, in two rows: the first and the last stage, each with a vocabulary table."""

    states: dict[str, Floats]  # by kind: weights, gradients, optimizer
    logits: Floats  # on the last stage
    passing: Floats  # bytes of them that are free again when the backward pass of the layers begins
    several: Floats  # whether there are several devices
    buckets: Floats  # buffers that gradients are reduced from and weights gathered into, two of each bucket
    early: Floats
    """Whether all gradients exist before the backward pass: in buffers that are allocated once, or from earlier micro-batches."""
    update: Floats  # temporary bytes of the update
    holds: Floats  # whether inputs of layers and their gradients stay until the backward pass ends

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
    another could not use, and what is lost by cutting blocks. It frees them before it fails, so a device that is full has none. Reserved
    memory is about the sum of the largest gradients, state, activations and logits, whichever moment has them, and a share of the
    activations and logits (h200_transformers_tuned, fms_a100_liger)."""
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
    """Return bytes per device in host memory: optimizer state and gradients, with `parameters` the weights too; or activations."""
    how, (_, per_state) = finetuned(model, work.finetune), state_bytes(work, a, microbatches)
    sharded = how.trained.sharded(*how.trained.on_stage(layers, a), a)
    parameters = a.offload == OFFLOAD.index("parameters")
    gradients = 0.0 if work.framework.master_gradient_bytes else 4.0
    states = sharded * (per_state + gradients + weight_bytes(work) * parameters)
    if how.frozen is not None:
        states = states + how.frozen.sharded(*how.frozen.on_stage(layers, a), a) * parameters
    left = stored_per_token(model, work, a)
    activations = layers * np.minimum(a.pp, microbatches) * a.mbs * (work.seq / a.cp) * left / model.decoder.layers
    beside = np.where(inputs_on_host(work, a), activations, 0.0)
    kind = [a.offload == OFFLOAD.index("none"), a.offload == OFFLOAD.index("activations")]
    return np.select(kind, [beside, activations], states + beside)
