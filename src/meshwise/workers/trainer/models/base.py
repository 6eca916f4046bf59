"""The parts that all models share: head and tied embedding, the protocols that the trainer calls, and building by config.

A model holds the layers of one span. It takes tokens if the span starts the model and activations otherwise, and returns logits if the
span ends the model, or the loss if it is given the targets. Parameters have the same names in every family, whatever the span.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

from meshwise.workers.trainer.contract.models.description import Description
from meshwise.workers.trainer.contract.models.registry import Config, import_part
from meshwise.workers.trainer.contract.stages import Span
from meshwise.workers.trainer.ops.attention import UNSHARDED, LocalShard, soft_cap
from meshwise.workers.trainer.ops.loss import head_loss


class Decoder(Protocol):
    """The methods that the trainer calls on a model, besides those of nn.Module."""

    def blocks(self) -> list[nn.Module]: ...

    def tie(self) -> None:
        """Point the head at the embedding's weights again, after either was replaced."""
        ...

    def __call__(self, x: Tensor, targets: Tensor | None = None) -> Tensor: ...


class Predictor(Protocol):
    """Returns logits (batch, vocabulary) after a prompt (batch, tokens), and after one more token (batch)."""

    def prompt(self, tokens: Tensor) -> Tensor: ...

    def step(self, tokens: Tensor) -> Tensor: ...


@runtime_checkable
class Fusable(Protocol):
    """A module that can compute several projections as one product, once its weights are whole on a GPU."""

    def fuse(self) -> None: ...


class Headed(nn.Module):
    """A model that ends in a head if its span ends the model."""

    config: Config
    lm_head: nn.Linear | None
    logit_cap: float = 0.0  # logits become cap x tanh(logit / cap); 0: they stay as they are
    logit_factor: float = 1.0

    def end(self, x: Tensor, norm: nn.Module | None, targets: Tensor | None) -> Tensor:
        """Turn the last block's activations into logits, or into the mean loss of the targets; return activations for another stage in
        the type that products have, which halves what is sent in 16 bits."""
        if self.lm_head is None or norm is None:
            kind = x.device.type
            return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
        x = norm(x)
        if self.logit_factor != 1:
            x = x * self.logit_factor
        if targets is not None:
            return head_loss(x, self.lm_head.weight, targets, self.logit_cap)
        logits = self.lm_head(x)
        return soft_cap(logits, self.logit_cap) if self.logit_cap else logits


class Tied(Headed):
    """A trunk `model` with `embed_tokens` and `layers`, and a head that may share the embedding's weights."""

    model: Any
    tied: bool

    def tie(self) -> None:
        if self.tied and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def blocks(self) -> list[nn.Module]:
        return list(self.model.layers.values())


def initial_spreads(d: Description) -> dict[str, float]:
    """Return factors of the initial deviation of weights by name ending. Products that end in a residual sum shrink with the number of sums
    (GPT-2; arXiv:1909.08053, section 3) unless a norm or a factor of the model comes between; queries shrink where scores have a larger
    factor than 1 / sqrt(head_dim), which would saturate the softmax, unless they are normed. Learned positions start half as large as
    tokens (0.01 and 0.02 in OpenAI's code of GPT-2, recalled): as large ones may cancel a token, and a norm then divides by nothing."""
    spreads: dict[str, float] = {"embed_positions.weight": 0.5}
    if not d.after and d.residual_factor == 1:
        smaller = float((2 * len(d.layers)) ** -0.5)
        spreads |= dict.fromkeys(("o_proj.weight", "down_proj.weight", "down_proj"), smaller)
    if not d.qk_norm:
        spreads["q_proj.weight"] = min(1.0, d.head_dim**-0.5 / abs(d.score_factor))
    return spreads


def build(config: Config, span: Span, shard: LocalShard = UNSHARDED, recompute: str = "none") -> nn.Module:
    """Build the layers of a span for a config.json whose model_type is in the registry."""
    return import_part(config, "model").build(config, span, shard, recompute)


def tensor_parallel_styles(config: Config, span: Span) -> dict[str, ParallelStyle]:
    """Return how tensor and sequence parallelism cut each module of a span."""
    return import_part(config, "sharding").styles(config, span)


def recurrent_predictor(model: Any, batch: int) -> Predictor:
    """Return a predictor that keeps the state of a recurrent model between tokens."""
    return import_part(model.config, "predictor").predictor(model, batch)
