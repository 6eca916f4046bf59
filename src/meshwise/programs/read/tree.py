"""YAML and JSON as settings, with the place of every value. Nothing is constructed: only text, lists and keys are read."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from meshwise.errors import UserError
from meshwise.programs.bash.budget import spend
from meshwise.programs.source import Scalar, Setting, Source, Unknown
from meshwise.runs.run import Span

MAX_NESTING = 40
MAX_SETTINGS = 20_000  # settings of one file: aliases of aliases would make more
_INT = re.compile(r"[+-]?\d[\d_]*")
_FLOAT = re.compile(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_PLACEHOLDER = re.compile(r"\$\{|\$\w|\{\{|\$\(")  # a variable or a template's field that something else fills in
_DASHES = re.compile(r"(?:- ?){8,}")
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")


def documents(source: Source) -> list[list[Setting]]:
    """Return the settings of each document of a YAML (or JSON) text. UserError where it cannot be read."""
    nodes, fault = composed(source.text)
    if fault:
        line, problem = fault
        where = f", line {source.line + line}" if line >= 0 else ""
        raise UserError(f"{source.file}{where}: not readable as YAML or JSON: {problem}")
    return [_limited(source, node) for node in nodes if node is not None]


@lru_cache(maxsize=8)
def composed(text: str) -> tuple[tuple[Any, ...], tuple[int, str] | None]:
    """Return the nodes of a text, or the line and words of what is wrong with it. Several readers ask for the same text."""
    import yaml

    if _deepest(text) > MAX_NESTING:
        return (), (-1, f"nested more than {MAX_NESTING} deep")
    try:
        # JSON may be indented with tabs, YAML may not; offsets stay the same
        stream: Any = _Paid(text.replace("\t", " "))
        nodes: tuple[Any, ...] = tuple(yaml.compose_all(stream, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType]
    except (yaml.YAMLError, ValueError, RecursionError, IndexError) as error:
        mark: Any = getattr(error, "problem_mark", None)
        problem: Any = getattr(error, "problem", None) or type(error).__name__
        return (), (int(mark.line) if mark is not None else -1, str(problem))
    return nodes, None


class _Paid:
    """A text as a stream whose every character costs a step."""

    name = "<text>"

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def read(self, size: int) -> str:
        spend(size)
        self._at += size
        return self._text[self._at - size : self._at]


def _deepest(text: str) -> int:
    """Return how deep brackets or dashes are nested, quotes not regarded: the parser takes quadratic time for deep ones."""
    depth = 0
    most = max((run.count("-") for run in _DASHES.findall(text)), default=0)
    for letter in text:
        if letter in "[{":
            depth += 1
            most = max(most, depth)
        elif letter in "]}":
            depth = max(0, depth - 1)
    return most


def settings(source: Source) -> list[Setting]:
    """Return the settings of the first document."""
    return (documents(source) or [[]])[0]


def _limited(source: Source, node: Any) -> list[Setting]:
    found: list[Setting] = []
    for setting in _walk(source, node, "", 0):
        found.append(setting)
        if len(found) > MAX_SETTINGS:
            raise UserError(f"{source.file}: more than {MAX_SETTINGS:,} keys; expected a launch file")
    known = {one.key: one.value for one in found if not isinstance(one.value, Unknown)}
    return [_interpolated(one, known) if isinstance(one.value, Unknown) else one for one in found]


def _interpolated(setting: Setting, known: Mapping[str, Any]) -> Setting:
    """Return the setting of `${variables.max_seq_len}`, OmegaConf's words for the value of another key of the file."""
    other = re.fullmatch(r"\$\{([\w.]+)\}", str(setting.value))
    return replace(setting, value=known[other[1]]) if other and other[1] in known else setting


def _walk(source: Source, node: Any, path: str, depth: int) -> Iterator[Setting]:
    spend(1 + len(path) // 100)
    if depth > MAX_NESTING:
        raise UserError(f"{source.file}: nested more than {MAX_NESTING} deep")
    if node.id == "mapping":
        for key, value in merged(node):
            name = str(key.value) if key.id == "scalar" else ""
            yield from _walk(source, value, f"{path}.{name}" if path else name, depth + 1)
    elif node.id == "sequence":
        items: list[Any] = node.value
        if all(item.id == "scalar" for item in items):
            yield Setting(path, tuple(scalar(item) for item in items), Span(source.file, _line(source, node)))
        for number, item in enumerate(items):
            yield from _walk(source, item, f"{path}.{number}" if path else str(number), depth + 1)
    else:
        value = scalar(node)
        filled = isinstance(value, str) and len(value) < 200 and _PLACEHOLDER.search(value)
        yield Setting(path, Unknown(str(value), f"{value} is filled in later") if filled else value, span(source, node))


def merged(node: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a mapping: those that '<<' merges first, so that the mapping's own win."""
    own: list[tuple[Any, Any]] = []
    first: list[tuple[Any, Any]] = []
    for key, value in node.value:
        if key.id == "scalar" and key.value == "<<" and value.id in ("mapping", "sequence"):
            first += [
                pair for one in ([value] if value.id == "mapping" else value.value) if one.id == "mapping" for pair in one.value
            ]
        else:
            own.append((key, value))
    return first + own


def _line(source: Source, node: Any) -> int:
    return source.line + int(node.start_mark.line)


def span(source: Source, node: Any) -> Span:
    """Return the place of a scalar, without its quotes."""
    quoted = 1 if node.style in ("'", '"') else 0
    if node.style in ("|", ">"):
        return Span(source.file, _line(source, node))
    return source.span(node.start_mark.index + quoted, node.end_mark.index - quoted)


def scalar(node: Any) -> Scalar:
    """Return the value of a scalar: a number, a truth value or None where it is written without quotes, else its text."""
    text = str(node.value)
    if node.style is not None:
        return text
    lower = text.lower()
    if lower in ("", "~", "null"):
        return None
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    if len(text) < 40 and _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if len(text) < 40 and _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text
