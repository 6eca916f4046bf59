"""ServeQuestion: everything that the memory and speed of a served model depend on beside its split over devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshwise.catalogue.chips import Cluster
from meshwise.catalogue.engines import Engine, Runtime
from meshwise.cost.serve.cache import Held
from meshwise.cost.serve.layouts import Card, cards_of
from meshwise.cost.work import Serve
from meshwise.models.formats import Weights
from meshwise.models.model import Model


@dataclass(frozen=True, kw_only=True)
class ServeQuestion:
    """Everything looked up."""

    model: Model
    weights: Weights
    cluster: Cluster
    engine: Engine
    runtime: Runtime
    work: Serve
    ttft: float = 0.0
    """Seconds that the first token may take; 0 is no target."""
    per_user: float = 0.0
    """Tokens per second that each user must get; 0 is no target."""
    bounds: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    """What a user fixed of a way: split, cards, tp, pp, replicas."""

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        return cards_of(self.cluster)

    @cached_property
    def rooms(self) -> tuple[float, ...]:
        """Bytes that weights, cache and buffers may take on each card."""
        return tuple(self.runtime.room(card.chip) for card in self.cards)

    def held(self, users: int, context: int = 0, kv: str = "") -> Held:
        kind = kv or self.work.kv
        return Held(context=context or self.work.context, sequences=users, key=kind, value=kind)
