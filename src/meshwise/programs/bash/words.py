"""Words of a shell script: quotes, escapes, `$name`, `${...}`, `$(...)` and `$((...))` as a tree. Nothing is expanded here."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from meshwise.programs.bash.budget import spend
from meshwise.programs.bash.pieces import Piece, Place, Source

BLANK = " \t\r"
META = BLANK + "\n;&|<>()"
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
SPECIAL = "@*#?-$!0123456789"
OPERATORS = re.compile(r":-|:=|:\?|:\+|##|%%|//|/#|/%|\^\^|,,|[-=?+#%/^,@:]")
MAX_NESTING = 100  # brackets inside brackets: deeper scripts are refused, so that a broken file cannot exhaust the stack
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}


class ShellSyntaxError(Exception):
    """A range of characters that is not shell. Readers note it and go on with the next line."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters as written."""

    pieces: tuple[Piece, ...]
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name` or `${name...}`."""

    name: str
    quoted: bool
    spelled: str
    place: Place | None
    index: "Word | None" = None
    length: bool = False
    indirect: bool = False
    operator: str = ""
    argument: "Word | None" = None
    second: "Word | None" = None  # the replacement of `${x/pattern/replacement}`, the length of `${x:start:length}`


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((expression))`."""

    expression: "Word"
    quoted: bool
    spelled: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(statements)` or backquotes."""

    body: tuple[object, ...]
    quoted: bool
    spelled: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class Opaque:
    """A construct whose value cannot be known without running something, such as `<(command)`."""

    spelled: str
    why: str
    place: Place | None


Part = Literal | Parameter | Arithmetic | Substitution | Opaque


