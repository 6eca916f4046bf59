"""A model split over ranks: the mesh, tensor and sequence parallelism, compiled blocks, and sharded data parallelism."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import logging
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch._functorch.config as functorch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

from meshwise.workers.trainer import weights
from meshwise.workers.trainer.contract.models.registry import sizes_of, tied_embedding
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.contract.stages import Span, spans, stages_of_rank
from meshwise.workers.trainer.finetune.adapter_files import load_adapter
from meshwise.workers.trainer.finetune.attach import attach, fuse_adapters, mark_trained, start_adapters
from meshwise.workers.trainer.finetune.sharding import adapted_styles, share_again
from meshwise.workers.trainer.models.base import Decoder, Fusable, build, tensor_parallel_styles
from meshwise.workers.trainer.models.decoder.experts import ExpertStack
from meshwise.workers.trainer.ops.attention import LocalShard

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Outermost first: neighbouring ranks, usually of one node, share tensor parallelism, which communicates most."""
WEIGHT_AXES = ("pp", "dp_replicate", "fsdp", "tp")
"""The axes that shard or replicate weights: FSDP shards weights over dp_shard x cp, whose ranks all see different tokens."""

EXPERT_AXES = ("pp", "dp_replicate", "edp", "ep")
"""The axes of experts: ep ranks share the experts of a layer, edp groups of them hold the same ones and shard them."""


