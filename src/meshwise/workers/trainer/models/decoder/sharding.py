"""How tensor and sequence parallelism cut a decoder: columns in, rows out, norms on parts of the sequence (arXiv:2205.05198)."""

# pyright: reportUnknownMemberType=false
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from meshwise.workers.trainer.models.description import Description
from meshwise.workers.trainer.models.registry import Config, description_of
from meshwise.workers.trainer.models.tensors import norm_names
from meshwise.workers.trainer.stages import Span


class HeadGains(ParallelStyle):
    """The gains of a HeadNorm: cut like the heads, or the same on all ranks. The module itself works on local tensors."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            if self.cut:
                placed = distribute_tensor(parameter, device_mesh, [Shard(0)], src_data_rank=None)
            else:
                placed = DTensor.from_local(parameter, device_mesh, [Replicate()], run_check=False)
            module.register_parameter(name, nn.Parameter(placed))
        return module


def styles(config: Config, span: Span) -> dict[str, ParallelStyle]:
    d = description_of(config)
    plan: dict[str, ParallelStyle] = {}
    if span.starts:
        plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        if d.positions:
            plan["model.embed_positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        if d.embedding_norm:
            plan["model.embed_norm"] = SequenceParallel(use_local_output=True)
    for i in span.layers:
        plan |= {f"model.layers.{i}.{name}": style for name, style in _block(d).items()}
    if span.ends:
        plan["model.norm"] = SequenceParallel()
        plan["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))
    return plan


def _block(d: Description) -> dict[str, ParallelStyle]:
    whole = PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None))
    # outputs of norms after attention and feed-forward are added to local tensors
    found: dict[str, ParallelStyle] = {name: SequenceParallel(use_local_output="_out_" in name) for name in norm_names(d)}
    found |= {"self_attn": whole, **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}}
    found["self_attn.o_proj"] = RowwiseParallel(output_layouts=Shard(1))
    found |= {f"self_attn.{name}_norm": HeadGains(d.qk_norm == "all") for name in "qk" if d.qk_norm}
    found["mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    found |= {f"mlp.{name}_proj": ColwiseParallel() for name in (("gate", "up") if d.gated else ("up",))}
    found["mlp.down_proj"] = RowwiseParallel(output_layouts=Shard(1))
    return found
