"""Llama: RMSNorm, grouped-query attention with rotary positions, SwiGLU. Names are HF's, so weights load as they are."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwise.workers.trainer.models import Span, Tied
from meshwise.workers.trainer.ops.attention import HERE, Place, attend
from meshwise.workers.trainer.ops.recompute import again
from meshwise.workers.trainer.settings import Sizes, rope_of


class Attention(nn.Module):
    def __init__(self, config: Mapping[str, Any], place: Place, recompute: str) -> None:
        super().__init__()
        sizes, bias = Sizes.of(config), bool(config.get("attention_bias", False))
        self.head_dim = head_dim_of(config)
        self.kv_heads, self.biased, self.place, self.selective = sizes.kv_heads, bias, place, recompute == "selective"
        self.joined = False
        """Whether one product gives queries, keys and values, and a kernel turns them."""
        self.q_proj = nn.Linear(sizes.hidden, sizes.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(sizes.hidden, sizes.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(sizes.hidden, sizes.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(sizes.heads * self.head_dim, sizes.hidden, bias=bias)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (heads.transpose(1, 2) for heads in self._heads(x, rotation))
        y = attend(q, k, v, mask, self.place, self.selective)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, sequence, heads, head_dim)."""
        if self.joined:
            from meshwise.workers.trainer.ops.joined import joined, turned

            weights = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
            return turned(joined(x, weights), rotation, self.kv_heads)
        # -1: under tensor parallelism only this rank's heads come out of the projections
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return rotate(q, rotation), rotate(k, rotation), v

    def join(self) -> None:
        """Let one product give queries, keys and values, where its kernel serves them: heads of a power of two, no biases."""
        from meshwise.workers.trainer.ops.joined import fills, lay

        weights: list[Tensor] = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
        if not self.biased and self.head_dim & (self.head_dim - 1) == 0 and fills(weights):
            lay(weights)
            self.joined = True


class FeedForward(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        sizes, bias = Sizes.of(config), bool(config.get("mlp_bias", False))
        self.gate_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=bias)
        self.up_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=bias)
        self.down_proj = nn.Linear(sizes.ffn, sizes.hidden, bias=bias)
        self.biased = bias
        self.joined = False
        """Whether one product feeds the gate and what it gates."""

    def forward(self, x: Tensor) -> Tensor:
        if self.joined:
            from meshwise.workers.trainer.ops.joined import swiglu

            return swiglu(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)[0]
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def join(self) -> None:
        """Let one product feed both, unless they have biases or leave rows of it empty."""
        from meshwise.workers.trainer.ops.joined import fills, lay

        weights: list[Tensor] = [self.gate_proj.weight, self.up_proj.weight]
        if not self.biased and fills(weights):
            lay(weights)
            self.joined = True


class Block(nn.Module):
    def __init__(self, config: Mapping[str, Any], place: Place, recompute: str) -> None:
        super().__init__()
        self.full = recompute == "full"
        self.input_layernorm = norm_of(config)
        self.self_attn = Attention(config, place, recompute)
        self.post_attention_layernorm = norm_of(config)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        if self.full:
            return again(self._run, x, rotation, mask)
        return self._run(x, rotation, mask)

    def _run(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """What HF calls `model`."""

    def __init__(self, config: Mapping[str, Any], span: Span, place: Place, recompute: str) -> None:
        super().__init__()
        sizes = Sizes.of(config)
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.hidden) if span.starts else None
        self.layers = nn.ModuleDict({str(i): Block(config, place, recompute) for i in span.layers})
        self.norm = norm_of(config) if span.ends else None


class Llama(Tied):
    def __init__(self, config: Mapping[str, Any], span: Span, place: Place = HERE, recompute: str = "none") -> None:
        super().__init__()
        sizes = Sizes.of(config)
        self.config, self.place, self.tied = config, place, sizes.tied
        self.model = Trunk(config, span, place, recompute)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if span.ends else None
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        else:
            length *= self.place.tp  # between blocks, sequence parallelism shares out the sequence
        here, everywhere = self.place.positions(length, x.device)
        rotation = rotation_of(self.config, here)
        mask = here[:, None] >= everywhere if self.place.cp > 1 else None
        for block in self.model.layers.values():
            x = block(x, rotation, mask)
        return self.end(x, self.model.norm, targets)


def norm_of(config: Mapping[str, Any]) -> nn.RMSNorm:
    return nn.RMSNorm(Sizes.of(config).hidden, eps=float(config.get("rms_norm_eps", 1e-6)))


def head_dim_of(config: Mapping[str, Any]) -> int:
    sizes = Sizes.of(config)
    return int(config.get("head_dim") or sizes.hidden // sizes.heads)


def rotation_of(config: Mapping[str, Any], positions: Tensor) -> Tensor:
    """Cosines and sines (2, positions, head_dim) of rotary positions (arXiv:2104.09864), with Llama 3.1's stretch of long wavelengths.

    Sines of the first half are negative, as `rotate` needs them.
    """
    rope, dim = rope_of(config), head_dim_of(config)
    frequency = float(rope["rope_theta"]) ** -(torch.arange(0, dim, 2, device=positions.device).float() / dim)
    if rope.get("rope_type", rope.get("type")) == "llama3":
        low, high, factor = float(rope["low_freq_factor"]), float(rope["high_freq_factor"]), float(rope["factor"])
        turns = float(rope["original_max_position_embeddings"]) * frequency / (2 * math.pi)
        # few turns over the old context: stretched by `factor`; many: as before; between them a ramp (arXiv:2407.21783; HF's keys)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / factor)
    angle = positions.float()[:, None] * frequency
    return torch.stack((angle.cos().repeat(1, 2), torch.cat((-angle.sin(), angle.sin()), -1)))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of (batch, sequence, heads, head_dim) by their angle, in float32."""
    # halves that change places by their index compile to plain reads; joined from two parts, they took a tenth longer on an H200
    other = torch.flip(x.reshape(*x.shape[:-1], 2, -1), (-2,)).flatten(-2)
    cos, sin = rotation.unsqueeze(2)
    return (x.float() * cos + other.float() * sin).to(x.dtype)
