"""Parameters of a model by how they are sharded, and by how it is fine-tuned: which are trained, and how the frozen ones are stored."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from meshwise.catalogue.frameworks import Framework
from meshwise.cost.finetune import FULL, Base, Finetune
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
GROUP = 128  # weights that share a scale and a zero in GPTQ's and AWQ's 4 bits, as nearly all published files have them
OUTER = ("embedding", "head")


def nf4_bytes(elements: int) -> int:
    """Return the bytes of one matrix in nf4 with double quantization, as bitsandbytes packs it: half a byte per weight, an 8-bit scale per
    64 weights, a float32 per 256 scales, and tables. Worked: 4096 x 4096 are 8,388,608 + 262,144 + 4,096 + 1,092 bytes."""
    scales = math.ceil(elements / NF4_BLOCK)
    return math.ceil(elements / 2) + scales + 4 * math.ceil(scales / NF4_GROUP) + NF4_TABLE_BYTES


def base_bytes(n: int, k: int, base: Base) -> float:
    """Return the bytes of one frozen product of n outputs and k inputs. Without double quantization nf4 has a float32 scale per 64
    weights. bitsandbytes' int8 has one per output. GPTQ and AWQ have a 16-bit scale and a 4-bit zero per group, GPTQ the group of every
    input."""
    elements = n * k
    if base == "nf4":
        return nf4_bytes(elements)
    if base == "nf4-single":
        return math.ceil(elements / 2) + 4 * math.ceil(elements / NF4_BLOCK) + 4 * 16
    if base == "int8":
        return elements + 4 * n
    if base in ("gptq", "awq"):
        return elements / 2 + 2.5 * n * math.ceil(k / GROUP) + 4 * k * (base == "gptq")
    return 2.0 * elements


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model, or their bytes, by how they are sharded."""

    dense: float  # in all layers, without experts
    experts: float
    table: float  # parameters of one vocabulary table: the embedding, or the head
    tables: int  # vocabulary tables: 1 where embedding and head are tied, otherwise 2
    layers: int
    tensors: float  # weights of products per layer, without experts

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
    frozen: Parameters | None = None  # bytes of the weights without gradients; None where there are none
    inputs: float = 1.0  # share of the layers through which gradients flow: none below the lowest trained layer
    weights: float = 1.0  # share of the layers whose own weights have gradients
    head: bool = True  # whether the output head's weights have gradients
    adapted: tuple[Module, ...] = ()  # linear layers that have an adapter
    rank: int = 0
    magnitudes: bool = False  # DoRA: a magnitude per output
    base: Base = ""  # format in which the Ops `quantized` are stored
    quantized: frozenset[str] = frozenset()  # names of the Ops that are stored in it
    packed: float = 0.0  # bytes of these, scales included, without experts
    stream: float = 2.0  # bytes per element of the residual stream
    adapter_bytes: float = 4.0
    """Bytes per weight of an adapter: PEFT keeps them in float32 (autocast_adapter_dtype), so that no other master copy exists."""

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
    products = [(block, op) for block, op in model.placed if block not in OUTER and op.kind == "matmul"]
    packed = [op for _, op in products if finetune.quantized and (finetune.quantizes_experts or not op.expert)]
    saved, saved_experts = (
        sum((2 * op.n * op.k - base_bytes(op.n, op.k, finetune.stored)) * op.count for op in packed if op.expert == expert)
        for expert in (False, True)
    )
    if finetune.narrow:
        saved += sum(op.n * op.k * op.count for _, op in products if not op.expert)
    wide = finetune.wide_rest and finetune.quantized
    rest = 4.0 if wide else 2.0
    kept = whole.dense - tower - sum(op.n * op.k * op.count for op in packed if not op.expert)  # norms, routers and biases
    frozen = Parameters(
        2.0 * (whole.dense - tower) - saved + (rest - 2.0) * kept, 2.0 * whole.experts - saved_experts, rest * whole.table,
        whole.tables, whole.layers, whole.tensors,
    )  # fmt: skip
    return Finetuned(
        trained=Parameters(own + tower, of_experts, 0.0, whole.tables, whole.layers, 2.0 * len(chosen)), frozen=frozen,
        weights=0.0, head=False, adapted=chosen, rank=finetune.rank, magnitudes=magnitudes, base=finetune.stored,
        quantized=frozenset(op.name for op in packed), stream=rest, adapter_bytes=finetune.adapter_bytes,
        packed=sum(base_bytes(op.n, op.k, finetune.stored) * op.count for op in packed if not op.expert),
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


def dequantized_bytes(op: Op, base: Base) -> float:
    """Return the bytes moved to turn one matrix into 16 bits."""
    return base_bytes(op.n, op.k, base) + 2.0 * op.n * op.k