@dataclass(frozen=True, slots=True)
class Word:
    """Parts that stand together without a blank between them."""

    parts: tuple[Part, ...]
    place: Place | None = None

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes and expansions; None otherwise. Reserved words and names are plain."""
        if any(not isinstance(part, Literal) or part.quoted for part in self.parts):
            return None
        return "".join(piece.text for part in self.parts if isinstance(part, Literal) for piece in part.pieces)


class WordReader:
    """Reads words from a source. The parser of statements is passed in, for `$(...)`."""

    def __init__(self, source: Source, statements: Callable[[int], tuple[tuple[object, ...], int]]) -> None:
        self.source = source
        self.text = source.text
        self._statements = statements
        self.depth = 0
        self._no_arithmetic: set[int] = set()
        self.escapes = '$`"\\'
        """Characters that a backslash escapes inside double quotes; in a heredoc, all of them but the double quote."""

    def word(self, at: int, *, stop: str = META) -> tuple[Word, int]:
        """Read a word up to an unquoted character of `stop`; return it and the position after it."""
        parts, end = self._parts(at, stop, quoted=False)
        return Word(parts, self.source.place(at, end)), end

    def inside(self, at: int, stop: str, *, quoted: bool, nested: str = "") -> tuple[Word, int]:
        """Read text up to an unquoted character of `stop`, blanks included: an argument of `${...}`, an expression, a heredoc."""
        parts, end = self._parts(at, stop, quoted=quoted, nested=nested)
        return Word(parts, self.source.place(at, end)), end

    def _parts(self, at: int, stop: str, *, quoted: bool, nested: str = "") -> tuple[tuple[Part, ...], int]:
        """Read parts. `quoted`: as inside double quotes. `nested`: an opening bracket whose pairs belong to the text."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise ShellSyntaxError("brackets are nested too deeply", at)
        text, parts, start, level = self.text, list[Part](), at, 0
        # the default of "${x:-"a b"}" may have double quotes of its own, inside which nothing changes
        special = "\\$`" + ("" if quoted and stop != "}" else '"' if quoted else "'\"")

        def flush(end: int) -> None:
            if end > start:
                parts.append(Literal(self.source.pieces(start, end), quoted))

        while at < len(text):
            spend()
            hidden = self.source.unknown(at)
            if hidden is not None:
                at = hidden[1]
                continue
            char = text[at]
            if nested and char == nested:
                level += 1
            elif char in stop:
                if level == 0:
                    break
                level -= 1
            elif char in special:
                flush(at)
                more, at = self._special(at, quoted)
                parts += more
                start = at
                continue
            at += 1
        flush(at)
        self.depth -= 1
        return tuple(parts), at

    def _special(self, at: int, quoted: bool) -> tuple[list[Part], int]:
        """Read an escape, a quotation or an expansion."""
        char, text = self.text[at], self.text
        if char == "\\":
            return self._escape(at, quoted)
        if char == "'":
            end = self._find("'", at + 1, "a single quote is not closed")
            return [Literal(self.source.pieces(at + 1, end), True)], end + 1
        if char == '"':
            return self.double(at)
        if char == "`":
            return self._backquotes(at, quoted)
        following = text[at + 1 : at + 2]
        if following == "'" and not quoted:
            return self._ansi(at)
        if following == '"' and not quoted:
            return self.double(at + 1)
        if text.startswith("$((", at):
            found = self._arithmetic(at, quoted)
            if found is not None:
                return found
        if following == "(":
            body, end = self._statements(at + 2)
            if text[end : end + 1] != ")":
                raise ShellSyntaxError("$( is not closed", at)
            return [Substitution(body, quoted, text[at : end + 1], self.source.place(at, end + 1))], end + 1
        if following == "{":
            part, end = self._braces(at, quoted)
            return [part], end
        name = NAME.match(text, at + 1)
        end = name.end() if name else at + 2 if following and following in SPECIAL else at + 1
        if end == at + 1:
            return [Literal(self.source.pieces(at, end), quoted)], end
        return [Parameter(text[at + 1 : end], quoted, text[at:end], self.source.place(at, end))], end

    def _find(self, char: str, at: int, message: str) -> int:
        end = self.text.find(char, at)
        if end < 0:
            raise ShellSyntaxError(message, at - 1)
        return end

    def _escape(self, at: int, quoted: bool) -> tuple[list[Part], int]:
        following = self.text[at + 1 : at + 2]
        if following == "\n":
            return [], at + 2
        if self.text.startswith("\r\n", at + 1):
            return [], at + 3
        if not following or (quoted and following not in self.escapes):
            return [Literal(self.source.pieces(at, at + 1), True)], at + 1
        return [Literal(self.source.pieces(at + 1, at + 2), True)], at + 2

    def double(self, at: int) -> tuple[list[Part], int]:
        """Read a double-quoted string."""
        parts, end = self._parts(at + 1, '"', quoted=True)
        if end >= len(self.text):
            raise ShellSyntaxError("a double quote is not closed", at)
        return list(parts) or [Literal((), True)], end + 1

    def _ansi(self, at: int) -> tuple[list[Part], int]:
        """Read $'...' with its escapes."""
        pieces: list[Piece] = []
        begin = end = at + 2
        while self.text[end : end + 1] != "'":
            if end >= len(self.text):
                raise ShellSyntaxError("a quote $' is not closed", at)
            if self.text[end] == "\\":
                pieces += self.source.pieces(begin, end)
                decoded, size = _decoded(self.text, end)
                pieces.append(Piece(decoded, self.source.place(end, end + size), exact=False))
                begin = end = end + size
            else:
                end += 1
        pieces += self.source.pieces(begin, end)
        return [Literal(tuple(pieces), True)], end + 1

    def _backquotes(self, at: int, quoted: bool) -> tuple[list[Part], int]:
        pieces: list[Piece] = []
        begin = end = at + 1
        while self.text[end : end + 1] != "`":
            if end >= len(self.text):
                raise ShellSyntaxError("a backquote is not closed", at)
            if self.text[end] == "\\" and self.text[end + 1 : end + 2] in ("`", "\\", "$"):
                pieces += self.source.pieces(begin, end)
                begin = end + 1
                end += 2
            else:
                end += 1
        pieces += self.source.pieces(begin, end)
        place = self.source.place(at, end + 1)
        return [Substitution(tuple(pieces), quoted, self.text[at : end + 1], place)], end + 1

    def _arithmetic(self, at: int, quoted: bool) -> tuple[list[Part], int] | None:
        """Read $((...)); None if it is a substitution that begins with a subshell."""
        if at in self._no_arithmetic:
            return None
        depth, found = self.depth, None
        with suppress(ShellSyntaxError):
            found = self.inside(at + 3, ")", quoted=True, nested="(")
        self.depth = depth
        if found is None or not self.text.startswith("))", found[1]):
            self._no_arithmetic.add(at)
            return None
        expression, end = found
        place = self.source.place(at, end + 2)
        return [Arithmetic(expression, quoted, self.text[at : end + 2], place)], end + 2

    def _braces(self, at: int, quoted: bool) -> tuple[Part, int]:
        """Read ${...}."""
        text, pos = self.text, at + 2
        length = text.startswith("#", pos) and text[pos + 1 : pos + 2] not in ("}", "")
        indirect = text.startswith("!", pos) and text[pos + 1 : pos + 2] not in ("}", "")
        pos += length or indirect
        name = NAME.match(text, pos) or re.compile(r"\d+|[@*#?$!-]").match(text, pos)
        if name is None:
            raise ShellSyntaxError("${ is not followed by a name", at)
        pos, index = name.end(), None
        if text.startswith("[", pos):
            index, pos = self.inside(pos + 1, "]", quoted=False, nested="[")
            pos += 1
        operator = OPERATORS.match(text, pos)
        argument = second = None
        if operator is not None:
            pos = operator.end()
            argument, second, pos = self._arguments(pos, operator.group(), quoted)
        if not text.startswith("}", pos):
            raise ShellSyntaxError("${ is not closed", at)
        kind = operator.group() if operator else ""
        place = self.source.place(at, pos + 1)
        spelled = text[at : pos + 1]
        return Parameter(
            name.group(), quoted, spelled, place, index, bool(length), bool(indirect), kind, argument, second
        ), pos + 1

    def _arguments(self, at: int, operator: str, quoted: bool) -> tuple[Word, Word | None, int]:
        """Read what follows the operator. Patterns keep their own quotes even inside double quotes; defaults do not."""
        as_quoted = quoted and operator in (":-", "-", ":=", "=", ":+", "+", ":?", "?")
        first, pos = self.inside(at, ("/}" if operator[0] == "/" else ":}" if operator == ":" else "}"), quoted=as_quoted)
        if operator[0] in "/:" and operator not in (":-", ":=", ":+", ":?") and self.text[pos : pos + 1] in ("/", ":"):
            second, pos = self.inside(pos + 1, "}", quoted=False)
            return first, second, pos
        return first, None, pos


def _decoded(text: str, at: int) -> tuple[str, int]:
    """Decode one escape of $'...'; return it and its length in the source."""
    match = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3}))").match(text, at)
    if match:
        hexadecimal, unicode, octal = match.groups()
        number = int(octal, 8) if octal else int(hexadecimal or unicode, 16)
        return chr(number), match.end() - at
    following = text[at + 1 : at + 2]
    return ESCAPES.get(following, following if following in "\\'\"?" else "\\" + following), 2
