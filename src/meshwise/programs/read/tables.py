"""TOML as settings, with the place of every value. tomllib reads the values; a scan of the lines finds where they are."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.programs.bash.budget import spend
from meshwise.programs.source import Scalar, Setting, Source
from meshwise.runs.run import Span

_SECTION = re.compile(r"\s*\[\[?\s*([^\]\n]+?)\s*\]\]?\s*(#.*)?$")
_PAIR = re.compile(r"""\s*((?:[A-Za-z0-9_.-]|"[^"\n]*"|'[^'\n]*'|\s(?=[.=]))+?)\s*=\s*""")
MAX_KEY_PARTS = 100
MAX_HEAD_CHARS = 500  # characters of a line in which its key is looked for


def settings(source: Source) -> list[Setting]:
    """Return the settings of a TOML text. UserError where it cannot be read."""
    if any(line.partition("=")[0].count(".") > MAX_KEY_PARTS for line in source.text.splitlines()):
        raise UserError(f"{source.file}: a key of more than {MAX_KEY_PARTS} parts; expected a launch file")
    try:
        table = tomllib.loads(source.text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{source.file}: not readable as TOML: {error}") from None
    places = _places(source)
    return [
        Setting(key, value, places.get(key) or places.get(key.rpartition(".")[0]) or Span(source.file, source.line))
        for key, value in _walk(table, "")
    ]


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    spend(1 + len(path) // 100)
    if isinstance(value, dict):
        for key, inner in cast(dict[str, Any], value).items():
            yield from _walk(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        items = cast(list[Any], value)
        if all(not isinstance(item, dict | list) for item in items):
            yield path, tuple(_scalar(item) for item in items)
        for number, item in enumerate(items):
            yield from _walk(item, f"{path}.{number}")
    else:
        yield path, _scalar(value)


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, int | float | str | bool) else str(value)


def _places(source: Source) -> dict[str, Span]:
    """Return the place of each key's value: of the characters where the value is on the line of its key, else of the line."""
    places: dict[str, Span] = {}
    section, offset = "", 0
    for line in source.text.splitlines(keepends=True):
        spend()
        head = line[:MAX_HEAD_CHARS]
        header, pair = _SECTION.match(head), _PAIR.match(head)
        if header:
            section = _plain(header[1])
            places.setdefault(section, Span(source.file, source.line_of(offset)))
        elif pair:
            key = f"{section}.{_plain(pair[1])}" if section else _plain(pair[1])
            places[key] = _value(source, offset + pair.end(), line[pair.end() :])
        offset += len(line)
    return places


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _value(source: Source, start: int, rest: str) -> Span:
    match = re.match(r'"([^"\\\n]*)"|\'([^\'\n]*)\'|([^\s,#\[{"\']+)', rest)
    if not match:
        return Span(source.file, source.line_of(start))
    group = 1 if match[1] is not None else 2 if match[2] is not None else 3
    return source.span(start + match.start(group), start + match.end(group))
