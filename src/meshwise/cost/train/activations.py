"""Activations that micro-batches keep for their backward pass, and what the layer at work holds beside them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.chain import scratch_bytes
from meshwise.cost.train.parameters import Finetuned, finetuned
from meshwise.cost.train.recompute import Kept, kept
from meshwise.cost.work import Train
from meshwise.models.model import Model
from meshwise.models.op import TRAINED_TOWER

TOWER_BYTES = 32.0
"""Bytes of activations per patch and element of width in a layer of a tower, which has GPT's blocks: `ActivationBytes.of`."""
GATHERED_ACTIVATIONS = 3.0
"""Activations of full width that the layer at work has gathered from its tensor-parallel ranks (sequence parallelism): its input, and in
the backward pass its input's and its output's gradient."""


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes of activations per token that all layers can keep for the backward pass, by kind (`recompute.Kept`). `whole` ones have the
    full width and are sharded by sequence parallelism only; the others are sharded by tensor parallelism."""

    input: float  # whole: the input of each layer, which is always kept
    norms: float  # whole: inputs of the other norms, outputs of all norms
    masks: float  # whole: dropout masks
    mixer: float
    mixed: float
    ffn: float
    gated: float
    copies: float
    scores: float  # attention scores without flash kernels, per token and key

    @staticmethod
    def of(model: Model, framework: Framework, element: float = 2.0, how: Finetuned | None = None) -> "ActivationBytes":
        """Count the inputs that products, norms and activation functions keep; narrow products keep theirs in `element` bytes. A frozen
        product keeps none, its adapter does. Worked for GPT: norms 4h and the inputs after them 4h, q k v 6h, attention output 2h, up 8h,
        down 8h: 32 of the 34 bytes per hidden unit of Korthikanti et al. 2022, eq. 1; dropout masks are the other 2."""
        hidden, times = model.decoder.hidden, model.times
        sums = dict.fromkeys(("norms", "masks", "mixer", "mixed", "ffn", "gated", "copies", "scores"), 0.0)
        chained = {block for block, op in model.placed if op.serial}
        reads = _inputs_kept(framework, how)
        narrow = element < 2
        stream = how.stream if how else 2.0  # float32 where the norms and the embedding of a quantized base are
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


@dataclass(frozen=True)
class InputsKept:
    """Shares of the inputs of products that stay in memory because a weight, or an adapter, needs them for its gradient."""

    norms: float = 1.0  # outputs of norms, half of which feed mixers and half feed-forward layers
    gated: float = 1.0  # inputs of the products that end feed-forward layers


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
class ActivationMemory:
    """Bytes of activations that micro-batches keep for their backward pass."""

    first: Floats  # on the first stage, which holds as many micro-batches as there are stages (arXiv:2104.04473, 2.2)
    interleaved: Floats  # share of `first` that interleaving adds, times vpp
    last: Floats  # on the last stage, which holds one micro-batch
    working: Floats  # activations of the layer that is being recomputed
    each: Floats  # of one layer and one micro-batch
    scratch: Floats  # tiles that the kernels of one layer's backward pass leave for each other

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
        # a stage never holds more micro-batches than a step has: with as many as stages, interleaving adds nothing
        interleaved = np.where((a.vpp > 1) & (microbatches > a.pp), (a.pp - 1) / a.pp, 0.0)
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


def _tower_bytes(model: Model) -> float:
    """Return bytes of activations that a trained tower keeps per sequence."""
    return sum(TOWER_BYTES * op.k * op.m for op in model.ops if op.name == TRAINED_TOWER)


def _dequantized(model: Model, work: Train) -> float:
    """Return the 16-bit bytes of the largest matrix that is stored in 4 or 8 bits: one at a time is dequantized."""
    names = finetuned(model, work.finetune).quantized
    return 2.0 * max((op.n * op.k for op in model.ops if op.name in names), default=0)


def stored_per_token(model: Model, work: Train, a: Layouts) -> Floats:
    """Return bytes per token that a micro-batch keeps in all layers for its backward pass."""
    return _activations(model, work, a)[0]


def _activations(model: Model, work: Train, a: Layouts) -> tuple[Floats, Floats]:
    """Return bytes per token that a micro-batch keeps in all layers, and bytes per token of the layer that is being recomputed."""
    f, how = work.framework, finetuned(model, work.finetune)
    sizes = ActivationBytes.of(model, f, work.recipe.bytes, how)
    share = np.where(a.sp > 0, a.tp, 1.0)
    left = sizes.left(kept(f, a.recompute), share, a.tp, work.seq)
    everything = sizes.left(Kept(), share, a.tp, work.seq)
    dropped = (everything - left) / (model.decoder.layers * how.inputs)
    again = np.where(dropped > 0, dropped + sizes.input / (model.decoder.layers * how.inputs) / share, 0.0)
    return left, again
