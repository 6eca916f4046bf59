"""A feed-forward of experts: router, balance, and the experts themselves, which expert parallelism spreads over ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer.models.decoder.feed_forward import FeedForward
from meshwise.workers.trainer.models.decoder.norms import local_weight
from meshwise.workers.trainer.models.description import Description, Experts
from meshwise.workers.trainer.ops.attention import LocalShard
from meshwise.workers.trainer.ops.exchange import Exchange
from meshwise.workers.trainer.ops.experts import arrange, combine, expert_outputs, load_of, share_rows, spread


class Routed(NamedTuple):
    """The experts of each token."""

    experts: Tensor
    """(tokens, chosen)"""
    weights: Tensor
    """Their weights, float32."""
    scores: Tensor
    """The scores of all experts (tokens, experts), of which each token's add up to one."""


class Router(nn.Module):
    """Scores every expert for a token in float32, and chooses the best."""

    def __init__(self, d: Description, e: Experts) -> None:
        super().__init__()
        self.e = e
        self.weight = nn.Parameter(torch.empty(e.count, d.hidden))
        self.balance = nn.Buffer(torch.zeros(e.count)) if e.biased else None
        """Added to the scores for the choice alone; moved against the load after each step."""

    def forward(self, x: Tensor) -> Routed:
        e = self.e
        with torch.autocast(x.device.type, enabled=False):
            logits = x.float() @ local_weight(self.weight).float().T
            scores = logits.sigmoid() if e.sigmoid else logits.softmax(-1)
            experts = self._allowed(scores.detach()).topk(e.chosen, sorted=False).indices
            weights = scores.gather(1, experts)
            if e.normed:
                weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if e.sigmoid else 0.0))
            whole = scores / scores.sum(-1, keepdim=True) if e.sigmoid else scores
        return Routed(experts, weights * e.factor, whole)

    def _allowed(self, scores: Tensor) -> Tensor:
        """Return the scores by which experts are chosen: with the bias, and minus infinity outside the best groups."""
        e = self.e
        if self.balance is not None:
            scores = scores + self.balance
        if e.groups == 1:
            return scores
        grouped = scores.unflatten(-1, (e.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(e.kept_groups, -1, sorted=False).indices
        kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=scores.device).scatter(1, best, True)
        return grouped.masked_fill(~kept[..., None], -torch.inf).flatten(1)


class ExpertStack(nn.Module):
    """The matrices of all experts, or of this rank's."""

    def __init__(self, d: Description, e: Experts, shard: LocalShard) -> None:
        super().__init__()
        self.count, self.chosen, self.activation = e.count, e.chosen, d.activation
        self.exchange = Exchange(e.count, shard.ep, shard.ep_group) if shard.ep_group is not None else None
        self.gate_up_proj = nn.Parameter(torch.empty(e.count, 2 * e.width, d.hidden))
        self.down_proj = nn.Parameter(torch.empty(e.count, d.hidden, e.width))

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts; x is (tokens, hidden)."""
        half = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        flat = experts.flatten()
        found = arrange(flat, self.count) if self.exchange is None else self.exchange.arrange(flat)
        rows, shares = spread(x.to(half), found, self.chosen), share_rows(weights, found)
        if self.exchange is None:
            out = self._compute(rows, shares, found.ends)
        else:
            out = (self.exchange.compute(rows, flat, self._compute) * shares[:, None]).to(half)
        return combine(out, found, self.chosen).to(x.dtype)

    def _compute(self, rows: Tensor, shares: Tensor, ends: Tensor) -> Tensor:
        gate_up, down = (self._local(weight, rows.dtype) for weight in (self.gate_up_proj, self.down_proj))
        return expert_outputs(rows, gate_up, down, shares, ends, self.activation)

    @staticmethod
    def _local(weight: Any, half: torch.dtype) -> Tensor:
        return (weight.to_local() if isinstance(weight, DTensor) else weight).to(half)


class MixedFeedForward(nn.Module):
    """Router, experts and shared experts; counts the loads of a step, and adds the gradient of the balancing loss."""

    def __init__(self, d: Description, shard: LocalShard) -> None:
        super().__init__()
        e = cast(Experts, d.experts)
        self.e, self.shard = e, shard
        self.aux = e.aux / sum(layer.mixed for layer in d.layers)
        """Coefficient of this layer's balancing loss: the model's is the mean over its layers."""
        self.share = 1.0
        """Share of a micro-batch in the loss of a step."""
        self.router = Router(d, e)
        self.experts = ExpertStack(d, e, shard)
        self.shared_experts = FeedForward(d, e.shared) if e.shared else None
        self.load = nn.Buffer(torch.zeros(e.count), persistent=False)
        """Choices of each expert since the last step, on this rank."""

    def forward(self, x: Tensor) -> Tensor:
        routed = self.router(x.flatten(0, 1))
        weights = routed.weights
        if torch.is_grad_enabled():  # not for a validation loss
            self.load.add_(load_of(routed.experts.flatten(), self.e.count))
        if self.aux and torch.is_grad_enabled():
            weights = cast(Tensor, _AddedLoss.apply(weights, self._imbalance(routed, x.shape[0]), self.share))
        y = self.experts(x.flatten(0, 1), routed.experts, weights).unflatten(0, x.shape[:2])
        # computed while rows are on their way to other ranks and back
        return y if self.shared_experts is None else y + self.shared_experts(x)

    def _imbalance(self, routed: Routed, sequences: int) -> Tensor:
        """Return the mean over sequences of coefficient x experts x sum of (share of choices x mean score): the coefficient if balanced.

        A loss of each sequence does not depend on how sequences are spread over ranks and micro-batches. Ranks that hold parts of a
        sequence add up its choices; the scores are summed by the gradients.
        """
        e, shard = self.e, self.shard
        choices = routed.experts.view(sequences, -1)
        loads = (choices[..., None] == torch.arange(e.count, device=choices.device)).sum(1).float()
        for group in (shard.tp_group, shard.cp_group):
            if group is not None:
                dist.all_reduce(loads, group=group)
        length = choices.shape[1] / e.chosen * shard.tp  # tokens of a sequence whose scores this context-parallel rank sums
        scores = routed.scores.view(sequences, -1, e.count).sum(1) / length
        shares = loads / loads.sum(-1, keepdim=True)
        return self.aux * e.count * (shares * scores).sum(-1).mean()


class _AddedLoss(torch.autograd.Function):
    """Returns its input unchanged, and adds the gradient of `share` x another loss in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, share: float) -> Tensor:
        ctx.share = share
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return outer[0], torch.full_like(loss, ctx.share), None
