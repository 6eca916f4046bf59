"""Seconds of one micro-batch through the whole model on one device of a tensor-parallel group, by part, before any schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.precision import FLASH_HEAD
from meshwise.cost.train.chain import chain
from meshwise.cost.train.compute import (
    BACKWARD_BYTES_RATIO,
    VECTOR_EFFICIENCY,
    Device,
    attention,
    linear,
    memory_bound,
    product,
    rule_rate,
)
from meshwise.cost.train.distinct import Groups
from meshwise.cost.train.parameters import Finetuned, dequantized_bytes, finetuned
from meshwise.cost.work import Train
from meshwise.models.families.blocks import HEAD
from meshwise.models.model import Model
from meshwise.models.op import FROZEN_TOWER, TRAINED_TOWER, Op, fusable_groups

VOCABULARY_MULTIPLE = 128  # megatron's --make-vocab-size-divisible-by
ADAPTER_OUTPUT_BYTES, ADAPTER_INPUT_BYTES = 7.0, 2.0
"""Bytes moved per output and per input of an adapter that is a module of its own, forward: its output is scaled and added to that of the
layer, six accesses of 2 bytes in all (PEFT, lora/layer.py), of which caches serve some: on an A100 12 bytes would fit (fms_a100_liger), on
an RTX 4090 4 (answerai_fsdp_qlora)."""
COMPILED_ADAPTER_BYTES = 2.0  # bytes moved per output and per input of an adapter where a compiler joins scale and addition
FLOAT32_ATTENTION_SHARE = 0.5  # share of the float32 rate that attention reaches without matrix units. An assumption.
DORA_BYTES = 10.0
"""Bytes moved per weight for DoRA's norms: the weight is read, the product of the adapter is written and read in float32. Not where
adapters are fused (`_add_magnitudes`)."""
FORWARD_CASTS_SHARE = 5 / 8  # share of the bytes of weights' casts in the forward pass, which also looks for the largest value
JOINED_OUTPUTS_MULTIPLE = 16
"""Outputs of joined products are padded to a multiple of this (workers/trainer/ops/fused_projections.py)."""


@dataclass(frozen=True)
class Cut:
    """The axes that determine the computation of a micro-batch: many layouts share few distinct values."""

    tp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    mbs: Floats

    @staticmethod
    def of(a: Layouts) -> "Cut":
        return Cut(a.tp, a.cp, a.ep, a.etp, a.mbs)

    def take(self, rows: Ints) -> "Cut":
        return Cut(self.tp[rows], self.cp[rows], self.ep[rows], self.etp[rows], self.mbs[rows])


@dataclass
class Passes:
    """Forward and backward seconds of all layers, and of the head. Fields without a `_back` twin count the forward pass only."""

    matmul: Floats
    matmul_back: Floats
    projections: Floats  # part of `matmul`: products before attention or another mixer
    outputs: Floats  # part of `matmul`: products after it
    core: Floats  # attention without its projections
    core_back: Floats
    pointwise: Floats  # elementwise work on activations that tensor parallelism shards
    casts: Floats  # casts of operands to 8 or 4 bits, and other bytes of products that are moved in one direction only
    casts_back: Floats
    norms: Floats  # elementwise work on full-width activations: every device does all of it unless sequence parallelism shards it
    head: Floats
    head_back: Floats
    logits: Floats  # reading and writing the logits for the loss


def passes(model: Model, d: Device, work: Train, cut: Cut) -> Passes:
    """Return the passes of the whole model. Ops that are not experts are the same for every `ep`, so they are computed once for all."""
    experts = [(block, op) for block, op in model.placed if op.expert]
    others = [(block, op) for block, op in model.placed if not op.expert]
    if not experts:
        return _summed(model, others, d, work, cut)
    groups = Groups.of(*(axis.astype(np.int64) for axis in (cut.tp, cut.cp, cut.mbs)))
    each = _summed(model.take(groups.rows), others, d, work, cut.take(groups.rows))
    total = _summed(model, experts, d, work, cut)
    return Passes(**{name: groups.expand(value) + getattr(total, name) for name, value in vars(each).items()})


def _summed(model: Model, placed: Sequence[tuple[str, Op]], d: Device, work: Train, cut: Cut) -> Passes:
    """Sum over the Ops of the model: the only loop of the cost model."""
    zero, how = np.zeros_like(cut.tp), finetuned(model, work.finetune)
    total = Passes(*(zero.copy() for _ in fields(Passes)))
    rows = cut.mbs * work.seq / cut.cp
    for block, op in placed:
        if block in model.times:
            _add_layer_op(total, d, work, cut, rows, op, model.times[block], model)
        elif block == HEAD and op.kind == "matmul":
            forward, inputs, weights = linear(d.in_16_bits(), rows, _outputs(op, cut, model), _whole(op.k, cut))
            slower = _float32_ratio(d, work, how, d.calibration.matmul, VECTOR_EFFICIENCY)
            total.head += forward * slower
            total.head_back += (inputs + weights * how.head) * slower
            total.logits = rows * model.decoder.vocab / cut.tp * work.framework.bytes_per_logit(work.loss_kind) / d.bandwidth
    _add_tower(total, d, placed, cut)
    for times, ops in _products(model, placed, d.joins):
        outputs = sum((_outputs(op, cut, model) for op in ops), zero)
        if len(ops) > 1:
            outputs = np.ceil(outputs / JOINED_OUTPUTS_MULTIPLE) * JOINED_OUTPUTS_MULTIPLE
        forward, inputs, weights = linear(d, rows, outputs, _inputs(ops[0], cut), ops[0].count / times)
        total.matmul += times * forward
        total.matmul_back += times * (how.inputs * inputs + how.weights * weights)
        if ops[0].part not in ("ffw", "experts"):
            kind = total.outputs if ops[0].shard == "row" else total.projections
            kind += times * forward
    total.core_back *= how.inputs
    transposed = (1 + how.weights) / 2  # only gradients of weights read operands that are transposed
    total.casts *= transposed
    total.casts_back *= how.inputs * transposed
    moved = work.framework.unfused * d.calibration.elementwise * how.stream / 2.0
    total.pointwise *= moved
    total.norms *= moved
    add_adapters(
        total, d, model, placed, how, cut, rows, fused=work.framework.fuses_adapters,
        compiled=work.compiled or work.framework.joins_adapters,
    )  # fmt: skip
    return total


def _float32_ratio(d: Device, work: Train, how: Finetuned, narrow: float, wide: float) -> float:
    """Return how much slower attention or the head is in float32, without matrix units, where a float32 stream is not cast: `narrow` and
    `wide` are the shares of the two rates that are reached."""
    if how.stream <= 2 or work.framework.autocasts:
        return 1.0
    return max(1.0, d.wide * narrow / (d.vector * wide))


def _products(model: Model, placed: Sequence[tuple[str, Op]], joins: bool) -> Iterator[tuple[int, list[Op]]]:
    """Yield the matrix products of layers without experts, with the layers of each. `joins`: those with the same input are one group."""
    for block, times in model.times.items():
        ops = [op for name, op in placed if name == block and not op.expert]
        groups = fusable_groups(ops) if joins else [[op] for op in ops if op.kind == "matmul"]
        yield from ((times, group) for group in groups)


def _outputs(op: Op, cut: Cut, model: Model) -> Floats:
    """Return the output features of an Op on one device. With more devices than KV heads, heads are copied."""
    if op.shard == "kv":
        return op.n / np.minimum(cut.tp, model.decoder.kv_heads)
    if op.shard == "vocab":  # every framework pads the vocabulary to a size that matrix units handle well
        return np.ceil(op.n / cut.tp / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return op.n / cut.tp if op.shard == "column" else _whole(op.n, cut)


def _inputs(op: Op, cut: Cut) -> Floats:
    return op.k / cut.tp if op.shard == "row" else _whole(op.k, cut)


def _whole(width: int, cut: Cut) -> Floats:
    return np.full(len(cut.tp), width, dtype=float)


def _add_layer_op(t: Passes, d: Device, work: Train, cut: Cut, rows: Floats, op: Op, times: int, model: Model) -> None:
    """Add one distinct Op, which `times` layers have, to the sums."""
    each, whole = op.count / times, cut
    if op.kind == "matmul":
        if op.expert:  # a device holds each/ep experts, and each expert sees the tokens of the devices that share it
            cut = replace(cut, tp=cut.etp)
            rows = rows * cut.etp / whole.tp
        n, k = _outputs(op, cut, model), _inputs(op, cut)
        if op.expert:
            busiest = np.where(cut.ep > 1, work.imbalance, 1.0)
            how = finetuned(model, work.finetune)
            alone = np.minimum(1.0, cut.ep / each)  # one expert on a device is a plain product
            grouped = d.calibration.grouped + (1 - d.calibration.grouped) * alone
            forward, inputs, weights = linear(
                replace(d, share=d.share * grouped), np.ceil(rows * op.m * cut.ep * busiest), n, k, each / cut.ep
            )
            t.matmul += times * forward
            t.matmul_back += times * (how.inputs * inputs + how.weights * weights)
        if d.cast:
            _add_casts(t, d, op, rows * op.m * each, (n, k), times * work.framework.casts)
            weights = times * each * n * k * work.framework.weight_casts / d.bandwidth
            t.casts += weights * FORWARD_CASTS_SHARE
            t.casts_back += weights * (1 - FORWARD_CASTS_SHARE)
        if work.framework.sums_biases and np.any(op.params > op.n * op.k):
            seconds = times * memory_bound(d, d.element * rows * op.m * each * n)
            t.casts_back += seconds * finetuned(model, work.finetune).weights
            t.casts += 2 * seconds * (d.joins and op.shard in ("column", "kv") and op.part == "attention")
        if op.expert and work.framework.fuses_experts:
            _add_expert_kernels(t, d, op, rows, rows * op.m * each, n, times, model)
        else:
            _add_elementwise(t, d, op, rows * op.m * each, n, times, model)
    elif op.kind == "attention":
        heads, f = op.m / cut.tp, work.framework
        rule = rule_rate(op, work.seq, model.decoder.position_kind == "alibi", model.decoder.capped, f.flexible, cut.cp)
        rule = rule * f.flash_ratio
        if f.attention == "triton":  # whose tiles fit smaller heads as well
            rule = rule * (1 + FLASH_HEAD / ((op.n + op.k) / 2)) / 1.5
        core, back = attention(d, op, work.seq, cut.mbs, heads, cut.cp, f.flash_attention, rule, f.head_multiple)
        slower = _float32_ratio(d, work, finetuned(model, work.finetune), d.calibration.flash, FLOAT32_ATTENTION_SHARE)
        t.core += times * core * slower
        t.core_back += times * back * slower
        if model.decoder.position_kind == "rotary":  # reads and writes q and k
            turned = 2 * d.element * rows * (op.m * op.k + op.cache / 2) / cut.tp
            t.pointwise += times * memory_bound(d, turned)
    elif op.serial:
        forward, backward = chain(d, op, work.seq, cut.mbs, cut.tp, model.decoder.heads)
        t.matmul += times * each * forward
        t.matmul_back += times * each * backward * finetuned(model, work.finetune).inputs
    elif op.kind in ("scan", "conv"):
        flops = 2 * rows * op.m * op.n * op.k * each / cut.tp
        seconds = flops / (d.peak * d.share * d.calibration.scan * op.k / (op.k + d.calibration.depth))
        t.matmul += times * seconds
        t.matmul_back += times * 2 * seconds * finetuned(model, work.finetune).inputs
    elif op.kind == "norm":
        t.norms += times * each * memory_bound(d, 2 * d.element * rows * op.n)


def _add_casts(t: Passes, d: Device, op: Op, rows: Floats, shape: tuple[Floats, Floats], times: float) -> None:
    """Add the casts of a product's input, which 'up' shares with 'gate' and k and v with q, and of its gradient; both are needed
    transposed as well, for the weight gradient, which sums over tokens."""
    n, k = shape
    shared = op.name.endswith((".up", ".k", ".v"))
    seconds = times * d.cast * rows / d.bandwidth
    t.casts += seconds * (0.0 if shared else 1.0) * k
    t.casts_back += seconds * n


def _add_elementwise(t: Passes, d: Device, op: Op, rows: Floats, n: Floats, times: int, model: Model) -> None:
    """Add the activation function after 'up' and 'gate' projections, or the residual addition after an output projection."""
    if op.name.endswith(".up"):
        t.pointwise += times * memory_bound(d, 2 * d.element * rows * n)
    elif op.name.endswith(".gate"):  # in the same kernel
        t.pointwise += times * d.element * rows * n / d.bandwidth
    elif op.expert and op.shard == "row":  # tokens are permuted so that those of one expert are contiguous, and back
        t.pointwise += times * 4 * d.element * rows * model.decoder.hidden / d.bandwidth
    elif op.shard == "row":
        t.norms += times * memory_bound(d, 3 * d.element * rows * model.decoder.hidden)


def _add_expert_kernels(t: Passes, d: Device, op: Op, tokens: Floats, rows: Floats, n: Floats, times: int, model: Model) -> None:
    """Add the kernels around fused products of experts, which have `rows` rows for `tokens` tokens: tokens are spread over rows and rows
    added up, in both directions; forward the gated product is written, and backward gate, up and its gradient are read, and all three
    written."""
    if op.name.endswith(".up"):
        t.casts += times * d.element * rows * n / d.bandwidth
        t.casts_back += times * 6 * d.element * rows * n / d.bandwidth
    elif op.shard == "row":
        moved = times * 2 * d.element * (rows + tokens) * model.decoder.hidden / d.bandwidth
        t.casts += moved
        t.casts_back += moved


def _add_tower(t: Passes, d: Device, placed: Sequence[tuple[str, Op]], cut: Cut) -> None:
    """Add the products of a tower over the patches of a sequence's pictures: forward, and backward where it is trained."""
    for _, op in placed:
        if op.name in (FROZEN_TOWER, TRAINED_TOWER):
            seconds = 2 * op.params * op.m * cut.mbs / cut.tp / (d.wide * d.calibration.matmul)
            t.head += seconds
            t.head_back += 2 * seconds * (op.name == TRAINED_TOWER)


