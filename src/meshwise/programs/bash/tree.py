"""The syntax tree of a script."""

from dataclasses import dataclass, field

from meshwise.programs.bash.words import Word


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, `name+=value`, `name[index]=value` or `name=(values)`."""

    name: str
    value: Word | tuple["Word | Assignment", ...]
    append: bool = False
    index: Word | None = None


@dataclass(slots=True)
class Redirect:
    """`> file`, `<<EOF` and the like. The body of a heredoc is filled in when its lines have been read."""

    operator: str
    target: Word
    channel: str = ""
    body: Word | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments, and a command of words."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]  # assignments among the words are arguments of `export`, `declare` and `local`
    redirects: tuple[Redirect, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined with `|`."""

    commands: tuple["Statement", ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands joined with `&&` and `||`."""

    first: "Statement"
    rest: tuple[tuple[str, "Statement"], ...]


@dataclass(frozen=True, slots=True)
class If:
    """`if`, each `elif`, and `else`."""

    branches: tuple[tuple["Block", "Block"], ...]
    otherwise: "Block"
    line: int


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words`; without words, over the arguments."""

    name: str
    words: tuple[Word, ...] | None
    body: "Block"
    line: int


@dataclass(frozen=True, slots=True)
class Count:
    """`for ((first; test; step))`."""

    first: Word
    test: Word
    step: Word
    body: "Block"
    line: int


@dataclass(frozen=True, slots=True)
class While:
    """`while` or `until`."""

    test: "Block"
    body: "Block"
    until: bool
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """`case word in`; each clause has its patterns, body and end: `;;`, `;&` or `;;&`."""

    word: Word
    clauses: tuple[tuple[tuple[Word, ...], "Block", str], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Group:
    """`{ ...; }`, or `( ... )`, which leaves the variables of the script as they are."""

    body: "Block"
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """`name() body`."""

    name: str
    body: "Statement"


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]`: words and operators in order; operators are strings."""

    __test__ = False  # pytest takes classes of this name for tests
    tokens: tuple[Word | str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Calculation:
    """`(( expression ))`."""

    expression: Word
    line: int


Statement = Simple | Pipeline | Chain | If | For | Count | While | Case | Group | Function | Test | Calculation
Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the reader left out, with its line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A script as a tree, with the lines that are not shell."""

    block: Block
    notes: tuple[Note, ...] = field(default=())
