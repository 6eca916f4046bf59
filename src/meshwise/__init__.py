"""meshwise: the fastest way to train or serve a model on the accelerators at hand. These are the public names."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwise.clusters import find_cluster
    from meshwise.errors import UserError
    from meshwise.hardware import Chip, Cluster, Link, Node, find_chip
    from meshwise.lookup import find_model
    from meshwise.model import Model
    from meshwise.op import Op
    from meshwise.tally import count

__all__ = ["Chip", "Cluster", "Link", "Model", "Node", "Op", "UserError", "count", "find_chip", "find_cluster", "find_model"]

_HOMES = {
    "clusters": ("find_cluster",),
    "errors": ("UserError",),
    "hardware": ("Chip", "Cluster", "Link", "Node", "find_chip"),
    "lookup": ("find_model",),
    "model": ("Model",),
    "op": ("Op",),
    "tally": ("count",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: the CLI pays only for the verb that was asked for."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"meshwise.{module}"), name)
    raise AttributeError(f"module 'meshwise' has no attribute {name!r}")
