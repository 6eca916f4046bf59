"""One folder per model: model.py says what it computes, sharding.py how tensor parallelism cuts it.

A model holds the layers of one span. It takes tokens where the span starts the model and activations elsewhere, and gives logits where
the span ends it, or the loss where it is told the targets. Parameters have HF's names, whatever the span.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

from meshwise.workers.trainer.ops.attention import HERE, Place
from meshwise.workers.trainer.ops.loss import head_loss


@dataclass(frozen=True)
class Span:
    """Layers first to last - 1 of `total`."""

    first: int
    last: int
    total: int

    @property
    def starts(self) -> bool:
        return self.first == 0

    @property
    def ends(self) -> bool:
        return self.last == self.total

    @property
    def layers(self) -> range:
        return range(self.first, self.last)


class Decoder(Protocol):
    """What the trainer asks of a model beside being an nn.Module."""

    def blocks(self) -> list[nn.Module]: ...

    def tie(self) -> None:
        """Let the head use the embedding's weights again, after either was replaced."""
        ...

    def __call__(self, x: Tensor, targets: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class Joining(Protocol):
    """A part of a model that can compute several products as one, once its weights are whole on a GPU."""

    def join(self) -> None: ...


class Headed(nn.Module):
    """A model that ends in a head, where its span does."""

    lm_head: nn.Linear | None

    def end(self, x: Tensor, norm: nn.Module | None, targets: Tensor | None) -> Tensor:
        """Activations of the last block as logits, or as the mean loss of the targets; those of another block as they are."""
        if self.lm_head is None or norm is None:
            return x
        x = norm(x)
        return self.lm_head(x) if targets is None else head_loss(x, self.lm_head.weight, targets)


class Tied(Headed):
    """A trunk `model` with `embed_tokens` and `layers`, and a head that may use the embedding's weights."""

    model: Any
    tied: bool

    def tie(self) -> None:
        if self.tied and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def blocks(self) -> list[nn.Module]:
        return list(self.model.layers.values())


def build(config: Mapping[str, Any], span: Span, place: Place = HERE, recompute: str = "none") -> nn.Module:
    """The model of a config.json whose model_type is in settings.MODEL_TYPES."""
    if config["model_type"] == "llama":
        from meshwise.workers.trainer.models.llama.model import Llama as Model
    elif config["model_type"] == "bloom":
        from meshwise.workers.trainer.models.bloom.model import Bloom as Model
    elif config["model_type"] == "gpt2":
        from meshwise.workers.trainer.models.gpt2.model import Gpt2 as Model
    else:
        from meshwise.workers.trainer.models.ttt.model import TTTDecoder as Model
    return Model(config, span, place, recompute)


def sharding(config: Mapping[str, Any], span: Span) -> dict[str, ParallelStyle]:
    """How tensor and sequence parallelism cut each module of a span; of TTT they cut nothing, and a rule says so."""
    if config["model_type"] == "llama":
        from meshwise.workers.trainer.models.llama.sharding import styles
    elif config["model_type"] == "gpt2":
        from meshwise.workers.trainer.models.gpt2.sharding import styles
    else:
        from meshwise.workers.trainer.models.bloom.sharding import styles
    return styles(span)
