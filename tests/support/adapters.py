"""Counts of adapter weights."""

from collections.abc import Iterable

from meshwise.models.model import Model
from meshwise.models.modules import targeted


def adapter_parameters(model: Model, targets: Iterable[str], rank: int, magnitudes: bool = False) -> int:
    """Return the parameters of all adapters, as `peft` counts them."""
    return sum(module.adapter(rank, magnitudes) * module.count for module in targeted(model, targets, rank))
