"""How tensor and sequence parallelism cut GPT-2: as BLOOM, with the learned positions cut as the embedding is (arXiv:2205.05198)."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from meshwise.trainer.models import Span


def styles(span: Span) -> dict[str, ParallelStyle]:
    found: dict[str, ParallelStyle] = {}
    if span.starts:
        for name in ("wte", "wpe"):
            found[f"transformer.{name}"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    for i in span.layers:
        found |= {f"transformer.h.{i}.{name}": style for name, style in _block().items()}
    if span.ends:
        found["transformer.ln_f"] = SequenceParallel()
        found["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))
    return found


def _block() -> dict[str, ParallelStyle]:
    return {
        "ln_1": SequenceParallel(),
        "attn": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "attn.c_attn": ColwiseParallel(),
        "attn.c_proj": RowwiseParallel(output_layouts=Shard(1)),
        "ln_2": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.c_fc": ColwiseParallel(),
        "mlp.c_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
