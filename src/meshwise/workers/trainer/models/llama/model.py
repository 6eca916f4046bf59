"""Llama: RMSNorm, grouped-query attention with rotary positions, SwiGLU. Parameter names are HF's, so weights load unchanged."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.models.base import Tied
from meshwise.workers.trainer.models.llama.family import head_dim_of, rope_of
from meshwise.workers.trainer.models.registry import Config, sizes_of
from meshwise.workers.trainer.ops.attention import LocalShard, attend
from meshwise.workers.trainer.ops.recompute import checkpointed
from meshwise.workers.trainer.stages import Span


class Attention(nn.Module):
    def __init__(self, config: Config, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes, bias = sizes_of(config), bool(config.get("attention_bias", False))
        self.head_dim = head_dim_of(config)
        self.kv_heads, self.biased, self.shard, self.selective = sizes.kv_heads, bias, shard, recompute == "selective"
        self.fused = False
        """Whether one product computes queries, keys and values, and a kernel rotates them."""
        self.q_proj = nn.Linear(sizes.hidden, sizes.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(sizes.hidden, sizes.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(sizes.hidden, sizes.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(sizes.heads * self.head_dim, sizes.hidden, bias=bias)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (heads.transpose(1, 2) for heads in self._heads(x, rotation))
        y = attend(q, k, v, mask, self.shard, self.selective)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch, sequence, heads, head_dim)."""
        if self.fused:
            from meshwise.workers.trainer.ops.fused_projections import fused_linear, split_and_rotate

            weights = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
            return split_and_rotate(fused_linear(x, weights), rotation, self.kv_heads)
        # -1: under tensor parallelism the projections return only this rank's heads
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return rotate(q, rotation), rotate(k, rotation), v

    def fuse(self) -> None:
        """Compute queries, keys and values by one product if the kernel supports it: head size a power of two, no biases."""
        from meshwise.workers.trainer.ops.fused_projections import needs_no_padding, stack

        weights: list[Tensor] = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
        if not self.biased and self.head_dim & (self.head_dim - 1) == 0 and needs_no_padding(weights):
            stack(weights)
            self.fused = True


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        sizes, bias = sizes_of(config), bool(config.get("mlp_bias", False))
        self.gate_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=bias)
        self.up_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=bias)
        self.down_proj = nn.Linear(sizes.ffn, sizes.hidden, bias=bias)
        self.biased = bias
        self.fused = False
        """Whether one product computes the gate and up projections."""

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            from meshwise.workers.trainer.ops.fused_projections import swiglu

            return swiglu(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)[0]
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def fuse(self) -> None:
        """Compute gate and up by one product, unless they have biases or would need padding."""
        from meshwise.workers.trainer.ops.fused_projections import needs_no_padding, stack

        weights: list[Tensor] = [self.gate_proj.weight, self.up_proj.weight]
        if not self.biased and needs_no_padding(weights):
            stack(weights)
            self.fused = True


class Block(nn.Module):
    def __init__(self, config: Config, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        self.full = recompute == "full"
        self.input_layernorm = norm_of(config)
        self.self_attn = Attention(config, shard, recompute)
        self.post_attention_layernorm = norm_of(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        if self.full:
            return checkpointed(self._run, x, rotation, mask)
        return self._run(x, rotation, mask)

    def _run(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """The module that HF calls `model`."""

    def __init__(self, config: Config, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.hidden) if span.starts else None
        self.layers = nn.ModuleDict({str(i): Block(config, shard, recompute) for i in span.layers})
        self.norm = norm_of(config) if span.ends else None


class Llama(Tied):
    def __init__(self, config: Config, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.config, self.shard, self.tied = config, shard, sizes.tied
        self.model = Trunk(config, span, shard, recompute)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if span.ends else None
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        else:
            length *= self.shard.tp  # between blocks, sequence parallelism splits the sequence
        positions, key_positions = self.shard.positions(length, x.device)
        rotation = rotation_of(self.config, positions)
        mask = positions[:, None] >= key_positions if self.shard.cp > 1 else None
        for block in self.model.layers.values():
            x = block(x, rotation, mask)
        return self.end(x, self.model.norm, targets)


def build(config: Config, span: Span, shard: LocalShard, recompute: str) -> nn.Module:
    return Llama(config, span, shard, recompute)


def norm_of(config: Config) -> nn.RMSNorm:
    return nn.RMSNorm(sizes_of(config).hidden, eps=float(config.get("rms_norm_eps", 1e-6)))


def rotation_of(config: Config, positions: Tensor) -> Tensor:
    """Return cosines and sines (2, positions, head_dim) of rotary positions (arXiv:2104.09864).

    Llama 3.1 stretches long wavelengths.

    Sines of the first half are negative, as `rotate` expects.
    """
    rope, dim = rope_of(config), head_dim_of(config)
    frequency = float(rope["rope_theta"]) ** -(torch.arange(0, dim, 2, device=positions.device).float() / dim)
    if rope.get("rope_type", rope.get("type")) == "llama3":
        low, high, factor = float(rope["low_freq_factor"]), float(rope["high_freq_factor"]), float(rope["factor"])
        turns = float(rope["original_max_position_embeddings"]) * frequency / (2 * math.pi)
        # few turns over the original context: stretched by `factor`; many: unchanged; in between a ramp (arXiv:2407.21783; HF's keys)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / factor)
    angle = positions.float()[:, None] * frequency
    return torch.stack((angle.cos().repeat(1, 2), torch.cat((-angle.sin(), angle.sin()), -1)))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate pairs (i, i + head_dim / 2) of (batch, sequence, heads, head_dim) by their angle, in float32."""
    # swapping halves by index compiles to plain reads; concatenating two parts took a tenth longer on an H200
    other = torch.flip(x.reshape(*x.shape[:-1], 2, -1), (-2,)).flatten(-2)
    cos, sin = rotation.unsqueeze(2)
    return (x.float() * cos + other.float() * sin).to(x.dtype)
