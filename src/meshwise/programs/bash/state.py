"""Variables, functions, arguments and written files at one point of a script, and how two states become one after an undecided test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import EMPTY, Piece, Place, Value
from meshwise.programs.bash.tree import Statement

LAUNCHERS = (
    "SLURM", "SLURMD", "PMI", "OMPI", "PBS", "LSB", "COBALT", "FLUX", "K8S", "KUBERNETES", "JOB_COMPLETION", "SKYPILOT",
    "AWS", "BASH", "CONDA",
)  # fmt: skip
PRESET_VARIABLES = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "HOSTNAME", "HOME", "USER", "PWD",
    "OLDPWD", "PATH", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "RANDOM", "SECONDS", "UID", "CUDA_VISIBLE_DEVICES", "LOGNAME",
    "LANG", "TERM", "PYTHONPATH", "LINENO", "PPID", "EUID", "NVIDIA_VISIBLE_DEVICES",
})  # fmt: skip
"""Variables that a shell, a login or a launcher sets before the script starts, so that a test of them cannot be decided."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array, indexed by numbers or, if declared so, by names."""

    items: tuple[tuple[int | str, Value], ...] = ()
    named: bool = False

    @property
    def values(self) -> list[Value]:
        """The elements in order."""
        return [value for _, value in self.items]

    def with_item(self, key: int | str, value: Value) -> "Array":
        """Return the array with one element set."""
        spend(1 + len(self.items) // 10)
        items = dict(self.items) | {key: value}
        ordered = items.items() if self.named else sorted(items.items(), key=lambda item: int(item[0]))
        return Array(tuple(ordered), self.named)

    def extended(self, values: Sequence[Value]) -> "Array":
        """Return the array with elements after its last one."""
        spend(1 + len(self.items) // 10 + len(values))
        start = max((int(key) for key, _ in self.items), default=-1) + 1
        return Array(self.items + tuple((start + i, value) for i, value in enumerate(values)), self.named)


Variable = Value | Array


@dataclass(slots=True)
class State:
    """The state that statements change: variables, functions, files and options of the shell."""

    script: str
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    exported: set[str] = field(default_factory=set[str])
    arguments: list[Value] | None = None  # `$1`, `$2`...; None if the script's arguments are not known
    functions: dict[str, Statement] = field(default_factory=dict[str, Statement])
    files: dict[str, Value] = field(default_factory=dict[str, Value])  # files that the script writes, by name

    def copy(self) -> "State":
        """Return a state that can change without changing this one."""
        spend(1 + len(self.variables) // 10)
        arguments = None if self.arguments is None else list(self.arguments)
        return State(self.script, dict(self.variables), set(self.exported), arguments, dict(self.functions), dict(self.files))

    def take(self, other: "State") -> None:
        """Become another state."""
        self.variables, self.exported, self.arguments = other.variables, other.exported, other.arguments
        self.functions, self.files = other.functions, other.files


def is_given(name: str) -> bool:
    """Return whether a variable is set from outside as a rule."""
    return name in PRESET_VARIABLES or name.split("_")[0] in LAUNCHERS


@dataclass(frozen=True, slots=True)
class Fork:
    """A test that cannot be decided: its number, why, and what it depends on."""

    number: int
    why: str
    by: str


def merged(states: Sequence[State], fork: Fork) -> State:
    """Return what is known whichever of the states is the right one; what differs is unknown, with its value in each."""
    first = states[0].copy()
    if len(states) == 1:
        return first
    names = {name: None for state in states for name in state.variables}
    first.variables = {name: _one([state.variables.get(name) for state in states], fork) for name in names}
    first.exported = set[str]().union(*(state.exported for state in states))
    first.files = {name: _value([s.files.get(name, EMPTY) for s in states], fork) for state in states for name in state.files}
    first.functions = {name: body for state in reversed(states) for name, body in state.functions.items()}
    if any(_texts(state.arguments) != _texts(first.arguments) for state in states):
        first.arguments = None
    return first


def _texts(values: Sequence[Value] | None) -> list[str] | None:
    return None if values is None else [value.text for value in values]


def _one(variables: Sequence[Variable | None], fork: Fork) -> Variable:
    if any(isinstance(variable, Array) for variable in variables):
        arrays = [v if isinstance(v, Array) else Array(((0, v),)) if v is not None else Array() for v in variables]
        return _array(arrays, fork)
    return _value([v if isinstance(v, Value) else None for v in variables], fork)


def _value(values: Sequence[Value | None], fork: Fork) -> Value:
    """Keep the words that all values begin and end with; what is between them is unknown, with its choices."""
    present = [value for value in values if value is not None]
    if len(present) == len(values) and all(_same(value, present[0]) for value in present):
        return present[0]
    if len(present) < len(values) or not all(value.known for value in present):
        return _choice(values, present[0].place, fork)
    texts = [value.text for value in present]
    start = _common(texts)
    end = min(_common([text[::-1] for text in texts]), min(map(len, texts)) - start)
    middles = [value.cut(start, len(value.text) - end) for value in present]
    place = next((middle.place for middle in middles if middle.place is not None), None)
    first = present[0]
    return first.cut(0, start) + _choice(middles, place, fork) + first.cut(len(first.text) - end, len(first.text))


def _same(a: Value, b: Value) -> bool:
    """Return whether two values are the same text, or the same unknown of one earlier test."""
    if a.known and b.known:
        return a.text == b.text
    return [(p.text, p.unknown, p.fork) for p in a.pieces] == [(p.text, p.unknown, p.fork) for p in b.pieces]


def _choice(values: Sequence[Value | None], place: Place | None, fork: Fork) -> Value:
    """Return the unknown value that is one of these, by a test that cannot be decided. It is spelled as the longest of them."""
    spelled = max(("" if value is None else value.text for value in values), key=len)
    chosen = tuple(EMPTY if value is None else value for value in values)
    return Value((Piece(spelled, place, fork.why, exact=False, choices=chosen, fork=fork.number, by=fork.by),))


def _common(texts: Sequence[str]) -> int:
    """Return the length of the beginning that all texts share, up to a blank: half a word is no word."""
    shortest = min(texts, key=len)
    size = next((i for i, char in enumerate(shortest) if any(text[i] != char for text in texts)), len(shortest))
    while size and not all(len(text) == size or text[size].isspace() or text[size - 1].isspace() for text in texts):
        size -= 1
    return size


def _array(arrays: Sequence[Array], fork: Fork) -> Array:
    """Keep the elements that all arrays begin and end with; each element between them is there in one of them."""
    lists = [array.values for array in arrays]
    if all(_same_list(values, lists[0]) for values in lists):
        return arrays[0]
    if any(array.named for array in arrays):
        keys = {key: None for array in arrays for key, _ in array.items}
        return Array(tuple((key, _value([dict(a.items).get(key) for a in arrays], fork)) for key in keys), True)
    shortest = min(map(len, lists))
    start = next((i for i in range(shortest) if not all(_same(t[i], lists[0][i]) for t in lists)), shortest)
    end = next(
        (i for i in range(shortest - start) if not all(_same(t[-1 - i], lists[0][-1 - i]) for t in lists)), shortest - start
    )
    middle: list[Value] = []
    for number, values in enumerate(lists):
        for value in values[start : len(values) - end]:
            chosen = tuple(value if way == number else None for way in range(len(lists)))
            piece = Piece(value.text, value.place, fork.why, exact=False, choices=chosen, fork=fork.number, by=fork.by)
            middle.append(Value((piece,)))
    whole = [*lists[0][:start], *middle, *(lists[0][len(lists[0]) - end :] if end else [])]
    return Array(tuple(enumerate(whole)))


def _same_list(a: Sequence[Value], b: Sequence[Value]) -> bool:
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def environment(values: Mapping[str, str], file: str) -> dict[str, Variable]:
    """Return variables that the caller sets, as if they were written in a file of that name."""
    return {name: Value((Piece(text, None, exact=False),)) for name, text in values.items() if file}
