"""Words of tables and programs for the values of a run's fields, from data/words.toml."""

from collections.abc import Mapping
from functools import cache
from typing import cast

from meshwise.catalogue import files


@cache
def words_of(field: str) -> Mapping[str, str]:
    """Return the value that each word means in a field; none for a field without such words."""
    return {word: value for value, words in _table().get(field, {}).items() for word in words}


@cache
def _table() -> Mapping[str, Mapping[str, list[str]]]:
    return cast(Mapping[str, Mapping[str, list[str]]], files.table_of(files.BUILT_IN / "words.toml"))
