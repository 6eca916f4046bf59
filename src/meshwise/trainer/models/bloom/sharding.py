"""How tensor and sequence parallelism cut BLOOM: columns in, rows out, norms on parts of the sequence (arXiv:2205.05198)."""

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
        found["transformer.word_embeddings"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        found["transformer.word_embeddings_layernorm"] = SequenceParallel(use_local_output=True)
    for i in span.layers:
        found |= {f"transformer.h.{i}.{name}": style for name, style in _block().items()}
    if span.ends:
        found["transformer.ln_f"] = SequenceParallel()
        found["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))
    return found


def _block() -> dict[str, ParallelStyle]:
    return {
        "input_layernorm": SequenceParallel(),
        "self_attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "self_attention.query_key_value": ColwiseParallel(),
        "self_attention.dense": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.dense_h_to_4h": ColwiseParallel(),
        "mlp.dense_4h_to_h": RowwiseParallel(output_layouts=Shard(1)),
    }
