"""Modules that a program imports beside its parser, and that are not installed: every name of them is an empty class."""

import importlib.abc
import importlib.machinery
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

import typing_extensions  # pyright: ignore[reportMissingModuleSource]


class _Any(type):
    """The class of stand-ins: each attribute is a stand-in, and as a decorator it returns the function."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any(name, (), {})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else super().__call__()


class _Module(types.ModuleType):
    """A module whose every name is a stand-in."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: finds what nothing else has, of these packages alone."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == one or fullname.startswith(f"{one}.") for one in self.packages):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def install(*packages: str) -> None:
    """Let these packages be stand-ins where they are missing; give Python 3.11 the names of 3.12 that programs use."""
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    sys.meta_path.append(Finder(packages))
