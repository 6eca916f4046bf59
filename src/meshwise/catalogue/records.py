"""Records: frozen dataclasses read from TOML that people write, written as TOML, and restored from JSON that meshwise wrote."""

import importlib
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from meshwise import units
from meshwise.catalogue import files
from meshwise.errors import UserError, nearest, quoted

Record = TypeVar("Record")

# TOML that people write.


def read(cls: type[Record], table: object, where: str) -> Record:
    """Read a table as the dataclass `cls`. `where` names the file, and the table in it, in errors."""
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
    except UserError as error:  # from __post_init__, such as an invalid price
        raise UserError(f"{where}: {error}") from None


@cache
def _fields(cls: type) -> dict[str, tuple[Field[Any], Any]]:
    """Return the fields that a file may set, with their resolved types."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: (f, hints[f.name]) for f in fields(cls) if f.init and not f.metadata.get("derived")}


def _value(hint: Any, value: object, where: str) -> object:
    """Return `value` as the type `hint`; raise an error that states the place and the expected type otherwise."""
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
        raise UserError(f"{where}: {quoted(value)} is not one of {', '.join(valid)}{nearest(str(value), valid)}")
    return value


def _plain(hint: type, value: object, where: str) -> object:
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        expected = {str: "text in quotes", int: "a whole number", bool: "true or false"}[hint]
        raise UserError(f"{where}: expected {expected}, found {quoted(value)}")
    if hint is int and not 0 < cast(int, value) <= 10**9:
        raise UserError(f"{where}: expected a whole number from 1 to 1e9, found {quoted(value)}")
    return value


# TOML that meshwise writes.


def toml(record: object, head: str = "", first: str = "") -> str:
    """Format a record as TOML: the comments `head`, plain fields with a blank line before the field `first`, then tables."""
    lines = [head] if head else []
    lines += _body(record, "", first)
    return "\n".join(lines).lstrip("\n") + "\n"


def _body(record: Any, path: str, first: str = "") -> Iterator[str]:
    """Yield the lines of a record: plain fields, then tables, whose names start with `path`."""
    hints = get_type_hints(type(record), include_extras=True)  # pyright: ignore[reportUnknownArgumentType]
    values = [(field, getattr(record, field.name)) for field in fields(record)]
    written = [(field, value) for field, value in values if _is_written(field, value)]
    tables = [(field, value) for field, value in written if _is_table(value)]
    for field, value in written:
        if (field, value) in tables:
            continue
        if field.name == first:
            yield ""
        yield f"{field.name} = {literal(value, hints[field.name])}"
    for field, value in tables:
        name = f"{path}{field.name}"
        if isinstance(value, dict):
            inner = get_args(_plain_hint(hints[field.name]))[1]
            yield f"\n[{name}]"
            yield from (f"{_key(key)} = {literal(item, inner)}" for key, item in cast(dict[str, Any], value).items())
        elif isinstance(value, tuple):
            for item in cast(tuple[Any, ...], value):
                yield f"\n[[{name}]]"
                yield from _body(item, f"{name}.")
        else:
            yield f"\n[{name}]"
            yield from _body(value, f"{name}.")


def _is_written(field: Field[Any], value: object) -> bool:
    """Return whether to write a field: not derived ones nor defaults, but always floats, because a default may change later."""
    if field.metadata.get("derived") or value is None:
        return False
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return value != default or isinstance(value, float)


def _is_table(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(cast(tuple[Any, ...], value)) and is_dataclass(cast(tuple[Any, ...], value)[0])
    return isinstance(value, dict) or is_dataclass(value)


def _plain_hint(hint: Any) -> Any:
    """Return the type of an optional field without None."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(arm for arm in get_args(hint) if arm is not type(None))
    return hint


