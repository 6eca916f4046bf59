"""How tensor parallelism cuts an adapted layer: `a` along the inputs of its layer, `b` and magnitudes along the outputs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.distributed.tensor.placement_types import Placement

from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.finetune.targets import chosen
from meshwise.workers.trainer.models.linear import AdaptedLinear

COLUMNS: dict[str, Placement] = {"lora_a": Replicate()}  # parameters that stay whole in a layer cut along its outputs
ROWS: dict[str, Placement] = {"weight": Shard(1), "lora_a": Shard(1)}  # parameters that a layer cut along its inputs cuts


class AdaptedColumns(ColwiseParallel):
    """A layer cut along its outputs."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        _place(module, device_mesh, COLUMNS, Shard(0))


class AdaptedRows(RowwiseParallel):
    """A layer cut along its inputs."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        _place(module, device_mesh, ROWS, Replicate())


def _place(module: nn.Module, mesh: DeviceMesh, placements: Mapping[str, Placement], other: Placement) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        placed = distribute_tensor(parameter, mesh, [placements.get(name, other)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(placed, requires_grad=parameter.requires_grad))


def adapted_styles(model: nn.Module, styles: dict[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Return the styles of a model with those of adapted layers replaced."""
    found: dict[str, ParallelStyle] = dict(styles)
    for name, style in styles.items():
        if not isinstance(model.get_submodule(name), AdaptedLinear):
            continue
        known: Any = style
        if isinstance(style, ColwiseParallel | RowwiseParallel):
            adapted = AdaptedColumns if isinstance(style, ColwiseParallel) else AdaptedRows
            where = {"input_layouts": known.input_layouts[0], "output_layouts": known.output_layouts[0]}
            found[name] = adapted(**where, use_local_output=known.use_local_output)
    return found


def share_again(model: Any, finetune: FinetuneMethod) -> None:
    """Let packed layers share `lora_a` again, which was cut for each of them."""
    for target in chosen(model.config, finetune.targets) if finetune.adapts else ():
        try:
            layers = [model.get_submodule(part) for part in target.parts]
        except AttributeError:
            continue  # on another pipeline stage
        for layer in layers[1:]:
            layer.lora_a = layers[0].lora_a
