"""Plugins: modules that installed packages register under an entry-point group.

Built-in modules are registered in our pyproject.toml in the same way as those of other packages.
"""

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from meshwise.errors import UserError


@lru_cache(maxsize=32)
def _entries(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Finding them reads every installed package, so they are kept for as long as the folders
    of packages (`path`) are the same."""
    return {entry.name: entry for entry in sorted(entry_points(group=group))}


def load_plugins(group: str, *required: str) -> dict[str, Any]:
    """Import the modules registered under `group`, by entry-point name; refuse one that lacks a required attribute."""
    entries = _entries(group, tuple(sys.path))
    if not entries:
        raise UserError(f"nothing is registered under {group!r}; install meshwise again: run 'pip install .' in its folder")
    modules: dict[str, Any] = {}
    for name, entry in entries.items():
        try:
            modules[name] = entry.load()
        except (ImportError, AttributeError) as error:
            raise UserError(f"the plugin {name!r} of {group!r} ({entry.value}) cannot be imported: {error}") from None
        missing = [attribute for attribute in required if not hasattr(modules[name], attribute)]
        if missing:
            raise UserError(f"the plugin {name!r} of {group!r} ({entry.value}) does not define {', '.join(missing)}")
    return modules
