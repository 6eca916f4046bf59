"""ServeQuestion: everything except the layout that the memory and speed of a served model depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshwise.catalogue.chips import Cluster
from meshwise.catalogue.engines import Engine, Runtime
from meshwise.cost.serve.layouts import Card, cards_of
from meshwise.cost.serve.load.requests import Load, Targets
from meshwise.cost.serve.memory.cache import CacheRequest, pass_sizes
from meshwise.cost.work import Serve
from meshwise.models.formats import Weights
from meshwise.models.model import Model

NO_TARGETS = Targets()


@dataclass(frozen=True, kw_only=True)
class ServeQuestion:
    """A model with its weights on a cluster, served by an engine; all names looked up."""

    model: Model
    weights: Weights
    cluster: Cluster
    engine: Engine
    runtime: Runtime
    work: Serve
    load: Load  # requests to the whole deployment
    targets: Targets = NO_TARGETS
    bounds: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    """Parts of the layout that the user fixed: split, cards, tp, pp, ep, replicas, hosts."""

    @property
    def experts(self) -> bool:
        """Whether the model has routed experts."""
        return self.expert_count > 0

    @cached_property
    def expert_count(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return max((weight.slot.copies for weight in self.weights.tensors if weight.slot.expert), default=0)

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        return cards_of(self.cluster)

    @cached_property
    def rooms(self) -> tuple[float, ...]:
        """Bytes of each card that weights, cache and buffers may use."""
        return tuple(self.runtime.room(card.chip) for card in self.cards)

    def cache_request(self, users: int, context: int = 0, kv: str = "") -> CacheRequest:
        """Return the cache for `users` sequences, with this context and type or those of the question."""
        kind = kv or self.work.kv
        sizes = pass_sizes(self.runtime, [card.chip for card in self.cards])
        return CacheRequest(context=context or self.work.context, sequences=users, key=kind, value=kind, **sizes)
