"""Source, Word, Setting, Command: what a file says in its program's own words, and where it says so."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meshwise.runs.run import Span

Scalar = int | float | str | bool | None  # a value as a file writes it


@dataclass(frozen=True)
class Source:
    """A text to read: a whole file, or a piece of one, such as a script inside YAML or a heredoc."""

    file: str  # the name of the file, as the user gave it
    text: str
    name: str = ""  # name by which other files refer to this text, if not the file's own: a heredoc's target
    line: int = 1  # number of the text's first line in the file
    starts: tuple[int, ...] | None = field(default=None, repr=False)
    """Offset in the file of each line of the text; None where the text is the whole file. -1: the line is not verbatim in the file."""

    @cached_property
    def _lines(self) -> list[int]:
        starts = [0]
        starts += [i + 1 for i, letter in enumerate(self.text) if letter == "\n"]
        return starts

    def line_of(self, offset: int) -> int:
        """Return the number in the file of the line that holds an offset of the text."""
        return self.line + bisect_right(self._lines, offset) - 1

    def span(self, start: int, end: int) -> Span:
        """Return the span in the file of a piece of the text."""
        number = bisect_right(self._lines, start) - 1
        line = self.line + number
        if self.starts is None:
            return Span(self.file, line, start, end)
        outer = self.starts[number] if number < len(self.starts) else -1
        if outer < 0 or "\n" in self.text[start:end]:
            return Span(self.file, line)
        shift = outer - self._lines[number]
        return Span(self.file, line, start + shift, end + shift)

    def piece(self, start: int, end: int, name: str = "") -> "Source":
        """Return a piece of the text as a source of its own, whose spans are still those of the file."""
        text = self.text[start:end]
        starts = [start, *(start + i + 1 for i, letter in enumerate(text) if letter == "\n")]
        outer = tuple(self.span(offset, offset).start for offset in starts)
        return Source(self.file, text, name, self.line_of(start), outer)


@dataclass(frozen=True)
class Unknown:
    """A value that only running the file would tell: `$1`, `$(nvidia-smi ...)`, 'auto'."""

    text: str  # the expression as written in the file
    why: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Word:
    """A word of a command line after expansion."""

    text: str
    span: Span  # place of its literal text; not writable if it is joined from several places
    unknown: str = ""
    """The expansions in it that cannot be known without running the script, such as '$1'; '' where the text is exact."""


@dataclass(frozen=True)
class Setting:
    """One key of a file with its value: a flag, or a path of keys in YAML, TOML or JSON joined by dots."""

    key: str
    value: "Scalar | tuple[Scalar, ...] | Unknown"  # true for a flag without a value
    span: Span


@dataclass(frozen=True)
class Command:
    """A simple command with its words after expansion and its environment; `srun bash -c 'a b'` is the command `srun a b`."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]  # exported variables and assignments before the command
    certain: bool = True  # whether the command certainly starts: not in a branch whose condition is unknown
    by: tuple[tuple[str, int], ...] = ()
    """What the tests depend on that decide whether, or how, it starts, with the way that each goes here: ('$1 (train.sh:3)', 0)."""
