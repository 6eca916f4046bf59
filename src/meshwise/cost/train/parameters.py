"""Parameters of a model by how they are sharded, and by how it is fine-tuned: which are trained, and how the frozen ones are stored."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from meshwise.catalogue.frameworks import Framework
from meshwise.cost.finetune import FULL, Finetune
from meshwise.cost.layout import Floats, Layouts
from meshwise.errors import UserError
from meshwise.models.model import Model
from meshwise.models.modules import Module, targeted
from meshwise.models.op import FROZEN_TOWER, TRAINED_TOWER, Op

NF4_BLOCK, NF4_GROUP = 64, 256
"""Weights that share a scale, and scales that share a second one (double quantization, arXiv:2305.14314, section 3)."""
NF4_TABLE_BYTES = 4 * (1 + 16 + 256)
"""Bytes per matrix: the mean of its scales, the 16 values of nf4 and the 256 of an 8-bit scale, each in float32 (bitsandbytes 0.50,
functional.quantize_4bit; tests/fixtures/finetune/bitsandbytes.csv)."""
ADAPTER_BYTES = 4.0
"""Bytes per weight of an adapter: PEFT keeps them in float32 (autocast_adapter_dtype), so that no other master copy exists."""
OUTER = ("embedding", "head")


def nf4_bytes(elements: int) -> int:
    """Return the bytes of one matrix in nf4 with double quantization, as bitsandbytes packs it: half a byte per weight, an 8-bit scale per
    64 weights, a float32 per 256 scales, and tables. Worked: 4096 x 4096 are 8,388,608 + 262,144 + 4,096 + 1,092 bytes."""
    scales = math.ceil(elements / NF4_BLOCK)
    return math.ceil(elements / 2) + scales + 4 * math.ceil(scales / NF4_GROUP) + NF4_TABLE_BYTES


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model, or their bytes, by how they are sharded."""

    dense: float
    """In all layers, without experts."""
    experts: float
    table: float
    """Parameters of one vocabulary table: the embedding, or the head."""
    tables: int
    """Vocabulary tables: 1 where embedding and head are tied, otherwise 2."""
    layers: int
    tensors: float
    """Weights of products per layer, without experts."""

    @staticmethod
    def of(model: Model) -> "Parameters":
        inner = [op for block, op in model.placed if block not in OUTER]
        experts = sum(op.params * op.count for op in inner if op.expert)
        dense = sum(op.params * op.count for op in inner) - experts
        dense = dense + _tower(model, TRAINED_TOWER)
        table = next(op.params for op in model.ops if op.name == "embedding")
        tensors = sum(op.count for op in inner if op.kind == "matmul" and not op.expert) / model.decoder.layers
        return Parameters(dense, experts, table, 1 if model.decoder.tied else 2, model.decoder.layers, tensors)

    @property
    def total(self) -> float:
        return self.dense + self.experts + self.table * self.tables

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
class Finetuned:
    """A model as it is fine-tuned: the shares of its layers that the backward pass visits, its trained parameters, its frozen bytes."""

    trained: Parameters
    frozen: Parameters | None = None
    """Bytes of the weights without gradients; None where there are none."""
    inputs: float = 1.0
    """Share of the layers through which gradients flow: none below the lowest trained layer."""
    weights: float = 1.0
    """Share of the layers whose own weights have gradients."""
    head: bool = True
    """Whether the output head's weights have gradients."""
    adapted: tuple[Module, ...] = ()
    """Linear layers that have an adapter."""
    rank: int = 0
    magnitudes: bool = False
    """DoRA: a magnitude per output."""
    quantized: frozenset[str] = frozenset()
    """Names of the Ops that are stored in nf4."""
    packed: float = 0.0
    """Bytes of these, scales included."""

    def unsharded(self, framework: Framework, layers: Floats, a: Layouts) -> Floats:
        """Return the frozen bytes of a stage that ZeRO 3 does not shard: 4-bit weights, where the framework leaves them whole."""
        if framework.shards_nf4 or self.frozen is None:
            return np.zeros_like(layers)
        return self.packed * layers / self.frozen.layers / a.tp

    def adapts(self, *, feeds: bool, row: bool) -> bool:
        """Return whether any product of feed-forward layers (`feeds`) or of mixers has an adapter, of those that read a norm's output or
        of those that end a block (`row`)."""
        ops = (module.ops[0] for module in self.adapted)
        return any((op.part in ("ffw", "experts")) == feeds and (op.shard == "row") == row for op in ops)


