"""A frozen dataclass from the JSON that it was saved as; the field types are the schema, and a file that strays from it is refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

from meshwise.catalogue import files as catalogue
from meshwise.errors import UserError, quoted

Record = TypeVar("Record")


def table_of(path: Path, number: int, kind: str = "") -> dict[str, Any]:
    """The table of a plan.json; one of another format or kind is refused with the reason."""
    table = any_table(path)
    if table["format"] != number:
        raise UserError(
            f"{path}: a plan of format {quoted(table['format'])}; this version reads format {number}: make the plan again"
        )
    if table.get("kind", "") != kind:
        raise UserError(f"{path}: a plan for {'serving' if table.get('kind') == 'serve' else 'training'}, not what this needs")
    return table


def any_table(path: Path) -> dict[str, Any]:
    """The table of a plan of any kind."""
    try:
        values: object = json.loads(catalogue.text_of(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict) or "format" not in values:
        raise UserError(f"{path}: not a plan; write one with 'meshwise plan ... --out {path.name}'")
    return cast(dict[str, Any], values)


def record(cls: type[Record], table: object) -> Record:
    """A record whose every field is of its type, records within it included. TypeError where one is not."""
    if not isinstance(table, Mapping):
        raise TypeError(f"{quoted(table)} is no table")
    given = cast(Mapping[str, Any], table)
    hints = {f.name: f.type for f in fields(cast(Any, cls))}
    return cls(**{name: _value(hints[name], value, name) if name in hints else value for name, value in given.items()})


def _value(hint: Any, value: Any, name: str) -> Any:
    """`value` as a field of that type has it: JSON knows lists and tables only."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _first(inner, value, name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(inner[0], one, name) for one in cast(list[Any], value))
    if origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], one, name) for key, one in cast(dict[str, Any], value).items()}
    if is_dataclass(hint) and isinstance(value, Mapping):
        return record(cast(type[Any], hint), cast(object, value))
    if is_dataclass(hint) and isinstance(value, cast(type[Any], hint)):
        return value
    fits = type(value) in (int, float) and math.isfinite(value) if hint is float else type(value) is hint
    if fits:
        return value
    raise TypeError(f"{name} is {quoted(value)}")


def _first(arms: tuple[Any, ...], value: Any, name: str) -> Any:
    for arm in arms:
        try:
            return _value(arm, value, name)
        except TypeError:
            continue
    raise TypeError(f"{name} is {quoted(value)}")
