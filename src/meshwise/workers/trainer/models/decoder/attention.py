"""Attention of a layer: projections, norms and rotation of queries and keys, scores by the layer's rule."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import torch
from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.description import Description, Layer
from meshwise.workers.trainer.models.decoder.feed_forward import project
from meshwise.workers.trainer.models.decoder.norms import HeadNorm
from meshwise.workers.trainer.models.decoder.rotary import rotate
from meshwise.workers.trainer.ops.attention import LocalShard, Rule, Scores, attend


def rule_of(d: Description, layer: Layer) -> Rule:
    return Rule(d.score_factor, layer.window, d.score_cap, d.heads if d.alibi else 0)


class Attention(nn.Module):
    def __init__(self, d: Description, layer: Layer, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        self.head_dim, self.kv_heads, self.eps = d.head_dim, d.kv_heads, d.eps
        self.rule, self.shard, self.selective = rule_of(d, layer), shard, recompute == "selective"
        self.rotates, self.biased = layer.rotary is not None, d.qkv_bias
        self.fused = False
        """Whether one product computes queries, keys and values."""
        self.frozen, self.columns = False, tuple[int, ...]()
        """Whether that product has no gradient of its weights, and where their adapters are among the joined ones."""
        self.eight = ""
        """tensor or row, which has one scale, if products are in 8 bits."""
        self.kernel = False
        """Whether a kernel norms and rotates what that product returns."""
        self.q_proj = nn.Linear(d.hidden, d.heads * d.head_dim, bias=d.qkv_bias)
        self.k_proj = nn.Linear(d.hidden, d.kv_heads * d.head_dim, bias=d.qkv_bias)
        self.v_proj = nn.Linear(d.hidden, d.kv_heads * d.head_dim, bias=d.qkv_bias)
        self.o_proj = nn.Linear(d.heads * d.head_dim, d.hidden, bias=d.out_bias)
        self.q_norm = HeadNorm(d, d.heads, shard.tp_group) if d.qk_norm else None
        self.k_norm = HeadNorm(d, d.kv_heads, shard.tp_group) if d.qk_norm else None

    def forward(self, x: Tensor, rotation: Tensor | None, scores: Scores) -> Tensor:
        q, k, v = (heads.transpose(1, 2) for heads in self._heads(x, rotation))
        y = attend(q, k, v, scores, self.rule, self.shard, self.selective)
        return project(y.transpose(1, 2).flatten(2), self.o_proj, self.eight)

    def _heads(self, x: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch, sequence, heads, head_dim)."""
        if self.kernel and rotation is not None:
            return self._by_kernel(self._joined(x), rotation)
        joined = self.fused or bool(self.eight)
        parts = (
            self._joined(x).split([p.out_features for p in self._projections()], -1)
            if joined
            else [p(x) for p in self._projections()]
        )
        # -1: under tensor parallelism the projections return only this rank's heads
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if rotation is None else (rotate(q, rotation), rotate(k, rotation), v)

    def _joined(self, x: Tensor) -> Tensor:
        """Return the three projections side by side, by one product."""
        if self.frozen:
            from meshwise.workers.trainer.models.linear import joined_product

            return joined_product(x, self._projections(), self.columns)
        from meshwise.workers.trainer.ops.fp8 import fp8_linear
        from meshwise.workers.trainer.ops.fused_projections import fused_linear

        weights = [p.weight for p in self._projections()]
        rows = fp8_linear(x, weights, self.eight == "row")[0] if self.eight else fused_linear(x, weights)
        return rows + torch.cat([p.bias for p in self._projections()]) if self.biased else rows

    def _by_kernel(self, rows: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from meshwise.workers.trainer.ops.fused_heads import norm_and_rotate, split_and_rotate

        if self.q_norm is None or self.k_norm is None:
            return split_and_rotate(rows, rotation, self.kv_heads)
        gains = (norm.gain() for norm in (self.q_norm, self.k_norm))
        return norm_and_rotate(rows, rotation, *gains, self.kv_heads, self.eps, self.q_norm.offset)

    def _projections(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.q_proj, self.k_proj, self.v_proj

    def fuse(self) -> None:
        """Compute queries, keys and values by one product if that needs no padding, and by a kernel after it if it supports the heads."""
        from meshwise.workers.trainer.models.linear import columns_of, is_frozen, join
        from meshwise.workers.trainer.ops.fused_heads import MAX_NORM_FEATURES, lanes_of

        if join(self._projections()):
            self.fused, self.frozen = True, any(map(is_frozen, self._projections()))
            self.columns = columns_of(self._projections())
            together = self.q_norm.width // self.head_dim if self.q_norm is not None and self.q_norm.together else 0
            self.kernel = self.rotates and 2 * lanes_of(self.head_dim) * together <= MAX_NORM_FEATURES
