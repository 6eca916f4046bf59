"""Softmax attention on this rank's heads and part of the sequence: plain, or with windows, soft caps, ALiBi and separate documents.

Plain causal attention runs on torch's fused kernels, and that of wide heads with soft caps on ours (wide_attention.py). Everything else
runs as FlexAttention (arXiv:2412.05496) on a GPU, which compiles a kernel for the rule and skips blocks that no query sees, and with a
mask elsewhere.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup, _functional_collectives

from meshwise.workers.trainer.ops.recompute import checkpointed
from meshwise.workers.trainer.ops.shared_memory import holds_large_tiles

HAS_ALL_GATHER_SINGLE = hasattr(_functional_collectives, "all_gather_single_autograd")
"""True from torch 2.13 on, which deprecates the old name."""
gather: Callable[[Tensor, int, ProcessGroup], Tensor] = getattr(
    _functional_collectives, "all_gather_single_autograd" if HAS_ALL_GATHER_SINGLE else "all_gather_tensor_autograd"
)
MIN_HEAD_SIZE = 16  # FlexAttention multiplies tiles at least this wide
LONG_KEYS = 8192  # keys beyond which the mask of blocks is computed by a compiled kernel, which never holds the mask of all keys
MAX_NARROW_HEAD_SIZE = 128
WIDE_TILES: dict[str, int] = {"bwd_num_warps": 8, "bwd_num_stages": 2}
"""Launch of FlexAttention's backward kernel for heads wider than MAX_NARROW_HEAD_SIZE, tiles of 64 x 64: the fastest of nine on an
H200, 1.57 ms at Gemma 2 2B's shapes, where torch's own of four warps takes 2.07 (benchmarks/kernels/flex_tiles.py)."""


@dataclass(frozen=True)
class LocalShard:
    """The heads (tensor parallelism) and the part of the sequence (context parallelism) that this rank computes."""

    tp: int = 1
    tp_rank: int = 0
    cp: int = 1
    cp_rank: int = 0
    cp_group: ProcessGroup | None = None
    tp_group: ProcessGroup | None = None
    ep: int = 1
    ep_group: ProcessGroup | None = None  # ranks over which experts are spread

    def positions(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the positions of this rank's `length` queries, and of the keys of all ranks in the order of ranks. Of 2 x cp equal parts
        of a sequence, rank r has parts r and 2 x cp - 1 - r: all ranks have as many keys before their queries."""
        if self.cp == 1:
            whole = torch.arange(length, device=device)
            return whole, whole
        parts = torch.arange(self.cp * length, device=device).view(2 * self.cp, -1)
        ranks = [torch.cat((parts[rank], parts[2 * self.cp - 1 - rank])) for rank in range(self.cp)]
        return ranks[self.cp_rank], torch.cat(ranks)


UNSHARDED = LocalShard()


@dataclass(frozen=True)
class Rule:
    """How the scores of a layer are computed."""

    factor: float
    window: int = 0  # tokens that a query sees, itself included; 0: all before it
    cap: float = 0.0  # scores become cap x tanh(score / cap); 0: they stay as they are
    alibi: int = 0  # heads of the whole model, if scores fall with the distance; 0: they do not


class Scores(NamedTuple):
    """The tensors that a rule needs for one pass; all None: plain causal attention."""

    mask: Tensor | None = None
    """Keys that a query sees (boolean), or what is added to the scores (ALiBi, minus infinity for unseen keys)."""
    blocks: Any = None  # FlexAttention's BlockMask
    slopes: Tensor | None = None  # ALiBi slopes of this rank's heads, for FlexAttention
    positions: tuple[Tensor, Tensor] | None = None
    """Positions of queries and of keys, for FlexAttention with ALiBi on a part of the sequence."""
    plain: bool = False
    """Whether every key before a query is seen and scores have no bias, on a GPU that holds the tiles of our kernels for wide heads."""


def make_scores(
    rule: Rule, shard: LocalShard, length: int, device: torch.device, head_dim: int, documents: Tensor | None = None
) -> Scores:
    """Return the tensors of a rule for `length` queries of this rank. `documents` has the document of each token (batch, length), if
    tokens see only their own; a rank must then have whole sequences."""
    windowed = 0 < rule.window < shard.cp * length
    if shard.cp == 1 and documents is None and not (windowed or rule.cap or rule.alibi):
        return Scores()
    positions, key_positions = shard.positions(length, device)
    if device.type == "cuda" and head_dim >= MIN_HEAD_SIZE:
        plain = shard.cp == 1 and documents is None and not (windowed or rule.alibi) and holds_large_tiles(device)
        return _block_scores(rule, shard, positions, key_positions, documents)._replace(plain=plain)
    distance = positions[:, None] - key_positions
    seen = (distance >= 0) & (distance < rule.window) if windowed else distance >= 0
    if documents is not None:
        seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])
    if not rule.alibi:
        return Scores(mask=seen)
    bias = -local_slopes(rule, shard, device)[:, None, None] * distance.float()
    return Scores(mask=bias.masked_fill(~seen, -torch.inf))


