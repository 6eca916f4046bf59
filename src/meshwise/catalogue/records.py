"""A frozen dataclass from a table that someone wrote by hand: keys checked, units read, every slip told in one line.

The types of the fields are the whole schema: `memory: Bytes` reads '80GiB', `tuple[Source, ...]` reads an array of tables.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from meshwise import units
from meshwise.errors import UserError, nearest, quoted

Record = TypeVar("Record")


def read(cls: type[Record], table: object, where: str) -> Record:
    """An instance of the dataclass `cls`; `where` names the file and, below it, the table."""
    if not isinstance(table, Mapping):
        raise UserError(f"{where}: expected a table, found {quoted(table)}")
    known = _fields(cls)
    given = cast(Mapping[str, object], table)
    for key in given:
        if key not in known:
            raise UserError(f"{where}: unknown key {quoted(key)}{nearest(str(key), known) or '; known: ' + ', '.join(known)}")
    values: dict[str, Any] = {}
    for name, (field, hint) in known.items():
        if name in given:
            values[name] = _value(hint, given[name], f"{where}: {name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{where}: the key '{name}' is missing")
    try:
        return cls(**values)
    except UserError as error:  # what a type checks of its own, such as a price
        raise UserError(f"{where}: {error}") from None


@cache
def _fields(cls: type) -> dict[str, tuple[Field[Any], Any]]:
    """The fields a file may set, with their resolved types."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: (f, hints[f.name]) for f in fields(cls) if f.init and not f.metadata.get("derived")}


def _value(hint: Any, value: object, where: str) -> object:
    """`value` as the type `hint`, or an error that says where and what was expected."""
    origin = get_origin(hint)
    if origin is Annotated:
        try:
            return units.parse(value, get_args(hint)[1])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    if origin in (Union, types.UnionType):
        (inner,) = (arm for arm in get_args(hint) if arm is not types.NoneType)
        return _value(inner, value, where)
    if origin is Literal:
        return _choice(get_args(hint), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise UserError(f"{where}: expected a list, found {quoted(value)}")
        items = cast(list[object], value)
        return tuple(_value(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: expected a table, found {quoted(value)}")
        key_type, value_type = get_args(hint)
        table = cast(Mapping[str, object], value)
        return {_value(key_type, k, where): _value(value_type, v, f"{where}.{k}") for k, v in table.items()}
    if is_dataclass(hint):
        return read(cast(type[object], hint), value, where)
    return _plain(hint, value, where)


def _choice(valid: tuple[str, ...], value: object, where: str) -> object:
    if value not in valid:
        raise UserError(f"{where}: {quoted(value)} is none of {', '.join(valid)}{nearest(str(value), valid)}")
    return value


def _plain(hint: type, value: object, where: str) -> object:
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        wanted = {str: "text in quotes", int: "a whole number", bool: "true or false"}[hint]
        raise UserError(f"{where}: expected {wanted}, found {quoted(value)}")
    if hint is int and not 0 < cast(int, value) <= 10**9:
        raise UserError(f"{where}: expected a whole number from 1 to 1e9, found {quoted(value)}")
    return value
