"""A frozen dataclass as the TOML file that `records.read` reads back: units written out, records within it as tables."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from meshwise import units


def toml(record: object, head: str = "", first: str = "") -> str:
    """The file: comments in front, then what is plain, a blank line before the field `first`, then the tables."""
    lines = [head] if head else []
    lines += _body(record, "", first)
    return "\n".join(lines).lstrip("\n") + "\n"


def _body(record: Any, path: str, first: str = "") -> Iterator[str]:
    hints = get_type_hints(type(record), include_extras=True)  # pyright: ignore[reportUnknownArgumentType]
    held = [(field, getattr(record, field.name)) for field in fields(record) if _said(field, getattr(record, field.name))]
    tables = [(field, value) for field, value in held if _is_table(value)]
    for field, value in held:
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
            yield from (f"{_key(key)} = {literal(one, inner)}" for key, one in cast(dict[str, Any], value).items())
        elif isinstance(value, tuple):
            for one in cast(tuple[Any, ...], value):
                yield f"\n[[{name}]]"
                yield from _body(one, f"{name}.")
        else:
            yield f"\n[{name}]"
            yield from _body(value, f"{name}.")


def _said(field: Field[Any], value: object) -> bool:
    """What a file says: not its own name, and nothing that would be so without it, but for numbers, which defaults may outlive."""
    if field.metadata.get("derived") or value is None:
        return False
    usual = field.default_factory() if field.default_factory is not MISSING else field.default
    return value != usual or isinstance(value, float)


def _is_table(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(cast(tuple[Any, ...], value)) and is_dataclass(cast(tuple[Any, ...], value)[0])
    return isinstance(value, dict) or is_dataclass(value)


def _plain_hint(hint: Any) -> Any:
    """The type of a field that may be None."""
    if get_origin(hint) in (Union, UnionType):
        return next(arm for arm in get_args(hint) if arm is not type(None))
    return hint


def literal(value: object, hint: Any) -> str:
    """A value as TOML writes it; times and sizes with their unit."""
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