def literal(value: object, hint: Any) -> str:
    """Format a value as TOML; times and sizes with their unit."""
    hint = _plain_hint(hint)
    if isinstance(value, tuple):
        inner = get_args(hint)[0]
        return "[" + ", ".join(literal(item, inner) for item in cast(tuple[object, ...], value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and get_origin(hint) is not Annotated:
        return str(value)
    if isinstance(value, int | float):
        quantity = get_args(hint)[1] if get_origin(hint) is Annotated else "count"
        return f"{value:.4g}" if quantity == "count" else f'"{units.show(value, quantity)}"'
    return _quoted(str(value))


def _key(text: str) -> str:
    return text if text.replace("_", "").isalnum() else _quoted(text)


def _quoted(text: str) -> str:
    kept = "".join(c if c.isprintable() else " " for c in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'


# JSON.


def stored(key: str) -> dict[str, str]:
    """Return the metadata of a field whose key in JSON differs from its name."""
    return {"json": key}


def plain(record: Any) -> Any:
    """Return a record as JSON values: records within it as tables, tuples as lists."""
    if is_dataclass(record) and not isinstance(record, type):
        return {f.metadata.get("json", f.name): plain(getattr(record, f.name)) for f in fields(record)}
    if isinstance(record, dict):
        return {key: plain(value) for key, value in cast(dict[str, Any], record).items()}
    if isinstance(record, list | tuple):
        return [plain(value) for value in cast(list[Any], record)]
    return record


def printable(value: Any) -> Any:
    """Return a JSON value whose texts have no line breaks and control characters, as those of a plan.json."""
    if isinstance(value, str):
        return value if value.isprintable() else " ".join("".join(c if c.isprintable() else " " for c in value).split())
    if isinstance(value, dict):
        return {key: printable(item) for key, item in cast(dict[str, Any], value).items()}
    return [printable(item) for item in cast(list[Any], value)] if isinstance(value, list) else value


def plan_table(path: Path, number: int, kind: str = "") -> dict[str, Any]:
    """Return the table of a plan.json; one of another format or kind is refused with the reason."""
    table = any_table(path)
    if table.get("kind", "") != kind:
        given, expected = ("serving" if name == "serve" else "training" for name in (table.get("kind"), kind))
        raise UserError(f"{path}: a plan for {given}; expected a plan for {expected}")
    if table["format"] != number:
        found = f"a plan of format {quoted(table['format'])}"
        raise UserError(f"{path}: {found}; this version reads format {number}: make the plan again")
    strange = next((text for text in _texts(table) if not text.isprintable()), None)
    if strange is not None:
        raise UserError(f"{path}: {quoted(strange)} has line breaks or control characters, which no plan has; make it again")
    return table


def any_table(path: Path) -> dict[str, Any]:
    """Return the table of a plan.json, whether for training or for serving."""
    values = files.json_of(files.text_of(path), str(path))
    if not isinstance(values, dict) or "format" not in values:
        raise UserError(f"{path}: not a plan; make one with 'meshwise plan'")
    return cast(dict[str, Any], values)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts and keys of a JSON value."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += [part for pair in cast(dict[str, object], one).items() for part in pair]
        elif isinstance(one, list):
            left += cast(list[object], one)


def restore(cls: type[Record], table: object) -> Record:
    """Restore a record from the output of `plain`. Raise TypeError where a value is not of its field's type, or a field is missing."""
    if not isinstance(table, Mapping):
        raise TypeError(f"{quoted(table)} is not a table")
    given = cast(Mapping[str, Any], table)
    fields_by_key = {f.metadata.get("json", f.name): f for f in fields(cast(Any, cls)) if f.init}
    unknown = [name for name in given if name not in fields_by_key]
    if unknown:
        raise TypeError(f"unknown {unknown[0]}")
    return cls(**{fields_by_key[key].name: _restored(fields_by_key[key].type, value, key) for key, value in given.items()})


def _restored(hint: Any, value: Any, name: str) -> Any:
    """Return `value` as the type `hint`: tuples and records are lists and tables in JSON."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return _first(inner, value, name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_restored(inner[0], item, name) for item in cast(list[Any], value))
    if origin is dict and isinstance(value, dict):
        return {key: _restored(inner[1], item, name) for key, item in cast(dict[str, Any], value).items()}
    if is_dataclass(hint) and isinstance(value, Mapping):
        return restore(cast(type[Any], hint), cast(object, value))
    if is_dataclass(hint) and isinstance(value, cast(type[Any], hint)):
        return value
    fits = _is_number(value) if hint is float else type(value) is hint and (hint is not int or abs(value) < 2**62)
    if fits:
        return value
    raise TypeError(f"{name} is {quoted(value)}")


def _is_number(value: object) -> bool:
    """Return whether a value is a finite float, or an integer that a float holds: JSON may have one of 400 digits."""
    try:
        return type(value) in (int, float) and math.isfinite(cast(float, value))
    except OverflowError:
        return False


def _first(arms: tuple[Any, ...], value: Any, name: str) -> Any:
    """Return `value` as the first arm of a union that accepts it."""
    for arm in arms:
        try:
            return _restored(arm, value, name)
        except TypeError:
            continue
    raise TypeError(f"{name} is {quoted(value)}")


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a polars or pandas data frame."""
    for name in ("polars", "pandas"):
        if find_spec(name) is not None:
            return importlib.import_module(name).DataFrame([dict(row) for row in rows])
    raise UserError("to_frame() needs polars or pandas: pip install polars; rows() needs neither")
