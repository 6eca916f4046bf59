"""Softmax attention on this rank's heads and part of the sequence."""

# pyright: reportUnknownVariableType=false
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup, _functional_collectives

from meshwise.workers.trainer.ops.recompute import again

RENAMED = hasattr(_functional_collectives, "all_gather_single_autograd")
"""In torch 2.13, which warns of the old name."""
gather: Callable[[Tensor, int, ProcessGroup], Tensor] = getattr(
    _functional_collectives, "all_gather_single_autograd" if RENAMED else "all_gather_tensor_autograd"
)


@dataclass(frozen=True)
class Place:
    """Where this rank stands: which heads are its own, and which part of the sequence."""

    tp: int = 1
    tp_rank: int = 0
    cp: int = 1
    cp_rank: int = 0
    cp_group: ProcessGroup | None = None

    def positions(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Of the queries, `length` of them here, and of the keys of all ranks."""
        first = self.cp_rank * length
        return torch.arange(first, first + length, device=device), torch.arange(self.cp * length, device=device)


HERE = Place()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, place: Place, selective: bool) -> Tensor:
    """Attention, computed once more in the backward pass instead of kept where `selective` (arXiv:2205.05198)."""
    if selective:
        return again(_attend, q, k, v, mask, place)
    return _attend(q, k, v, mask, place)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, place: Place) -> Tensor:
    """Causal attention of (batch, heads, sequence, head_dim); keys and values of the other parts of the sequence are gathered.

    `mask` is boolean, or added to the scores; none means causal. Only a whole sequence can do without.
    """
    if place.cp_group is not None:
        k, v = gather(torch.stack((k, v)), 3, place.cp_group).unbind(0)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared)