def finetuned(model: Model, finetune: Finetune) -> Finetuned:
    """Return what a method of fine-tuning makes of a model. UserError where the model lacks what it names."""
    if finetune == FULL and not any(op.name == FROZEN_TOWER for op in model.ops):
        return Finetuned(Parameters.of(model))
    return _finetuned(model, finetune)


@lru_cache(maxsize=32)
def _finetuned(model: Model, finetune: Finetune) -> Finetuned:
    if finetune == FULL:
        whole = Parameters.of(model)
        return Finetuned(whole, replace(whole, dense=2.0 * _tower(model, FROZEN_TOWER), experts=0.0, table=0.0))
    found = _adapted(model, finetune) if finetune.adapts else _frozen_below(model, finetune.frozen_layers)
    assert found.frozen is not None
    return replace(found, frozen=replace(found.frozen, dense=found.frozen.dense + 2.0 * _tower(model, FROZEN_TOWER)))


def _tower(model: Model, name: str) -> int:
    """Return the parameters of towers whose ops have this name: trained, or frozen."""
    return sum(op.params for op in model.ops if op.name == name)


def _adapted(model: Model, finetune: Finetune) -> Finetuned:
    """Return a frozen model with adapters."""
    whole, chosen = Parameters.of(model), targeted(model, finetune.targets, finetune.rank)
    tower, magnitudes = _tower(model, TRAINED_TOWER), finetune.method == "dora"
    own, of_experts = (
        sum(one.adapter(finetune.rank, magnitudes) * one.count for one in chosen if one.ops[0].expert == expert)
        for expert in (False, True)
    )
    packed = [
        op for block, op in model.placed if finetune.quantized and block not in OUTER and op.kind == "matmul" and not op.expert
    ]
    saved = sum((2 * op.n * op.k - nf4_bytes(op.n * op.k)) * op.count for op in packed)
    if finetune.narrow:
        saved += sum(
            op.n * op.k * op.count for block, op in model.placed if block not in OUTER and op.kind == "matmul" and not op.expert
        )
    frozen = Parameters(
        2.0 * (whole.dense - tower) - saved, 2.0 * whole.experts, 2.0 * whole.table, whole.tables, whole.layers, whole.tensors
    )
    return Finetuned(
        trained=Parameters(own + tower, of_experts, 0.0, whole.tables, whole.layers, 2.0 * len(chosen)), frozen=frozen,
        weights=0.0, head=False, adapted=chosen, rank=finetune.rank, magnitudes=magnitudes,
        quantized=frozenset(op.name for op in packed), packed=sum(nf4_bytes(op.n * op.k) * op.count for op in packed),
    )  # fmt: skip


def _frozen_below(model: Model, layers: int) -> Finetuned:
    """Return a model whose embedding and first `layers` layers are frozen; a tied head is frozen with the embedding."""
    whole, number = Parameters.of(model), model.decoder.layers
    if layers >= number:
        raise UserError(f"freeze:{layers}: {model.name} has {number} layers; expected at most {number - 1} frozen ones")
    dense, experts = (sum(_of_layer(model, i, expert=expert) for i in range(layers, number)) for expert in (False, True))
    dense += _tower(model, TRAINED_TOWER)
    head = not model.decoder.tied
    share = 1 - layers / number
    return Finetuned(
        trained=Parameters(dense, experts, whole.table * head, 1, number, whole.tensors),
        frozen=Parameters(
            2.0 * (whole.dense - dense), 2.0 * (whole.experts - experts), 2.0 * whole.table, 1, number, whole.tensors
        ),
        inputs=share,
        weights=share,
        head=head,
    )


def _of_layer(model: Model, number: int, *, expert: bool) -> float:
    """Return the parameters of one layer: of its experts, or of everything else."""
    return sum(
        op.params * op.count / model.times[block]
        for block in model.layers[number]
        for op in model.blocks[block]
        if op.expert == expert
    )


def dequantized_bytes(op: Op) -> float:
    """Return the bytes moved to turn one matrix from nf4 into 16 bits."""
    return nf4_bytes(op.n * op.k) + 2.0 * op.n * op.k
