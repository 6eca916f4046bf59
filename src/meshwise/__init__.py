"""meshwise: the fastest way to train or serve a model on the accelerators at hand. These are the public names."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwise.catalogue.chips import Chip, Cluster, Link, Node, find_chip
    from meshwise.catalogue.clusters import find_cluster
    from meshwise.errors import UserError
    from meshwise.models.count import count
    from meshwise.models.find import find_model
    from meshwise.models.model import Model
    from meshwise.models.op import Op

__all__ = ["Chip", "Cluster", "Link", "Model", "Node", "Op", "UserError", "count", "find_chip", "find_cluster", "find_model"]

_HOMES = {
    "catalogue.clusters": ("find_cluster",),
    "errors": ("UserError",),
    "catalogue.chips": ("Chip", "Cluster", "Link", "Node", "find_chip"),
    "models.find": ("find_model",),
    "models.model": ("Model",),
    "models.op": ("Op",),
    "models.count": ("count",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: the CLI pays only for the verb that was asked for."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"meshwise.{module}"), name)
    raise AttributeError(f"module 'meshwise' has no attribute {name!r}")
