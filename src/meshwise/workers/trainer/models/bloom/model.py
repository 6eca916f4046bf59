"""BLOOM: LayerNorm with biases, ALiBi instead of positions, gelu, a norm after the embedding, a tied head. Parameter names are HF's."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.models.base import Headed
from meshwise.workers.trainer.models.registry import Config, sizes_of
from meshwise.workers.trainer.ops.attention import LocalShard, attend
from meshwise.workers.trainer.ops.recompute import checkpointed
from meshwise.workers.trainer.stages import Span


class Attention(nn.Module):
    def __init__(self, config: Config, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.head_dim = sizes.hidden // sizes.heads
        self.shard, self.selective = shard, recompute == "selective"
        self.query_key_value = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        self.dense = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = heads_of(self.query_key_value(x), self.head_dim)
        y = attend(q, k, v, bias, self.shard, self.selective)
        return self.dense(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = sizes_of(config).hidden
        self.dense_h_to_4h = nn.Linear(hidden, 4 * hidden)
        self.dense_4h_to_h = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: Config, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        self.full = recompute == "full"
        self.input_layernorm = norm_of(config)
        self.self_attention = Attention(config, shard, recompute)
        self.post_attention_layernorm = norm_of(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        if self.full:
            return checkpointed(self._run, x, bias)
        return self._run(x, bias)

    def _run(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.self_attention(self.input_layernorm(x), bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """The module that HF calls `transformer`."""

    def __init__(self, config: Config, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.word_embeddings = nn.Embedding(sizes.vocab, sizes.hidden) if span.starts else None
        self.word_embeddings_layernorm = norm_of(config) if span.starts else None
        self.h = nn.ModuleDict({str(i): Block(config, shard, recompute) for i in span.layers})
        self.ln_f = norm_of(config) if span.ends else None


class Bloom(Headed):
    trunk: type[nn.Module] = Trunk

    def __init__(self, config: Config, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.config, self.heads, self.shard, self.tied = config, sizes.heads, shard, sizes.tied
        self.transformer: Any = self.trunk(config, span, shard, recompute)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if span.ends else None
        self.tie()

    @property
    def embedding(self) -> nn.Embedding | None:
        return self.transformer.word_embeddings

    def embed(self, x: Tensor) -> Tensor:
        return self.transformer.word_embeddings_layernorm(self.transformer.word_embeddings(x))

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        """Return the mask of attention, added to its scores or boolean; None means causal."""
        return alibi(self.heads, self.shard, length, device)

    def tie(self) -> None:
        if self.tied and self.lm_head is not None and self.embedding is not None:
            self.lm_head.weight = self.embedding.weight

    def blocks(self) -> list[nn.Module]:
        return list(self.transformer.h.values())

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        t, length = self.transformer, x.shape[1]
        if self.embedding is not None:
            x = self.embed(x)
        else:
            length *= self.shard.tp  # between blocks, sequence parallelism splits the sequence
        mask = self.mask(length, x.device)
        for block in t.h.values():
            x = block(x, mask)
        return self.end(x, t.ln_f, targets)


def build(config: Config, span: Span, shard: LocalShard, recompute: str) -> nn.Module:
    return Bloom(config, span, shard, recompute)


def heads_of(x: Tensor, head_dim: int) -> tuple[Tensor, ...]:
    """Split into queries, keys and values. Rows are ordered by head, then by kind, so that tensor parallelism cuts between heads."""
    return x.unflatten(-1, (-1, 3, head_dim)).transpose(1, 2).unbind(3)


def norm_of(config: Config) -> nn.LayerNorm:
    return nn.LayerNorm(sizes_of(config).hidden, eps=float(config.get("layer_norm_epsilon", 1e-5)))


def slopes(heads: int, device: torch.device) -> Tensor:
    """Return the ALiBi slopes of the heads: a geometric series, and beyond a power of two every other slope of the next (arXiv:2108.12409).

    They are computed on the device: a CUDA graph cannot capture a copy from the host.
    """
    power = 2 ** math.floor(math.log2(heads))
    i = torch.arange(heads, device=device, dtype=torch.float64)
    return torch.where(i < power, -8 * (i + 1), -4 * (2 * (i - power) + 1)).div(power).exp2().float()


def alibi(heads: int, shard: LocalShard, length: int, device: torch.device) -> Tensor:
    """Return the bias on the scores of this rank's heads: minus slope x distance, and minus infinity for later tokens.

    HF adds slope x position of the key. The difference is the same for all keys of a query, so softmax ignores it, and distances
    stay exact in 16 bits where they matter.
    """
    positions, key_positions = shard.positions(length, device)
    each = heads // shard.tp
    local_slopes = slopes(heads, device)[shard.tp_rank * each : (shard.tp_rank + 1) * each]
    distance = (positions[:, None] - key_positions).float()
    return (-local_slopes[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)
