"""Shell: the state of a script that is followed, and what was found on the way. interpreter.py follows it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from meshwise.programs.bash import tree
from meshwise.programs.bash.budget import TooLong, spend
from meshwise.programs.bash.directives import Directive
from meshwise.programs.bash.expansion import Expander
from meshwise.programs.bash.flow import MOST_STEPS, MOST_TEXT, Started, Status
from meshwise.programs.bash.pieces import Source, Value, joined
from meshwise.programs.bash.state import State
from meshwise.programs.bash.words import Substitution, Word


class Shell(ABC):
    """A state, and what was found on the way."""

    def __init__(self, state: State, fixed: Mapping[str, Value], beside: Mapping[str, Source]) -> None:
        self.state, self.fixed, self.beside = state, fixed, beside
        self.expander = Expander(state, fixed, self.substituted)
        self.started: list[Started] = []
        self.notes: list[str] = []
        self.uncertain: list[str] = []
        """What the undecided tests depend on, inside which the script is followed."""
        self.forks = 0
        self.steps = self.calls = 0
        self.outputs: list[list[Value]] = []
        self.directives: list[Directive] = []
        self.stdin: Value | None = None

    def note(self, line: int, text: str) -> None:
        """Remember something that the reader assumed or left out."""
        message = f"{self.state.script}:{line}: {text}"
        if message not in self.notes and len(self.notes) < 200:
            self.notes.append(message)

    def print(self, value: Value) -> None:
        """Add to the output that is being collected."""
        if self.outputs and sum(len(v.text) for v in self.outputs[-1]) < MOST_TEXT:
            self.outputs[-1].append(value)

    def collected(self, run: Callable[[], Status]) -> tuple[Status, Value]:
        """Run something and return its output."""
        self.outputs.append([])
        try:
            status = run()
        finally:
            output = joined(self.outputs.pop())
        return status, output

    def spend(self, steps: int) -> None:
        """Count work; a script that needs more than a launch script does is not followed to its end."""
        spend(steps)
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise TooLong

    @abstractmethod
    def substituted(self, part: Substitution) -> Value: ...

    @abstractmethod
    def block(self, block: tree.Block) -> Status: ...

    @abstractmethod
    def test(self, words: Sequence[tree.Assignment | Word], line: int) -> Status: ...

    @abstractmethod
    def assign(self, assignment: tree.Assignment) -> None: ...

    @abstractmethod
    def call(self, name: str, words: Sequence[Value]) -> Status: ...
