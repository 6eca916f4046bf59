"""A feed-forward of experts: router, balance, and the experts themselves, which expert parallelism spreads over ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer.contract.models.description import Description, Experts
from meshwise.workers.trainer.models.decoder.feed_forward import FeedForward
from meshwise.workers.trainer.models.decoder.norms import local_weight
from meshwise.workers.trainer.ops.attention import LocalShard
from meshwise.workers.trainer.ops.exchange import Exchange
from meshwise.workers.trainer.ops.experts import (
    arrange,
    best_of,
    combine,
    expert_outputs,
    load_of,
    router_logits,
    share_rows,
    spread,
)
from meshwise.workers.trainer.ops.shared_memory import holds_large_tiles

TOKEN_PARTS = 2  # parts of the tokens that travel one after the other: the experts compute one while the next is on its way


class Routed(NamedTuple):
    """The experts of each token."""

    experts: Tensor  # (tokens, chosen)
    weights: Tensor  # their weights, float32
    scores: Tensor  # the scores of all experts (tokens, experts), of which each token's add up to one


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
            logits = router_logits(x, local_weight(self.weight))
            scores = logits.sigmoid() if e.sigmoid else logits.softmax(-1)
            experts = best_of(self._allowed(scores.detach()), e.chosen)
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
        self.squares: Tensor | None = None
        """A leaf whose gradient is made of sums of squares of both weights' gradients, if they are asked for."""

    def ask_squares(self) -> None:
        """Leave the squares of the gradients in `squares.grad` after a backward pass with whole weights on a GPU that holds their tiles."""
        whole = not isinstance(self.gate_up_proj, DTensor) and holds_large_tiles(self.gate_up_proj.device)
        if whole and self.gate_up_proj.requires_grad and self.down_proj.requires_grad:
            from meshwise.workers.trainer.ops.expert_kernels import squares_of_gradients

            self.squares = squares_of_gradients(self.gate_up_proj, self.down_proj)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor, meanwhile: Callable[[], Tensor] | None = None) -> Tensor:
        """Return the weighted sum of each token's experts, plus what `meanwhile` returns; x is (tokens, hidden)."""
        half = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        if self.exchange is not None:
            return self._exchanged(self.exchange, x.to(half), experts, weights, meanwhile).to(x.dtype)
        found = arrange(experts.flatten(), self.count)
        rows, shares = spread(x.to(half), found, self.chosen), share_rows(weights, found)
        y = combine(self._compute(rows, shares, found.ends), found, self.chosen).to(x.dtype)
        return y if meanwhile is None else y + meanwhile()

    def _exchanged(
        self, exchange: Exchange, x: Tensor, experts: Tensor, weights: Tensor, meanwhile: Callable[[], Tensor] | None
    ) -> Tensor:
        """Compute on the ranks of the experts, one half of the tokens while the other travels."""
        halves = [part.tensor_split(TOKEN_PARTS) for part in (x, experts, weights)]
        flat = [part.flatten() for part in halves[1]]
        found = [exchange.arrange(part) for part in flat]
        rows = [spread(part, places, self.chosen) for part, places in zip(halves[0], found, strict=True)]
        outputs, beside = exchange.compute(rows, flat, self._compute, meanwhile)
        summed = [
            combine((out * share_rows(shares, places)[:, None]).to(x.dtype), places, self.chosen)
            for out, shares, places in zip(outputs, halves[2], found, strict=True)
        ]
        return torch.cat(summed) if beside is None else torch.cat(summed) + beside

    def _compute(self, rows: Tensor, shares: Tensor, ends: Tensor) -> Tensor:
        gate_up, down = (self._local(weight, rows.dtype) for weight in (self.gate_up_proj, self.down_proj))
        return expert_outputs(rows, gate_up, down, shares, ends, self.activation, self.squares)

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
            loads = load_of(routed.experts.view(x.shape[0], -1), self.e.count)
            self.load.add_(loads.sum(0))
            if self.aux:
                weights = cast(Tensor, _AddedLoss.apply(weights, self._imbalance(routed, loads.float()), self.share))
        tokens, shared = x.flatten(0, 1), self.shared_experts
        meanwhile = None if shared is None else partial(_flat_output, shared, x)
        return self.experts(tokens, routed.experts, weights, meanwhile).unflatten(0, x.shape[:2])

    def _imbalance(self, routed: Routed, loads: Tensor) -> Tensor:
        """Return the mean over sequences of coefficient x experts x sum of (share of choices x mean score): the coefficient if balanced.
        `loads` are the choices of each expert in each sequence. A loss of each sequence does not depend on how sequences are spread over
        ranks and micro-batches. Ranks that hold parts of a sequence add up its choices; the scores are summed by the gradients."""
        e, shard = self.e, self.shard
        for group in (shard.tp_group, shard.cp_group):
            if group is not None:
                dist.all_reduce(loads, group=group)
        scores = routed.scores.view(len(loads), -1, e.count)
        length = scores.shape[1] * shard.tp  # tokens of a sequence whose scores this context-parallel rank sums
        scores = scores.sum(1) / length
        shares = loads / loads.sum(-1, keepdim=True)
        return self.aux * e.count * (shares * scores).sum(-1).mean()


def _flat_output(module: nn.Module, x: Tensor) -> Tensor:
    return module(x).flatten(0, 1)


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
