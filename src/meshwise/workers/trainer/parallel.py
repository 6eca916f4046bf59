"""A model cut over ranks: the mesh, tensor and sequence parallelism, recompute, compiled blocks, and sharded data parallelism."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch._functorch.config as functorch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from meshwise.workers.trainer import weights
from meshwise.workers.trainer.models import Decoder, Joining, Span, build, sharding
from meshwise.workers.trainer.ops.attention import Place
from meshwise.workers.trainer.settings import Layout, Settings, Sizes

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Outermost first: neighbours in rank, and so in a node, share tensor parallelism, which talks most."""
SHARED = ("pp", "dp_replicate", "fsdp", "tp")
"""The same ranks as weights see them: shares of a weight go over dp_shard x cp, for both see other tokens."""
EMBEDDINGS = {
    "llama": "model.embed_tokens.weight",
    "bloom": "transformer.word_embeddings.weight",
    "gpt2": "transformer.wte.weight",
    "ttt": "model.embed_tokens.weight",
}


@dataclass(frozen=True)
class Ranks:
    """The mesh of a run, and what this rank is in it."""

    mesh: DeviceMesh
    """Of SHARED axes."""
    parts: DeviceMesh
    """Of all AXES."""
    layout: Layout
    ties: dist.ProcessGroup | None
    """This rank and the one that holds the other copy of a tied embedding, where stages stand between them."""

    @staticmethod
    def of(layout: Layout, device: str) -> "Ranks":
        sizes = (layout.pp, layout.dp_replicate, layout.dp_shard * layout.cp, layout.tp)
        mesh = init_device_mesh(device, sizes, mesh_dim_names=SHARED)
        parts = init_device_mesh(device, tuple(getattr(layout, axis) for axis in AXES), mesh_dim_names=AXES)
        return Ranks(mesh, parts, layout, _ends(mesh) if layout.pp > 1 and layout.schedule != "zbv" else None)

    def at(self, axis: str) -> int:
        return self.parts.get_local_rank(axis)

    @property
    def replica(self) -> int:
        """Which share of the batch this rank reads."""
        return self.at("dp_replicate") * self.layout.dp_shard + self.at("dp_shard")

    @property
    def place(self) -> Place:
        a = self.layout
        group = self.parts["cp"].get_group() if a.cp > 1 else None
        return Place(a.tp, self.at("tp"), a.cp, self.at("cp"), group)


def _ends(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """The group of first and last stage that this rank is in. All ranks make all groups, as torch asks."""
    own = None
    for first, last in zip(mesh.mesh[0].flatten().tolist(), mesh.mesh[-1].flatten().tolist(), strict=True):
        group = dist.new_group([first, last])
        if dist.get_rank() in (first, last):
            own = cast(dist.ProcessGroup, group)
    return own


def spans(layers: int, stages: int) -> list[Span]:
    """Layers shared out evenly. What is left over goes to stages in the middle first: the ends have the embedding and the head."""
    each, over = divmod(layers, stages)
    middle_first = sorted(range(stages), key=lambda stage: abs(2 * stage - stages + 1))
    sizes = [each + (stage in middle_first[:over]) for stage in range(stages)]
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [Span(start, start + size, layers) for start, size in zip(starts, sizes, strict=True)]


def own_stages(layout: Layout, stage: int) -> list[int]:
    """The parts of the model that a rank of the pipeline holds: dealt out in turn, or down and up again in a V."""
    if layout.schedule == "zbv":
        return [stage, 2 * layout.pp - 1 - stage]
    return list(range(stage, layout.pp * layout.chunks, layout.pp))


def stages(settings: Settings, ranks: Ranks) -> list[tuple[int, nn.Module]]:
    """This rank's stages, each with its number, cut as the layout says. They have shapes and no bytes yet."""
    layout = settings.layout
    every = spans(Sizes.of(settings.model).layers, layout.pp * layout.chunks)
    found: list[tuple[int, nn.Module]] = []
    for number in own_stages(layout, ranks.at("pp")):
        with torch.device("meta"):
            model = build(settings.model, every[number], ranks.place, layout.recompute)
        _parallelize(model, every[number], settings, ranks)
        found.append((number, model))
    return found


def fill(settings: Settings, models: list[nn.Module], device: torch.device) -> None:
    """Give stages their memory and weights, HF's or random ones."""
    for model in models:
        model.to_empty(device=device)
        cast(Decoder, model).tie()
    tied = tied_name(settings)
    if settings.weights:
        weights.load(models, Path(settings.weights), tied)
    else:
        weights.start(models, settings.seed, float(settings.model.get("initializer_range", 0.02)), tied)
    if settings.split:  # no rank has but a part of a weight, which would not stand beside the others
        for part in (part for model in models for part in model.modules() if isinstance(part, Joining)):
            part.join()


def _parallelize(model: nn.Module, span: Span, settings: Settings, ranks: Ranks) -> None:
    layout = settings.layout
    decoder = cast(Decoder, model)
    if layout.tp > 1:
        parallelize_module(model, ranks.mesh["tp"], sharding(settings.model, span))
        decoder.tie()
    if settings.compile:
        # products of elements that a later matrix product needs are made again rather than kept: a pass over memory, a third of its bytes
        functorch.ban_recompute_materialized_backward = False
        for block in decoder.blocks():
            block.compile()
    if not sharded(layout):
        return
    mesh = ranks.mesh["dp_replicate", "fsdp"] if layout.dp_replicate > 1 else ranks.mesh["fsdp"]
    half = torch.bfloat16 if settings.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    # a pipeline passes many micro-batches: weights gathered for each of them would cost more than they take
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": layout.zero == 3 and layout.pp == 1}
    # torch warns of changing in place what a stage returns, which nothing here does
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module .* returned a view tensor")
    for block in decoder.blocks():
        fully_shard(block, **options)
    fully_shard(model, **options)


def tied_name(settings: Settings) -> str:
    """The embedding that the head shares; nothing where each has its own."""
    return EMBEDDINGS[settings.model["model_type"]] if Sizes.of(settings.model).tied else ""


def sharded(layout: Layout) -> bool:
    """Whether FSDP holds the weights; it also averages gradients over context-parallel ranks, which see other tokens."""
    return layout.dp * layout.cp > 1
