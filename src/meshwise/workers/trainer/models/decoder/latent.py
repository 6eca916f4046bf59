"""Multi-head latent attention (arXiv:2405.04434): queries, keys and values out of low-rank latents, with a rotated key that heads share."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from meshwise.workers.trainer.contract.models.description import Description, Latent, Layer
from meshwise.workers.trainer.models.decoder.attention import rule_of
from meshwise.workers.trainer.models.decoder.rotary import rotate
from meshwise.workers.trainer.ops.attention import LocalShard, Scores, attend

LATENT_NORM_EPS = 1e-6  # epsilon of the latents' norms, regardless of the config's value for other norms


class LatentAttention(nn.Module):
    def __init__(self, d: Description, layer: Layer, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        latent = cast(Latent, d.latent)
        self.latent, self.rule, self.shard, self.selective = latent, rule_of(d, layer), shard, recompute == "selective"
        head = latent.still + latent.rotated
        if latent.query_rank:
            self.q_a_proj = nn.Linear(d.hidden, latent.query_rank, bias=d.qkv_bias)
            self.q_a_norm = nn.RMSNorm(latent.query_rank, eps=LATENT_NORM_EPS)
            self.q_b_proj = nn.Linear(latent.query_rank, d.heads * head, bias=False)
        else:
            self.q_proj = nn.Linear(d.hidden, d.heads * head, bias=False)
        self.kv_a_proj = nn.Linear(d.hidden, latent.rank + latent.rotated, bias=d.qkv_bias)
        self.kv_a_norm = nn.RMSNorm(latent.rank, eps=LATENT_NORM_EPS)
        self.kv_b_proj = nn.Linear(latent.rank, d.heads * (latent.still + latent.value), bias=False)
        self.o_proj = nn.Linear(d.heads * latent.value, d.hidden, bias=d.out_bias)

    def forward(self, x: Tensor, rotation: Tensor, scores: Scores) -> Tensor:
        q, k, v = (heads.transpose(1, 2) for heads in self._heads(x, rotation))
        y = attend(q, k, v, scores, self.rule, self.shard, self.selective)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch, sequence, heads, features)."""
        m = self.latent
        queries = self.q_b_proj(self.q_a_norm(self.q_a_proj(x))) if m.query_rank else self.q_proj(x)
        still, turned = queries.unflatten(-1, (-1, m.still + m.rotated)).split([m.still, m.rotated], -1)
        q = torch.cat((still, rotate(turned, rotation)), -1)
        both, shared = self.kv_a_proj(x).split([m.rank, m.rotated], -1)
        keys, v = self.kv_b_proj(self.kv_a_norm(both)).unflatten(-1, (-1, m.still + m.value)).split([m.still, m.value], -1)
        key = rotate(_local(shared).unsqueeze(2), rotation).expand(-1, -1, keys.shape[2], -1)
        return q, torch.cat((keys, key), -1), v


def _local(x: Any) -> Tensor:
    """Return a tensor that all tensor-parallel ranks hold; each uses it for its own heads, so its gradient is the sum over ranks."""
    return x.to_local(grad_placements=[Partial()]) if isinstance(x, DTensor) else x
