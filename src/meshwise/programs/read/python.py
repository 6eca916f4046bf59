"""Python scripts as settings: the keyword arguments of calls whose values are literals, or names that were set to literals before."""

import ast
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.programs.bash.budget import spend
from meshwise.programs.source import Scalar, Setting, Source, Unknown

MAX_CHARS = 1 << 20
UNSLOTH = "FastLanguageModel"
"""The class whose calls a script is read for: their arguments are literals in every published notebook."""


def settings(source: Source) -> list[Setting]:
    """Return keyword arguments of calls, each as 'Name.call.argument'; nothing is run. UserError where it is no Python."""
    if len(source.text) > MAX_CHARS:
        raise UserError(f"{source.file}: more than {MAX_CHARS:,} characters; expected a training script")
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{source.file}: not readable as Python: {error}") from None
    known: dict[str, Any] = {}
    found: list[Setting] = []
    starts = [0]
    for line in source.text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(tree):
        spend()
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _value(node.value, known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _arguments(node, source, starts, known)
    return found


def _arguments(node: ast.Call, source: Source, starts: list[int], known: dict[str, Any]) -> list[Setting]:
    name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    made: list[Setting] = []
    for one in node.keywords if name else ():
        value = one.value
        if one.arg is None or value.end_lineno is None or value.end_col_offset is None:
            continue
        start, end = starts[value.lineno - 1] + value.col_offset, starts[value.end_lineno - 1] + value.end_col_offset
        first = starts[value.lineno - 1]  # columns are bytes: only in ASCII they are characters
        span = source.span(start, end) if source.text.isascii() else source.span(first, first)
        made.append(Setting(f"{name}.{one.arg}", _value(value, known), span))
    return made


def _value(node: ast.expr, known: dict[str, Any]) -> "Scalar | tuple[Scalar, ...] | Unknown":
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        text = ast.unparse(node)
        return Unknown(text[:80], f"{text[:80]} is known only when the script runs")
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in cast(list[object], value))
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
