"""How tensor and sequence parallelism cut BLOOM: columns in, rows out, norms on parts of the sequence (arXiv:2205.05198)."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from meshwise.workers.trainer.stages import Span

NAMES = (
    "input_layernorm",
    "self_attention",
    "query_key_value",
    "dense",
    "post_attention_layernorm",
    "dense_h_to_4h",
    "dense_4h_to_h",
)


def styles(span: Span) -> dict[str, ParallelStyle]:
    first: dict[str, ParallelStyle] = {
        "word_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "word_embeddings_layernorm": SequenceParallel(use_local_output=True),
    }
    return decoder_styles(span, first, NAMES)


def decoder_styles(span: Span, first: dict[str, ParallelStyle], names: tuple[str, ...]) -> dict[str, ParallelStyle]:
    """Return the styles of a decoder with BLOOM's structure.

    `first` has the styles of its embeddings, `names` the names of a block's norms, attention and products.
    """
    plan = {f"transformer.{name}": style for name, style in first.items()} if span.starts else {}
    for i in span.layers:
        plan |= {f"transformer.h.{i}.{name}": style for name, style in _block(*names).items()}
    if span.ends:
        plan["transformer.ln_f"] = SequenceParallel()
        plan["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1))
    return plan


def _block(norm: str, attention: str, packed: str, out: str, second: str, wide: str, narrow: str) -> dict[str, ParallelStyle]:
    return {
        norm: SequenceParallel(),
        attention: PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        f"{attention}.{packed}": ColwiseParallel(),
        f"{attention}.{out}": RowwiseParallel(output_layouts=Shard(1)),
        second: SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        f"mlp.{wide}": ColwiseParallel(),
        f"mlp.{narrow}": RowwiseParallel(output_layouts=Shard(1)),
    }