def _block_scores(rule: Rule, shard: LocalShard, positions: Tensor, keys: Tensor, documents: Tensor | None) -> Scores:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = positions[query] - keys[key]
        seen = (distance >= 0) & (distance < rule.window) if rule.window else distance >= 0
        return seen if documents is None else seen & (documents[batch, query] == documents[batch, key])

    device, batch = str(positions.device), None if documents is None else len(documents)
    blocks = create_block_mask(sees, batch, None, len(positions), len(keys), device=device, _compile=len(keys) > LONG_KEYS)
    slopes = local_slopes(rule, shard, positions.device) if rule.alibi else None
    return Scores(blocks=blocks, slopes=slopes, positions=(positions, keys) if rule.alibi and shard.cp > 1 else None)


def slopes_of(heads: int, device: torch.device) -> Tensor:
    """Return the ALiBi slopes of the heads: a geometric series, and beyond a power of two every other slope of the next
    (arXiv:2108.12409). They are computed on the device: a CUDA graph cannot capture a copy from the host."""
    power = 2 ** math.floor(math.log2(heads))
    i = torch.arange(heads, device=device, dtype=torch.float64)
    return torch.where(i < power, -8 * (i + 1), -4 * (2 * (i - power) + 1)).div(power).exp2().float()


def local_slopes(rule: Rule, shard: LocalShard, device: torch.device) -> Tensor:
    """Return the slopes of this rank's heads. HF adds slope x position of the key; we subtract slope x distance. The difference is the
    same for all keys of a query, so softmax ignores it, and distances stay exact in 16 bits where they matter."""
    each = rule.alibi // shard.tp
    return slopes_of(rule.alibi, device)[shard.tp_rank * each : (shard.tp_rank + 1) * each]


def attend(q: Tensor, k: Tensor, v: Tensor, scores: Scores, rule: Rule, shard: LocalShard, selective: bool) -> Tensor:
    """Compute attention; if `selective`, recompute it in the backward pass instead of keeping it (arXiv:2205.05198)."""
    if selective:
        return checkpointed(_attend, q, k, v, scores, rule, shard)
    return _attend(q, k, v, scores, rule, shard)


def _attend(q: Tensor, k: Tensor, v: Tensor, scores: Scores, rule: Rule, shard: LocalShard) -> Tensor:
    """Return causal attention on (batch, heads, sequence, head_dim); keys and values of other context-parallel ranks are gathered."""
    if shard.cp_group is not None:
        k, v = gather(torch.cat((k, v), -1), 2, shard.cp_group).split([k.shape[-1], v.shape[-1]], -1)
    if scores.plain and q.shape[-1] > MAX_NARROW_HEAD_SIZE:
        from meshwise.workers.trainer.ops.wide_attention import fits, wide_attention

        if fits(q, k, v, rule.cap):
            return wide_attention(q, k, v, rule.factor, rule.cap)
    if scores.blocks is not None:
        return _flexible(q, k, v, scores, rule)
    shared, mask = q.shape[1] != k.shape[1], scores.mask
    if rule.cap:
        return _capped(q, k, v, mask, rule)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=rule.factor, enable_gqa=shared)


def _capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: Rule) -> Tensor:
    """Return attention with capped scores, step by step: torch's fused kernels have no cap."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = soft_cap((q @ k.transpose(-1, -2)).float() * rule.factor, rule.cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1).to(v.dtype) @ v


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


_compiled: dict[str, Any] = {}


def _flexible(q: Tensor, k: Tensor, v: Tensor, scores: Scores, rule: Rule) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    slopes, positions = scores.slopes, scores.positions

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if rule.cap:  # tanh by the sigmoid, which a GPU computes from one fast exponential
            score = rule.cap * (2 * torch.sigmoid(score * (2 / rule.cap)) - 1)
        if slopes is not None:
            score = score - slopes[head] * (query - key if positions is None else positions[0][query] - positions[1][key])
        return score

    run = flex_attention
    if not torch.compiler.is_compiling():  # uncompiled, it would hold all scores
        run = _compiled.setdefault("flex", torch.compile(flex_attention, dynamic=False))
    modified = change if rule.cap or slopes is not None else None
    options: dict[str, Any] = {"score_mod": modified, "block_mask": scores.blocks, "scale": rule.factor}
    options |= {"kernel_options": WIDE_TILES} if q.shape[-1] > MAX_NARROW_HEAD_SIZE else {}
    return cast(Tensor, run(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options))
