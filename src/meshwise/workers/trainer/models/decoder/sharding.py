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

from meshwise.workers.trainer.contract.models.description import Description, Layer
from meshwise.workers.trainer.contract.models.registry import Config, description_of
from meshwise.workers.trainer.contract.models.tensors import norm_names
from meshwise.workers.trainer.contract.stages import Span


class Gains(ParallelStyle):
    """Weights that a module applies to this rank's part of its input: cut along dimension 0, or the same on all ranks. The module works on
    local tensors, which `local_weight` returns."""

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


class Copied(Gains):
    """A module that every rank computes on the whole input, with the same weights; its output stays a DTensor."""

    def __init__(self) -> None:
        super().__init__(cut=False)


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
        plan |= {f"model.layers.{i}.{name}": style for name, style in _block(d, d.layers[i]).items()}
    if span.ends:
        plan["model.norm"] = SequenceParallel()
        plan["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))
    return plan


def _block(d: Description, layer: Layer) -> dict[str, ParallelStyle]:
    whole = PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None))
    # what norms after attention and feed-forward return is added to local tensors, and routers read local tensors
    local = ("attention_out_norm", "mlp_out_norm", *(("post_attention_layernorm",) if layer.mixed else ()))
    found: dict[str, ParallelStyle] = {name: SequenceParallel(use_local_output=name in local) for name in norm_names(d)}
    found["self_attn"] = whole
    if d.latent:
        found |= {
            f"self_attn.{name}": ColwiseParallel() for name in ("q_b_proj" if d.latent.query_rank else "q_proj", "kv_b_proj")
        }
        found |= {f"self_attn.{name}": Copied() for name in ("kv_a_proj", "kv_a_norm")}
        found |= {f"self_attn.{name}": Copied() for name in ("q_a_proj", "q_a_norm") if d.latent.query_rank}
    else:
        found |= {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
        found |= {f"self_attn.{name}_norm": Gains(d.qk_norm == "all") for name in "qk" if d.qk_norm}
    found["self_attn.o_proj"] = RowwiseParallel(output_layouts=Shard(1))
    if not layer.mixed or d.experts is None:
        return found | _feed_forward("mlp", d)
    # each rank routes its own part of the sequence
    return found | {"mlp.router": Gains(False)} | (_feed_forward("mlp.shared_experts", d) if d.experts.shared else {})


def _feed_forward(name: str, d: Description) -> dict[str, ParallelStyle]:
    found: dict[str, ParallelStyle] = {name: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
    found |= {f"{name}.{part}_proj": ColwiseParallel() for part in (("gate", "up") if d.gated else ("up",))}
    return found | {f"{name}.down_proj": RowwiseParallel(output_layouts=Shard(1))}
