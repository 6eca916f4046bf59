"""GPT-2: BLOOM's structure with learned positions instead of ALiBi, and no norm after the embedding. Parameter names are HF's.

HF stores its linear layers with inputs first, and the queries, keys and values of all heads one after another. Here they are stored like
BLOOM's, outputs first and by head, so that tensor parallelism cuts between heads; `from_hf` and `to_hf` convert.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.models.bloom.model import Bloom, heads_of, norm_of
from meshwise.workers.trainer.models.registry import Config, sizes_of
from meshwise.workers.trainer.ops.attention import LocalShard, attend
from meshwise.workers.trainer.ops.recompute import checkpointed
from meshwise.workers.trainer.stages import Span

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


class Attention(nn.Module):
    def __init__(self, config: Config, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.head_dim = sizes.hidden // sizes.heads
        self.shard, self.selective = shard, recompute == "selective"
        self.c_attn = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        self.c_proj = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = heads_of(self.c_attn(x), self.head_dim)
        y = attend(q, k, v, mask, self.shard, self.selective)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.c_fc = nn.Linear(sizes.hidden, sizes.ffn)
        self.c_proj = nn.Linear(sizes.ffn, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: Config, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        self.full = recompute == "full"
        self.ln_1 = norm_of(config)
        self.attn = Attention(config, shard, recompute)
        self.ln_2 = norm_of(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return checkpointed(self._run, x, mask) if self.full else self._run(x, mask)

    def _run(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class Trunk(nn.Module):
    """The module that HF calls `transformer`."""

    def __init__(self, config: Config, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.wte = nn.Embedding(sizes.vocab, sizes.hidden) if span.starts else None
        self.wpe = nn.Embedding(sizes.positions, sizes.hidden) if span.starts else None
        self.h = nn.ModuleDict({str(i): Block(config, shard, recompute) for i in span.layers})
        self.ln_f = norm_of(config) if span.ends else None


class Gpt2(Bloom):
    trunk = Trunk

    @property
    def embedding(self) -> nn.Embedding | None:
        return self.transformer.wte

    def embed(self, x: Tensor) -> Tensor:
        positions, _ = self.shard.positions(x.shape[1], x.device)
        return self.transformer.wte(x) + self.transformer.wpe(positions[None])

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        positions, key_positions = self.shard.positions(length, device)
        return positions[:, None] >= key_positions if self.shard.cp > 1 else None

    def from_hf(self, name: str, weight: Tensor) -> Tensor:
        """Convert a weight from HF's order to the model's."""
        weight = weight.T if name.endswith(TRANSPOSED) else weight
        return self._by_head(weight, (3, self.heads)) if ".c_attn." in name else weight

    def to_hf(self, name: str, weight: Tensor) -> Tensor:
        """Convert a weight from the model's order to HF's."""
        weight = self._by_head(weight, (self.heads, 3)) if ".c_attn." in name else weight
        return weight.T.contiguous() if name.endswith(TRANSPOSED) else weight

    def _by_head(self, weight: Tensor, shape: tuple[int, int]) -> Tensor:
        """Reorder rows from blocks of (first, second) to blocks of (second, first)."""
        return weight.unflatten(0, (*shape, -1)).transpose(0, 1).flatten(0, 2)


def build(config: Config, span: Span, shard: LocalShard, recompute: str) -> nn.Module:
    return Gpt2(config, span, shard, recompute)
