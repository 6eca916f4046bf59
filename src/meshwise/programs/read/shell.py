"""Read a script without running it: its commands and where each word was written; what only a run or `--set X=...` tells is unknown."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from meshwise.errors import UserError
from meshwise.programs.bash import directives as sbatch
from meshwise.programs.bash import pieces as bash
from meshwise.programs.bash.budget import MAX_SCRIPT_SECONDS, MAX_SCRIPT_STEPS, TooLong, limited, spend
from meshwise.programs.bash.flow import Leave, Started
from meshwise.programs.bash.interpreter import Interpreter
from meshwise.programs.bash.state import Array, State
from meshwise.programs.bash.statements import parse
from meshwise.programs.bash.variants import variants
from meshwise.programs.source import Command, Setting, Source, Unknown, Word
from meshwise.runs.run import Span

MAX_SCRIPT_CHARS = 500_000  # characters of a script; a launch script is a hundredth of it


@dataclass(frozen=True)
class Script:
    """Commands, directives and files of a script, as if it had run."""

    commands: tuple[Command, ...]
    directives: tuple[Setting, ...]  # `#SBATCH --nodes=4` as Setting('--nodes', '4', span)
    files: tuple[Source, ...]  # files with known text that the script writes, by name
    variables: Mapping[str, Word]  # every variable at the end of the script, exported or not; an array as one word
    unknown: Mapping[str, str]  # values known only at run time, with the reason: {'$1': 'an argument of the script'}
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenFile(Source):
    """A file that a script writes. A span is the place where the text of a variable was written, not where the variable is used."""

    pieces: tuple[bash.Piece, ...] = field(default=(), repr=False)

    def span(self, start: int, end: int) -> Span:
        """Return the span of a piece of the text."""
        return _span(bash.Value(self.pieces).cut(start, end), self.file, self.line)

    def line_of(self, offset: int) -> int:
        """Return the number of the line where a character was written."""
        starts, at = list[int](), 0
        for piece in self.pieces:
            starts.append(at)
            at += len(piece.text)
        place = self.pieces[max(0, bisect_right(starts, offset) - 1)].place if self.pieces else None
        return place.line if place else self.line


def read(
    source: Source, given: Mapping[str, str], beside: Sequence[Source] = (), variables: Mapping[str, str] | None = None
) -> Script:
    """Return what a script would do; `given` answers unknown variables (--set), `beside`: files to source; `variables`: set before."""
    if len(source.text) > MAX_SCRIPT_CHARS:
        raise UserError(
            f"{source.file} has {len(source.text)} characters; a launch script of at most {MAX_SCRIPT_CHARS} is expected"
        )
    text = _pieces(source)
    found = sbatch.directives(text)
    fixed = {name: bash.Value((bash.Piece(value, None, exact=False),)) for name, value in given.items()}
    state = State(source.file, dict(sbatch.variables(found)))
    state.variables |= {name: bash.Value((bash.Piece(value, None, exact=False),)) for name, value in (variables or {}).items()}
    state.exported |= set(variables or {})
    state.variables |= fixed
    numbers = sorted(int(name) for name in given if name.isdecimal() and 0 < int(name[:9]) < 1000)
    if numbers:
        state.arguments = [fixed.get(str(n), bash.EMPTY) for n in range(1, numbers[-1] + 1)]
    shell = Interpreter(state, fixed, {one.file.rpartition("/")[2]: _pieces(one) for one in beside})
    shell.directives += found
    try:
        with limited(MAX_SCRIPT_STEPS, MAX_SCRIPT_SECONDS):
            parsed = parse(text)
            shell.notes += [str(note) for note in parsed.notes]
            shell.block(parsed.block)
    except Leave:
        pass
    except TooLong:
        shell.notes.append(f"{source.file}: the script takes too many steps to be followed to its end")
    except RecursionError:
        shell.notes.append(f"{source.file}: statements are nested too deeply to be followed to the end")
    return _script(source, shell)


def _script(source: Source, shell: Interpreter) -> Script:
    commands = tuple(_command(one, source.file) for whole in shell.started for one in variants(whole, shell.expander))
    variables = {name: value for name, value in shell.state.variables.items() if name not in ("IFS",)}
    plain = {name: bash.joined(value.values, " ") if isinstance(value, Array) else value for name, value in variables.items()}
    unknown = {piece.text: piece.unknown for value in plain.values() for piece in value.pieces if piece.unknown}
    unknown |= {p.text: p.unknown for one in shell.started for value in one.words for p in value.pieces if p.unknown}
    directives = tuple(_setting(one, source.file) for one in shell.directives)
    files = tuple(_file(name, value, source.file) for name, value in shell.state.files.items())
    words = {name: word(value, source.file, 1) for name, value in plain.items()}
    return Script(commands, directives, files, words, unknown, _once(shell.notes))


def _once(notes: Sequence[str]) -> tuple[str, ...]:
    """Return notes without repeats: of one text at several lines the first, with the number of the others."""
    places: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        place, _, text = note.partition(": ")
        places.setdefault(text or place, []).append(place)
    found: list[str] = []
    for text, where in places.items():
        more = f" (and {len(where) - 1} more lines)" if len(where) > 1 else ""
        found.append(f"{where[0]}: {text}{more}" if where[0] != text else text)
    return tuple(found)


def _pieces(source: Source) -> bash.Source:
    """Return a source for the parser: one piece a line, at its place in the file."""
    pieces: list[bash.Piece] = []
    at = 0
    for line in source.text.split("\n"):
        spend(5)
        span = source.span(at, at + len(line))
        written = line + "\n" if at + len(line) < len(source.text) else line
        start = span.start if span.writable else -1
        if written:
            pieces.append(bash.Piece(written, bash.Place(span.file, span.line, start, start + len(written)), exact=span.writable))
        at += len(written)
    return bash.Source(pieces, end=bash.Place(source.file, source.line_of(len(source.text)), -1, -1))


def _span(value: bash.Value, file: str, line: int) -> Span:
    """Return where a value was written; not writable where it is joined from several places or computed."""
    places = [piece.place for piece in value.pieces if piece.place is not None]
    if not places:
        return Span(file, line)
    whole = len(places) == len(value.pieces) and all(piece.exact and not piece.unknown for piece in value.pieces)
    follows = all(a.file == b.file and a.end == b.start for a, b in pairwise(places))
    if whole and follows and places[0].start >= 0:
        return Span(places[0].file, places[0].line, places[0].start, places[-1].end)
    return Span(places[0].file, places[0].line)


def word(value: bash.Value, file: str, line: int) -> Word:
    """Return a value as a word with its span; the unknown parts are named."""
    unknown = " ".join(dict.fromkeys(piece.text for piece in value.unknown))
    return Word(value.text, _span(value, file, line), unknown)


def _command(one: Started, file: str) -> Command:
    line = one.place.line if one.place else 1
    words = tuple(word(value, one.place.file if one.place else file, line) for value in one.words)
    return Command(words, {name: word(value, file, line) for name, value in one.environment.items()}, one.certain, one.by)


def _setting(one: sbatch.Directive, file: str) -> Setting:
    if one.value is None:
        return Setting(f"--{one.name}", True, _span(one.place, file, 1))
    value = one.value
    return Setting(f"--{one.name}", value.text if value.known else Unknown(value.text), _span(value, file, 1))


def _file(name: str, value: bash.Value, file: str) -> Source:
    """Return a written file. Unknown parts are spelled $NAME, which YAML takes for a word."""
    names = ["$" + "".join(c for c in p.text if c.isalnum() or c == "_") for p in value.pieces]
    named = zip(names, value.pieces, strict=True)
    pieces = tuple(bash.Piece(name, p.place, p.unknown, exact=False) if p.unknown else p for name, p in named)
    text = "".join(piece.text for piece in pieces)
    first = bash.Value(pieces).place
    return WrittenFile(first.file if first else file, text, name, first.line if first else 1, None, pieces)
