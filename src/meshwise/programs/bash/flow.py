"""Results of statements: Status, Leave (break, return, exit), and Started, a command that the script would start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwise.programs.bash.pieces import Place, Value

MOST_STEPS, MOST_CALLS, MOST_TEXT = 200_000, 40, 200_000
"""Statements together with the pieces of the values they make; functions inside functions; characters of a value."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Whether a test holds if nothing is given from outside the script: `[ -z "$1" ]`. Believed, unless the script then ends at once."""

    holds: bool


Status = bool | Literal["ran"] | Guess | None
"""Whether a statement succeeds: None cannot be decided; 'ran' is a command that is started, and succeeds as far as && and || are
concerned."""


@dataclass(frozen=True, slots=True)
class Started:
    """A command that the script would start."""

    words: tuple[Value, ...]
    environment: Mapping[str, Value]
    certain: bool
    place: Place | None
    stdin: Value | None = None
    by: tuple[tuple[str, int], ...] = ()
    """What the tests depend on that decide whether, or how, it starts, with the way that each goes here; empty where it certainly starts
    like this."""


class Leave(Exception):
    """`exit`, `return`, `break` or `continue`."""

    def __init__(self, kind: str, levels: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.levels = kind, levels
