"""Bytes on the fullest device, by kind."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from meshwise.calibration import Calibration
from meshwise.layout import Floats, Layouts
from meshwise.model import Model
from meshwise.workload import OPTIMIZER_BYTES, Train

KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "context")


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
        table = max(op.params for op in model.ops if op.part == "vocabulary")
        return Sizes(dense, experts, table, 1 if model.decoder.tied else 2, model.decoder.layers)

    def on_stage(self, layers: Floats, a: Layouts) -> tuple[Floats, Floats]:
        """Parameters per device of a stage of `layers` layers with a vocabulary table: dense ones, and experts."""
        table = np.where(a.pp > 1, self.table, self.table * self.tables)
        dense = (self.dense * layers / self.layers + table) / a.tp
        return dense, self.experts * layers / self.layers / (a.tp * a.ep)


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
    def of(model: Model, flash: bool, dropout: bool) -> "Kept":
        """A product keeps its input, a norm its input, an activation function its input.

        Worked for GPT: norms 4h and the inputs behind them 4h, q k v 6h, attention output 2h, up 8h, down 8h: 32 of the 34 bytes per
        hidden unit of Korthikanti et al. 2022, eq. 1; dropout masks are the other 2.
        """
        times = Counter(name for layer in model.layers for name in layer)
        hidden = model.decoder.hidden
        whole = cut = scores = 0.0
        for block, op in model.placed:
            if block not in times:
                continue
            if op.name == "layer_norm":
                whole += 4 * hidden * op.count  # its input, and its output, which the products behind it share
            elif op.kind == "matmul" and op.shard in ("column", "kv"):
                cut += 2 * op.n * op.m * op.count
            elif op.kind == "matmul" and op.shard == "row":
                cut += 2 * op.k * op.m * op.count
                whole += hidden * times[block] * (dropout and not op.expert)
            elif op.kind == "attention":
                scores += 0.0 if flash else 5 * op.m * op.count
            elif op.kind in ("scan", "conv"):
                cut += 2 * op.m * op.n * op.count
        return Kept(whole, cut, scores)


def memory(
    model: Model, work: Train, calibration: Calibration, a: Layouts, stages: tuple[Floats, Floats], microbatches: Floats
) -> dict[str, Floats]:
    """Bytes by kind on the first or the last stage, whichever is fuller: both hold a vocabulary table."""
    inflight = np.minimum(a.pp, microbatches) * np.where(a.vpp > 1, 1 + (a.pp - 1) / (a.pp * a.vpp), 1.0)
    first = _stage(model, work, calibration, a, stages[0], inflight)
    last = _stage(model, work, calibration, a, stages[1], np.ones(len(a)))
    last["logits"] = a.mbs * work.seq / a.cp * model.decoder.vocab / a.tp * work.framework.logit_bytes
    fuller = (a.pp > 1) & (sum(first.values(), np.zeros(1)) > sum(last.values(), np.zeros(1)))
    return {kind: np.where(fuller, first[kind], last[kind]) for kind in KINDS}


def _stage(
    model: Model, work: Train, calibration: Calibration, a: Layouts, layers: Floats, inflight: Floats
) -> dict[str, Floats]:
    """Bytes by kind on a stage of `layers` layers that holds `inflight` micro-batches."""
    sizes, f = Sizes.of(model), work.framework
    dense, experts = sizes.on_stage(layers, a)
    shard = np.where(a.zero >= 1, a.dp_shard, 1)
    local, sharded = dense + experts, dense / shard + experts / np.maximum(1, shard / a.ep)
    rows = a.mbs * work.seq / a.cp
    kept = _activations(model, work, a, rows) * layers / sizes.layers * inflight
    # Recompute brings one layer back at a time; ZeRO 3 gathers one layer ahead of the one at work.
    working = np.where(a.recompute == 2, _activations(model, work, a, rows, recompute=0) / sizes.layers, 0.0)
    gathered = 2 * local / np.maximum(1, layers)
    return {
        "weights": f.weight_bytes * np.where(a.zero >= 3, sharded * (a.offload < 2) + gathered, local),
        "gradients": f.gradient_bytes * np.where(a.zero >= 2, sharded, local),
        "optimizer": (OPTIMIZER_BYTES[work.optimizer] + f.master_gradient_bytes) * sharded * (a.offload < 1),
        "activations": (kept + working) * calibration.activations,
        "logits": np.zeros(len(a)),
        "context": np.full(len(a), calibration.context),
    }


def _activations(model: Model, work: Train, a: Layouts, rows: Floats, recompute: int | None = None) -> Floats:
    """Bytes that one micro-batch leaves behind in all layers, for its backward pass."""
    f = work.framework
    kept = Kept.of(model, f.flash_attention, f.dropout)
    how = a.recompute if recompute is None else np.full(len(a), recompute)
    share = np.where(a.sp > 0, a.tp, 1)
    everything = kept.whole / share + kept.cut / a.tp + np.where(how == 0, kept.scores * work.seq / a.tp, 0.0)
    only_inputs = 2 * model.decoder.hidden * model.decoder.layers / share
    return rows * np.where(how == 2, only_inputs, everything)
