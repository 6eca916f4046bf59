"""Softmax attention on this rank's heads and part of the sequence."""

# pyright: reportUnknownVariableType=false
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup, _functional_collectives

from meshwise.workers.trainer.ops.recompute import checkpointed

RENAMED = hasattr(_functional_collectives, "all_gather_single_autograd")
"""True from torch 2.13 on, which deprecates the old name."""
gather: Callable[[Tensor, int, ProcessGroup], Tensor] = getattr(
    _functional_collectives, "all_gather_single_autograd" if RENAMED else "all_gather_tensor_autograd"
)


@dataclass(frozen=True)
class LocalShard:
    """The heads (tensor parallelism) and the part of the sequence (context parallelism) that this rank computes."""

    tp: int = 1
    tp_rank: int = 0
    cp: int = 1
    cp_rank: int = 0
    cp_group: ProcessGroup | None = None

    def positions(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the positions of this rank's `length` queries, and of the keys of all ranks."""
        first = self.cp_rank * length
        return torch.arange(first, first + length, device=device), torch.arange(self.cp * length, device=device)


UNSHARDED = LocalShard()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shard: LocalShard, selective: bool) -> Tensor:
    """Compute attention; if `selective`, recompute it in the backward pass instead of keeping it (arXiv:2205.05198)."""
    if selective:
        return checkpointed(_attend, q, k, v, mask, shard)
    return _attend(q, k, v, mask, shard)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, shard: LocalShard) -> Tensor:
    """Return causal attention on (batch, heads, sequence, head_dim); keys and values of other context-parallel ranks are gathered.

    `mask` is boolean, or added to the scores. None means causal, which only works on a whole sequence.
    """
    if shard.cp_group is not None:
        k, v = gather(torch.stack((k, v)), 3, shard.cp_group).unbind(0)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared)