def add_adapters(
    t: Passes, d: Device, model: Model, placed: Sequence[tuple[str, Op]], how: Finetuned, cut: Cut, rows: Floats, *,
    fused: bool, compiled: bool = False,
) -> None:  # fmt: skip
    """Add the narrow products beside the adapted layers, and what turns weights from nf4 into 16 bits before each use. Forward, an input
    of k is multiplied into the rank and from there into n outputs, which are added to those of the layer. Backward has the gradients of
    both matrices and of both inputs; that of the layer's input is added to its own. Where the framework has `fused` these additions into
    products, they move no bytes of their own."""
    present = {(block, op.name) for block, op in placed}
    for module in how.adapted:
        first = module.ops[0]
        if (module.block, first.name) not in present:
            continue
        # of the side that the layer does not cut, each tensor-parallel rank has a part of the tokens
        n, k = module.n / cut.tp, module.k / cut.tp
        rank, number, used = np.full_like(cut.tp, how.rank * module.layers), module.count, np.ceil(rows * first.m)
        narrow, wide = (linear(d.in_16_bits(), used, *sizes, number) for sizes in ((rank, k), (n, rank)))
        t.matmul += narrow[0] + wide[0]
        t.matmul_back += sum(narrow[1:]) + sum(wide[1:])
        if not fused:
            bytes_moved = COMPILED_ADAPTER_BYTES * (n + k) if compiled else ADAPTER_OUTPUT_BYTES * n + ADAPTER_INPUT_BYTES * k
            t.pointwise += number * memory_bound(d, used * bytes_moved)
        if first.part not in ("ffw", "experts"):
            kind = t.outputs if first.shard == "row" else t.projections
            kind += narrow[0] + wide[0]
        if how.magnitudes and fused:
            _add_magnitudes(t, d, first, (n, k, rank), number, used)
        elif how.magnitudes:  # the norm of every row of the weight and its adapter's product
            t.casts += number * DORA_BYTES * module.n * module.k / cut.tp / d.bandwidth
    for block, op in placed:
        if op.name in how.quantized and block in model.times:
            seconds = op.count * dequantized_bytes(op, how.base) / cut.tp / d.bandwidth
            t.casts += seconds
            t.casts_back += seconds


def _add_magnitudes(t: Passes, d: Device, op: Op, sizes: tuple[Floats, Floats, Floats], number: int, rows: Floats) -> None:
    """Add DoRA's work where adapters are fused (workers/trainer/models/linear.py): a narrow product reads the weight for the lengths of its
    rows; outputs are read and written once to scale them, unless the sum with the residual does it; backward, they and their gradients are
    read for the gradient of the magnitudes, and the gradients read and written again to scale them."""
    n, k, rank = sizes
    outputs = number * memory_bound(d, 2 * d.element * rows * n)
    t.casts += number * product(d.in_16_bits(), n, rank, k) + outputs * (op.shard != "row")
    t.casts_back += 2 * outputs


def backward_bytes(forward: Floats) -> Floats:
    return BACKWARD_BYTES_RATIO * forward
