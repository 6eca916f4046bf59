"""Config: a config.json whose keys are checked as they are read."""

from collections.abc import Mapping, Sequence
from typing import cast

from meshwise.errors import UserError, nearest, quoted

MAX_SIZE = 2**24  # no width, vocabulary or context of a real model exceeds this, and nothing below it can overflow a table
MAX_LAYERS = 2**14


def as_list(value: object) -> list[object]:
    """Return a JSON list as it is, and an empty list for anything else."""
    return cast(list[object], value) if isinstance(value, list) else []


class Config:
    """Typed access to untrusted keys. Where several keys are given, they are synonyms: the first one present is read."""

    def __init__(self, values: Mapping[str, object], where: str, *, nested: bool = False) -> None:
        self.values = values
        self.where = where
        self.nested = nested
        """Whether it is a table within another config, where files rely on the defaults of transformers for every key."""

    @property
    def model_type(self) -> str:
        """HF's name for the architecture."""
        value = self.values.get("model_type")
        if not isinstance(value, str):
            raise UserError(f"{self.where}: no 'model_type'; keys found: {self.keys_found()}")
        return value

    def keys_found(self) -> str:
        """Return the first keys of the file, for an error about one that is missing."""
        keys = sorted(str(key) for key in self.values)
        shown = ", ".join(keys[:12])
        return quoted(shown, 200)[1:-1] + (f" and {len(keys) - 12} more" if len(keys) > 12 else "") if keys else "none"

    def _first(self, keys: Sequence[str]) -> tuple[str, object]:
        for key in keys:
            if self.values.get(key) is not None:
                return key, self.values[key]
        return keys[0], None

    def whole(self, *keys: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> int:
        """Read a whole number from `least` to `most`."""
        key, value = self._first(keys)
        if value is None:
            if default is None:
                # A misspelt key is the usual reason, and the nearest one present shows it.
                raise UserError(f"{self.where}: the key '{key}' is missing{nearest(key, map(str, self.values))}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{self.where}: '{key}' is {quoted(value)}; expected a whole number from {least} to {most}")
        return value

    def layers(self, *keys: str) -> int:
        """Read a number of layers."""
        return self.whole(*keys, most=MAX_LAYERS)

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: '{key}' is {quoted(value)}; expected true or false")
        return value

    def choice(self, key: str, valid: Sequence[str], default: str) -> str:
        """Read one of several words."""
        value = self.values.get(key)
        if value is None:
            return default
        if value not in valid:
            raise UserError(f"{self.where}: '{key}' is {quoted(value)}; expected one of {', '.join(valid)}")
        return cast(str, value)

    def words(self, key: str, layers: int, valid: Sequence[str]) -> tuple[str, ...] | None:
        """Read a list with one word per layer, such as layer_types; None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        words = as_list(value)
        if len(words) != layers or any(word not in valid for word in words):
            expected = f"{layers} entries, each one of {', '.join(valid)}"
            raise UserError(f"{self.where}: '{key}' is {quoted(words or value)}; expected {expected}")
        return tuple(str(word) for word in words)

    def indices(self, key: str, layers: int) -> frozenset[int] | None:
        """Read a list of layer numbers; None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        numbers = as_list(value)
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < layers for i in numbers):
            found = quoted(numbers or self.values[key])
            raise UserError(f"{self.where}: '{key}' is {found}; expected a list of layers, each below {layers}")
        return frozenset(cast(list[int], numbers))

    def table(self, key: str) -> "Config | None":
        """Read a table inside the config, such as text_config; None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise UserError(f"{self.where}: '{key}' is {quoted(value)}; expected a table")
        return Config(cast(Mapping[str, object], value), f"{self.where}: {key}", nested=True)

    def require_multiple(self, large: int, small: int, rule: str) -> None:
        """Refuse a shape in which `large` is not a multiple of `small`; `rule` states that with the names of the keys."""
        if large % small:
            raise UserError(f"{self.where}: {rule}: {large} is not a multiple of {small}")
