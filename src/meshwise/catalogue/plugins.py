"""Plugins: modules of ours, found in their folder, and modules that other packages register under an entry-point group."""

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from meshwise.errors import UserError


@lru_cache(maxsize=32)
def _entries(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name."""
    # a source tree may run beside the metadata of an older installation, which registered our own modules too
    return {entry.name: entry for entry in entry_points(group=group) if not entry.value.startswith("meshwise.")}


@lru_cache(maxsize=32)
def _files(package: str, path: tuple[str, ...]) -> dict[str, str]:
    """Return the modules in a package's folders (`path`), by plain name."""
    return {_plain(found.name): f"{package}.{found.name}" for found in iter_modules(path) if not found.ispkg}


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _ours(packages: Sequence[str]) -> dict[str, str]:
    """Return every module of some packages, by plain name."""
    found = (_files(package, tuple(import_module(package).__path__)) for package in packages)
    return {name: module for files in found for name, module in files.items()}


def _missing(module: ModuleType, required: Sequence[str]) -> list[str]:
    """Return what a module lacks of `required`: names, or 'this or that'."""
    return [names for names in required if not any(hasattr(module, name) for name in names.split(" or "))]


def own_files(package: str) -> dict[str, Path]:
    """Return the files of a package by plain name: what their text tells needs no import."""
    return {name: Path(str(find_spec(module).origin)) for name, module in _ours((package,)).items()}  # pyright: ignore[reportOptionalMemberAccess]


def load_own(packages: Sequence[str], name: str) -> Any:
    """Import the one module of ours that has the plain name of a plugin; None where there is none."""
    module = _ours(packages).get(_plain(name))
    return import_module(module) if module else None


def load_plugins(group: str, packages: Sequence[str], *required: str) -> dict[str, Any]:
    """Import the modules of `packages` that define all of `required`, by file name, and those of other packages that are registered under
    `group`, by entry-point name. One of another package that lacks something is refused; a name of ours is not replaced."""
    ours = _ours(packages)
    modules = {path.rpartition(".")[2]: import_module(path) for path in ours.values()}
    modules = {name: module for name, module in modules.items() if not _missing(module, required)}
    for name, entry in _entries(group, tuple(sys.path)).items():
        if _plain(name) in ours:
            continue
        try:
            modules[name] = entry.load()
        except Exception as error:  # code of another package may raise anything
            raise UserError(f"the plugin {name!r} of {group!r} ({entry.value}) cannot be imported: {error}") from None
        if missing := _missing(modules[name], required):
            raise UserError(f"the plugin {name!r} of {group!r} ({entry.value}) does not define {', '.join(missing)}")
    return dict(sorted(modules.items()))
