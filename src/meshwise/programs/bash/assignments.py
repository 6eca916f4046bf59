"""Assignments: variables, elements and whole arrays."""

from collections.abc import Sequence

from meshwise.programs.bash import tree
from meshwise.programs.bash.flow import MOST_TEXT
from meshwise.programs.bash.pieces import EMPTY, Value, not_known
from meshwise.programs.bash.shell import Shell
from meshwise.programs.bash.state import Array
from meshwise.programs.bash.words import Word


def assign(shell: Shell, assignment: tree.Assignment) -> None:
    """Set a variable; what the caller has set stays."""
    name = assignment.name
    if name in shell.fixed:
        shell.state.variables[name] = shell.fixed[name]
        return
    before = shell.state.variables.get(name)
    if isinstance(assignment.value, tuple):
        shell.state.variables[name] = _array(shell, assignment.value, before if assignment.append else None, before)
        return
    value = shell.expander.string(assignment.value)
    shell.spend(len(value.pieces))
    if len(value.text) > MOST_TEXT:
        value = not_known(f"${name}", "too long")
    if assignment.index is not None or isinstance(before, Array):
        array = before if isinstance(before, Array) else Array(() if before is None else ((0, before),))
        key = 0 if assignment.index is None else shell.expander.key(assignment.index, name)
        if key is None:
            shell.state.variables[name] = Array(((0, not_known(f"${{{name}[@]}}", "an index that is not known")),))
            return
        old = dict(array.items).get(key, EMPTY)
        shell.state.variables[name] = array.with_item(key, old + value if assignment.append else value)
        return
    if assignment.append and before is None:
        before = not_known(f"${name}", "set outside the script", outside=True) if shell.expander.is_outside(name) else EMPTY
    shell.state.variables[name] = before + value if assignment.append and isinstance(before, Value) else value


def _array(
    shell: Shell, elements: Sequence[Word | tree.Assignment], start: Value | Array | None, before: Value | Array | None
) -> Array:
    """Return an array with these elements after those that it has."""
    named = isinstance(before, Array) and before.named
    array = start if isinstance(start, Array) else Array(((0, start),)) if start is not None else Array((), named)
    for element in elements:
        if isinstance(element, Word):
            array = array.extended(shell.expander.fields(element))
            continue
        assert element.index is not None
        assert isinstance(element.value, Word)
        text = shell.expander.string(element.index)
        key: int | str | None = text.text if named else _whole(text)
        if key is not None:
            array = array.with_item(key, shell.expander.string(element.value))
    return array


def _whole(value: Value) -> int | None:
    return int(value.text) if value.known and value.text.isdecimal() and len(value.text) < 9 else None