@dataclass(frozen=True)
class Ranks:
    """The meshes of a run, and this rank's coordinates in them."""

    mesh: DeviceMesh  # over WEIGHT_AXES
    full_mesh: DeviceMesh  # over AXES
    layout: Layout
    tied_group: dist.ProcessGroup | None
    """This rank and the one that holds the other copy of a tied embedding, if they are on different stages."""
    always: bool = False  # whether axes of one rank communicate too, so that one device runs every collective of a layout

    @staticmethod
    def of(layout: Layout, device: str, always: bool = False) -> "Ranks":
        sizes = (layout.pp, layout.dp_replicate, layout.dp_shard * layout.cp, layout.tp)
        mesh = init_device_mesh(device, sizes, mesh_dim_names=WEIGHT_AXES)
        full_mesh = init_device_mesh(device, tuple(getattr(layout, axis) for axis in AXES), mesh_dim_names=AXES)
        tied = _end_stages(mesh) if layout.pp > 1 and layout.schedule != "zbv" else None
        return Ranks(mesh, full_mesh, layout, tied, always)

    def at(self, axis: str) -> int:
        """Return this rank's coordinate on an axis."""
        return self.full_mesh.get_local_rank(axis)

    def uses(self, axis: str) -> bool:
        """Return whether an axis of the layout communicates."""
        return self.always or getattr(self.layout, axis) > 1

    @property
    def uses_fsdp(self) -> bool:
        """Whether FSDP holds the weights; it also averages gradients over context-parallel ranks, which see different tokens. Under tensor
        parallelism alone it shards over one rank: so that layers compute, and send each other, 16-bit activations."""
        return self.always or self.layout.devices > self.layout.pp

    @property
    def replica(self) -> int:
        """Index of the share of the batch that this rank reads."""
        return self.at("dp_replicate") * self.layout.dp_shard + self.at("dp_shard")

    @property
    def shard(self) -> LocalShard:
        a = self.layout
        cp, tp = (self.full_mesh[axis].get_group() if self.uses(axis) else None for axis in ("cp", "tp"))
        experts = self.expert_mesh["ep"].get_group() if self.uses("ep") else None
        return LocalShard(a.tp, self.at("tp"), a.cp, self.at("cp"), cp, tp, a.ep, experts)

    @cached_property
    def expert_mesh(self) -> DeviceMesh:
        """Over EXPERT_AXES, for models with experts; all ranks ask for it at the same point."""
        a = self.layout
        sizes = (a.pp, a.dp_replicate, a.dp_shard * a.cp * a.tp // a.ep, a.ep)
        return init_device_mesh(self.mesh.device_type, sizes, mesh_dim_names=EXPERT_AXES)


def _end_stages(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """Return this rank's group of first and last pipeline stage. Every rank creates all groups, as torch requires."""
    rank_group = None
    for first, last in zip(mesh.mesh[0].flatten().tolist(), mesh.mesh[-1].flatten().tolist(), strict=True):
        group = dist.new_group([first, last])
        if dist.get_rank() in (first, last):
            rank_group = cast(dist.ProcessGroup, group)
    return rank_group


def build_stages(settings: Settings, ranks: Ranks) -> list[tuple[int, nn.Module]]:
    """Build this rank's stages on the meta device, each with its number, sharded by the layout. `initialize` allocates them."""
    layout = settings.layout
    all_spans = spans(sizes_of(settings.model).layers, layout.pp * layout.chunks)
    built: list[tuple[int, nn.Module]] = []
    for number in stages_of_rank(layout, ranks.at("pp")):
        with torch.device("meta"):
            model = build(settings.model, all_spans[number], ranks.shard, layout.recompute)
            attach(model, settings.finetune, settings.half)
        _parallelize(model, all_spans[number], settings, ranks)
        built.append((number, model))
    return built


def initialize(settings: Settings, models: list[nn.Module], device: torch.device) -> None:
    """Allocate the stages and fill their weights, from HF's files or at random."""
    for model in models:
        model.to_empty(device=device)
        cast(Decoder, model).tie()
        share_again(model, settings.finetune)
    tied = tied_embedding(settings.model)
    if settings.weights:
        weights.load(models, Path(settings.weights), tied)
    else:
        weights.init_random(models, settings.seed, float(settings.model.get("initializer_range", 0.02)), tied)
    if settings.finetune.adapts:
        start_adapters(models, settings.finetune, settings.seed)
        if settings.finetune.adapter:
            load_adapter(models, Path(settings.finetune.adapter))
    if settings.split_weights:  # only then does this rank hold whole weights, which can be stacked
        fuse_adapters(models)
        for part in (part for model in models for part in model.modules() if isinstance(part, Fusable)):
            part.fuse()
    if settings.split_weights and settings.microbatches == 1:  # squares of a sum are not the sum of squares
        for stack in (part for model in models for part in model.modules() if isinstance(part, ExpertStack)):
            stack.ask_squares()
    for model in models if settings.pack else ():
        cast(Any, model).document_end = settings.document_end
    if settings.eight:
        for part in (part for model in models for part in model.modules() if hasattr(part, "eight")):
            cast(Any, part).eight = settings.eight


def _parallelize(model: nn.Module, span: Span, settings: Settings, ranks: Ranks) -> None:
    layout = settings.layout
    decoder = cast(Decoder, model)
    if ranks.uses("tp"):
        styles = adapted_styles(model, tensor_parallel_styles(settings.model, span))
        parallelize_module(model, ranks.mesh["tp"], styles)
        share_again(model, settings.finetune)
        decoder.tie()
    stacks = [part for part in model.modules() if isinstance(part, ExpertStack)]
    for stack in stacks if ranks.uses("ep") else ():
        for name, parameter in list(stack.named_parameters()):
            placed = distribute_tensor(parameter, ranks.expert_mesh["ep"], [Shard(0)], src_data_rank=None)
            stack.register_parameter(name, nn.Parameter(placed))
    mark_trained(model, settings.finetune)
    if settings.compile:
        # recompute, not keep, element-wise products that a later matrix product needs: a pass over memory, a third of its bytes
        functorch.ban_recompute_materialized_backward = False
        for block in decoder.blocks():
            block.compile()
    half = torch.bfloat16 if settings.half else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    # a pipeline runs many micro-batches: gathering the weights again for each would cost more time than it saves memory
    options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": layout.zero == 3 and layout.pp == 1}
    if stacks and (ranks.always or layout.devices > layout.pp):
        # gathering experts for a file takes two steps, of which torch warns on every rank
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        for stack in stacks:
            fully_shard(stack, mesh=_data_mesh(ranks.expert_mesh, layout, "edp"), **options)
    if not ranks.uses_fsdp:
        return
    mesh = _data_mesh(ranks.mesh, layout, "fsdp")
    # torch warns against modifying a stage's output in place, which nothing here does
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor")
    for block in decoder.blocks():
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def _data_mesh(mesh: DeviceMesh, layout: Layout, axis: str) -> DeviceMesh:
    """Return the ranks over which weights are sharded, and replicated if there are replicas."""
    return mesh["dp_replicate", axis] if layout.dp_replicate > 1 else mesh[axis]
