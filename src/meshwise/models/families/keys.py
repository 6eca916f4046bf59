"""Keys of a config.json, each checked against the kind of value that an architecture file expects."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, cast

from meshwise.errors import UserError, nearest, quoted
from meshwise.models.config import MAX_LAYERS, MAX_SIZE, Config, as_list
from meshwise.models.families.description import Description

LAYER_KEYS = frozenset({"num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"})


class Keys:
    """The keys of one config, with the defaults, synonyms and limits of a description."""

    def __init__(self, description: Description, config: Config, name: Callable[[str], Any], value: Callable[[Any], Any]) -> None:
        self.description = description
        self.config = config
        self.name = name
        """Returns the value of a name of the description, such as 'layers'."""
        self.value = value
        """Returns the value of an expression."""
        self.limiting: set[str] = set()

    def read(self, name: str) -> Any:
        """Return a key, checked."""
        d = self.description
        value, stated = self._stated(name)
        if name in d.lists["lists"] or name in d.tables["words"] or name in d.lists["indices"]:
            return self._list(name, value)
        if name in d.lists["tables"]:
            return self._table(name, value)
        if name in d.lists["each"] and isinstance(value, list):
            return tuple(self._whole(name, item) for item in self._any_list(name, cast(list[Any], value)))
        if not stated:
            return self._omitted(name)
        sizes, defaults = d.tables["sizes"], d.tables["defaults"]
        return self._checked(name, value, defaults.get(name, 1 if name in sizes or name in d.lists["nulls"] else None))

    def plain(self, name: str) -> Any:
        """Return a key without a check, for the words of an error."""
        return {**self.description.tables["defaults"], **self.config.values}.get(name)

    def _stated(self, name: str) -> tuple[Any, bool]:
        """Return the value of a key or of one of its synonyms, and whether the config has it. A null gives way to a synonym."""
        values, synonyms = self.config.values, self.description.tables["synonyms"].get(name, ())
        present = [key for key in (name, *synonyms) if key in values]
        return next((values[key] for key in present if values[key] is not None), None), bool(present)

    def _omitted(self, name: str) -> Any:
        """Return what transformers takes for a key that the config omits. A config that is not within another must state its sizes."""
        d = self.description
        if self.config.nested and d.tables["sizes"].get(name):
            return d.tables["sizes"][name]
        if name in d.tables["defaults"]:
            return d.tables["defaults"][name]
        if name in d.lists["nulls"] or name in d.lists["autos"]:
            return None
        raise UserError(f"{self.config.where}: the key '{name}' is missing{nearest(name, map(str, self.config.values))}")

    def _checked(self, name: str, value: Any, expected: Any) -> Any:
        where = self.config.where
        if name in self.description.lists["autos"]:
            return None if value in (None, "auto") else self._whole(name, value)
        if value is None:
            if name in self.description.tables["sizes"]:
                raise UserError(f"{where}: '{name}' is null; expected a whole number from 1 to {MAX_SIZE}")
            return value
        if isinstance(expected, bool):
            return self.config.flag(name, expected) if name in self.config.values else bool(value)
        if isinstance(expected, str):
            if not isinstance(value, str):
                raise UserError(f"{where}: '{name}' is {quoted(value)}; expected a word{f' such as {expected}' * bool(expected)}")
            return value
        if isinstance(expected, float):
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not 0 <= value <= MAX_SIZE:
                raise UserError(f"{where}: '{name}' is {quoted(value)}; expected a number from 0 to {MAX_SIZE}")
            return value
        return self._whole(name, value)

    def _whole(self, name: str, value: Any) -> int:
        tables = self.description.tables
        least = 1 if name in tables["sizes"] or name in tables["limits"] else min(0, tables["defaults"].get(name, 0))
        most = MAX_LAYERS if name in LAYER_KEYS else MAX_SIZE
        if name in tables["limits"] and name not in self.limiting:
            self.limiting.add(name)
            most = self.value(tables["limits"][name])
            self.limiting.discard(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{self.config.where}: '{name}' is {quoted(value)}; expected a whole number from {least} to {most}")
        return value

    def _list(self, name: str, value: Any) -> tuple[Any, ...]:
        d = self.description
        if value is None:
            return ()
        if name in d.lists["indices"]:
            return tuple(sorted(Config({name: value}, self.config.where).indices(name, self.name("layers")) or ()))
        if name not in d.tables["words"]:
            return self._any_list(name, value)
        known, items, layers = d.tables["words"][name], as_list(value), self.name("layers")
        if len(items) != layers or any(item not in known for item in items):
            words = f"expected {layers} entries, each one of {', '.join(map(str, known))}"
            raise UserError(f"{self.config.where}: '{name}' is {quoted(items or value)}; {words}")
        return tuple(items)

    def _any_list(self, name: str, value: Any) -> tuple[Any, ...]:
        items = as_list(value)
        if not isinstance(value, list) or len(items) > MAX_LAYERS:
            raise UserError(
                f"{self.config.where}: '{name}' is {quoted(items or self.plain(name))}; expected a list of at most {MAX_LAYERS}"
            )
        if any(isinstance(item, int | float) and not 0 <= item <= MAX_SIZE for item in items):
            raise UserError(f"{self.config.where}: '{name}' is {quoted(items)}; expected numbers from 0 to {MAX_SIZE}")
        return tuple(items)

    def _table(self, name: str, value: Any) -> Mapping[str, Any] | None:
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{self.config.where}: '{name}' is {quoted(value)}; expected a table")
        return cast(Mapping[str, Any] | None, value)
