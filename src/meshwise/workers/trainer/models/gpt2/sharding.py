"""How tensor and sequence parallelism cut GPT-2: like BLOOM, with the learned positions cut like the embedding (arXiv:2205.05198)."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel

from meshwise.workers.trainer.models.bloom.sharding import decoder_styles
from meshwise.workers.trainer.stages import Span

NAMES = ("ln_1", "attn", "c_attn", "c_proj", "ln_2", "c_fc", "c_proj")


def styles(span: Span) -> dict[str, ParallelStyle]:
    first: dict[str, ParallelStyle] = {
        name: RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)) for name in ("wte", "wpe")
    }
    return decoder_styles(span, first, NAMES)
