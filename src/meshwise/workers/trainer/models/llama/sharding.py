"""How tensor and sequence parallelism cut Llama: columns in, rows out, norms on parts of the sequence (arXiv:2205.05198)."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from meshwise.workers.trainer.stages import Span


def styles(span: Span) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {}
    if span.starts:
        plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    for i in span.layers:
        plan |= {f"model.layers.{i}.{name}": style for name, style in _block().items()}
    if span.ends:
        plan["model.norm"] = SequenceParallel()
        plan["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))
    return plan


def _block() -> dict[str, ParallelStyle]:
    whole = PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None))
    return {
        "input_layernorm": SequenceParallel(),
        "self_attn": whole,
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
